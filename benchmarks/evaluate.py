"""The planner's evaluation: `make evaluate` -> `.bench/evaluate.json` and `.bench/evaluate/`.

The folder is what `nexuskv evaluate --matrix` leaves, byte for byte the same each time; here are
the bars beside its figures, and what a strategy costs in CPU. The trace is the first 6,000 requests
of the Mooncake conversation trace, where that is at hand (TRACE=FILE names another).
"""

import argparse
import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from app.cli.trace_format import read_trace
from app.clock import seeded_random
from app.evaluate.fleet import load_fleet
from app.evaluate.measures import Measures
from app.evaluate.run import SETTLED, Run, measures, recover, simulate, strategies
from app.evaluate.simulator import draw
from app.evaluate.workloads import Kind
from app.policy.text import parse_document
from benchmarks.report import OUT, ROOT, Bar, Report

TRACE = ROOT.parent / "shared" / "traces" / "mooncake_conversation_first6000.jsonl"
FLEET = ROOT / "fleets" / "default.yaml"
REQUESTS = 6_000
SEED = 1
_HOUR_US = 3_600e6


def quiet(_: str) -> None:
    """Only the command below tells of its progress."""


def measure(report: Report, trace: Path) -> None:
    fleet = load_fleet(parse_document(FLEET.read_bytes()))
    with trace.open("rb") as lines:
        listed = [
            (one.timestamp, one.input_length, one.output_length, one.hash_ids)
            for _, one, _ in read_trace(lines, block_tokens=fleet.block_tokens, limit=REQUESTS)
        ]
    requests = draw(fleet, listed, seeded_random(SEED))
    span_us = requests[-1].arrival_us - requests[0].arrival_us
    runs: list[Run] = []
    cpu_s: dict[str, float] = {}
    for strategy in strategies(fleet, requests, quiet):
        begin_s = time.process_time()
        runs += simulate(fleet, requests, [strategy], quiet)
        cpu_s[strategy.name] = (time.process_time() - begin_s) * _HOUR_US / span_us
    rows = measures(fleet, requests, runs)
    for row in rows:
        report.rows.append(
            {name: getattr(row, name) for name in row.__struct_fields__}
            | {"cpu_s_per_simulated_hour": cpu_s[row.strategy]}
        )
    add_bars(report, rows)
    slowest = max(cpu_s.values())
    report.bars.append(
        Bar("CPU of a simulated hour, the slowest strategy", slowest, "s", 60, at_least=False)
    )
    for one in recover(fleet, requests, quiet):
        report.rows.append(one._asdict())
        if one.calibrated:
            name = f"regret after {SETTLED} requests, {one.wrong}, calibrated"
            report.bars.append(Bar(name, one.regret, "", 0.15, at_least=False))


def add_bars(report: Report, rows: list[Measures]) -> None:
    """Ours against the best of all others but the oracle."""
    ours = next(row for row in rows if row.strategy == "NexusKV")
    others = [row for row in rows if not row.strategy.startswith(("NexusKV", "oracle"))]
    best_ms = min(row.ttft_p95_ms for row in others)
    best_s = max(row.gain_s or 0.0 for row in others)
    gain_s, regret = ours.gain_s, ours.regret
    assert gain_s is not None
    assert regret is not None
    report.bars += [
        Bar("TTFT p95, of the best other strategy", ours.ttft_p95_ms / best_ms, "times", 1, False),
        Bar("gain, of the best other strategy", gain_s / best_s, "times", 1, True),
        Bar("regret, of the oracle's gain", regret, "", 0.1, False),
    ]


def add_control(report: Report, matrix: Path) -> None:
    """Where nothing is ever reused: the trace has no such request, since all begin alike."""
    for line in matrix.read_text(encoding="utf-8").splitlines():
        cell = json.loads(line)
        if cell["kind"] == Kind.NO_REUSE:
            means = {row["strategy"]: row["ttft_mean_ms"] for row in cell["rows"]}
            slower = means["NexusKV"] / means["recompute always"] - 1
            name = f"slowdown without any reuse, {cell['arrivals']} arrivals"
            report.bars.append(Bar(name, slower, "", 0.01, at_least=False))


def main() -> None:
    asked = argparse.ArgumentParser(description=__doc__)
    asked.add_argument("--trace", type=Path, default=TRACE)
    options = asked.parse_args()
    if not options.trace.exists():
        sys.exit(f"{options.trace} is not there: give a trace with TRACE=FILE")
    report = Report("evaluate", [" ".join(["make evaluate", *sys.argv[1:]])])
    measure(report, options.trace)
    command: list[Any] = [sys.executable, "-m", "app.cli", "evaluate", "--trace", options.trace]
    command += ["--fleet", FLEET, "--out", OUT / "evaluate", "--limit", str(REQUESTS), "--matrix"]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    add_control(report, OUT / "evaluate" / "matrix.jsonl")
    report.show()
    print(f"\nwritten to {report.write()}\n           {OUT / 'evaluate' / 'report.html'}")


if __name__ == "__main__":
    main()
