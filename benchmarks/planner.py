"""The planner benchmark: `make bench-planner` -> `.bench/planner.json`.

A plan over 64 sources and 16 targets, and over 4 and one, in the planner alone, on one core: the
median and the least of rounds. Nothing is kept between them but profiles and links. Then the same
over HTTP, from the whole service on real Postgres (`benchmarks.planner_http`).
"""

import argparse
import os
import statistics
import sys
import time

from app.contract.enums import TierKind
from app.planner.choose import plan
from app.planner.links import Link, Links
from app.planner.profile import Path, Prefill, Profile
from app.planner.question import Question, Source, Target
from benchmarks.planner_http import measure_http
from benchmarks.report import Bar, Report

CORE = 0
PROMPT_TOKENS = 8_192
MANY, FEW = (64, 16), (4, 1)
BARS_US = {MANY: 300.0, FEW: 40.0}
PLANS_A_ROUND = 200
PROFILE = Profile(
    schema_version="nexuskv.cost_profile.v1",
    name="bench",
    source="made up",
    prefill=Prefill(100.0, 20.0, 0.001, 0.1),
    paths=(
        Path(TierKind.DEVICE, 500.0, 20_000.0, 0.1),
        Path(TierKind.HOST_DRAM, 500.0, 10_000.0, 0.1),
        Path(TierKind.LOCAL_SSD, 500.0, 2_000.0, 0.2),
    ),
    restore_us=50.0,
    default_bytes_per_token=100_000.0,
)
TIERS = (TierKind.DEVICE, TierKind.HOST_DRAM, TierKind.LOCAL_SSD)


def question(sources: int, targets: int) -> Question:
    """Every source on a node of its own, every target with a queue and some of the prefix."""
    nodes = [f"node-{n}" for n in range(sources)]
    links = Links(
        nodes,
        {(one, two): Link(20.0, 12_500.0, 0, 8) for one in nodes for two in nodes if one != two},
    )
    return Question(
        PROMPT_TOKENS,
        tuple(
            Target(
                f"engine-{n}", 1, nodes[n], PROFILE, local_tokens=128 * (n % 3),
                queue_depth=n % 4, queued_prefill_tokens=2_048 * (n % 4),
                running_decode_tokens=20_000, free_tokens=100_000,
            )
            for n in range(targets)
        ),
        tuple(
            Source(f"state-{n:02}", nodes[n], TIERS[n % 3], 8_192 - 16 * n, 100_000.0)
            for n in range(sources)
        ),
        links,
    )  # fmt: skip


def measure(report: Report, shape: tuple[int, int], rounds: int) -> None:
    asked = question(*shape)
    chosen, took_us = plan(asked), []
    for _ in range(rounds):
        begin_ns = time.perf_counter_ns()
        for _ in range(PLANS_A_ROUND):
            plan(asked)
        took_us.append((time.perf_counter_ns() - begin_ns) / PLANS_A_ROUND / 1e3)
    sources, targets = shape
    middle = statistics.median(took_us)
    row = {"sources": sources, "targets": targets, "median_us": middle, "least_us": min(took_us)}
    report.rows.append(row | {"chosen": chosen.chosen.action.value})
    name = f"a plan over {sources} sources and {targets} targets"
    report.bars.append(Bar(name, middle, "us", BARS_US[shape], at_least=False))


def main() -> None:
    asked = argparse.ArgumentParser(description=__doc__)
    asked.add_argument("--rounds", type=int, default=50)
    asked.add_argument("--requests", type=int, default=1_000)
    asked.add_argument("--only", choices=["core", "http"], help="one of the two; else both")
    options = asked.parse_args()
    report = Report("planner", [" ".join(["make bench-planner", *sys.argv[1:]])])
    if options.only != "http":
        os.sched_setaffinity(0, {CORE})
        for shape in (MANY, FEW):
            measure(report, shape, options.rounds)
    if options.only != "core":
        measure_http(report, options.requests)
    report.show()
    print(f"\nwritten to {report.write()}")


if __name__ == "__main__":
    main()
