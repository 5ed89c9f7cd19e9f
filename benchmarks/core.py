"""The index beside its peers: `make bench-core` -> `.bench/core.json`.

Peers: Dynamo's Python `RadixTree` and SGLang's Rust tree, from their wheels, each in an environment
of its own under `.bench/`. One process a system, all on the same core and one at a time; rounds go
from system to system, the least of them counts, and all have to give the same answers: otherwise
there is no result and the exit code is 1. A bar that is missed is reported like one that holds.
"""

import argparse
import os
import sys
from collections.abc import Callable
from importlib import import_module
from pathlib import Path

from benchmarks import core_index, core_limits
from benchmarks.core_peers import DRIVER_CORE
from benchmarks.core_table import DifferentAnswerError, Plan, Table, say
from benchmarks.report import ROOT, Report

GROUPS = ("find", "store", "trace", "growth", "readers", "threads", "restart", "cold", "http")


def parsed() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--blocks", default="1e5,1e6,1e7", help="sizes of the index, with commas")
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--only", default=",".join(GROUPS), help="groups of rows, with commas")
    parser.add_argument("--peers", default="dynamo,sglang", help="systems to measure beside ours")
    parser.add_argument("--trace", type=Path, default=ROOT.parent / "shared" / "traces",
                        help="a trace in Mooncake's format, or the folder it is in")  # fmt: skip
    parser.add_argument("--trace-requests", type=int, default=6_000)
    parser.add_argument("--wheels", help="a folder to install peers from, beside the index of pip")
    options = parser.parse_args()
    options.sizes = [int(float(each)) for each in options.blocks.split(",")]
    options.groups = options.only.split(",")
    unknown = set(options.groups) - set(GROUPS)
    if unknown:
        parser.error(f"no such group: {', '.join(sorted(unknown))}; there are {', '.join(GROUPS)}")
    options.names = [core_index.OURS, *filter(None, options.peers.split(","))]
    if options.trace.is_dir():
        options.trace = next(iter(sorted(options.trace.glob("*.jsonl"))), options.trace / "*.jsonl")
    return options


def main() -> None:
    options = parsed()
    os.sched_setaffinity(0, {DRIVER_CORE})
    table = Table(Report("core", [" ".join(["make bench-core", *sys.argv[1:]])]))
    largest = max(options.sizes)
    # The size of the store rounds, which load it over and over.
    middle = min(max((n for n in options.sizes if n <= core_index.MILLION), default=largest),
                 largest)  # fmt: skip
    rounds = options.rounds
    plan = Plan(options.names, rounds, options.wheels)

    def find() -> None:
        for blocks in options.sizes:
            bars = blocks >= core_index.MILLION or blocks == largest
            core_index.measure_find(table, plan, blocks, bars=bars)

    groups: dict[str, Callable[[], None]] = {
        "find": find,
        "store": lambda: core_index.measure_store(table, plan, middle),
        "trace": lambda: core_index.measure_trace(
            table, plan, options.trace, options.trace_requests
        ),
        "growth": lambda: core_limits.measure_growth(table, largest, rounds),
        "readers": lambda: core_limits.measure_readers(table, middle, rounds),
        "threads": lambda: core_limits.measure_threads(table, middle, rounds),
        "full": lambda: core_limits.measure_full(table, largest, rounds, options.groups),
        # The whole service comes with this one; the others measure the index alone.
        "http": lambda: import_module("benchmarks.core_http").measure_http(table, plan),
    }
    try:
        for group, measure in groups.items():
            parts = ("restart", "cold") if group == "full" else (group,)
            if any(part in options.groups for part in parts):
                measure()
    except DifferentAnswerError as error:
        say(f"FAILED, no figure counts: {error}")
        sys.exit(1)
    table.show()
    print(f"\nwritten to {table.report.write()}")


if __name__ == "__main__":
    main()
