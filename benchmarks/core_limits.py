"""Rows of `benchmarks.core` about our index alone: growth, readers, threads, restart, cold."""

import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from benchmarks.core_peers import (
    DRIVER_CORE,
    OURS,
    SYSTEM_CORE,
    PeerError,
    Process,
    environment,
    start,
)
from benchmarks.core_table import Table, say
from benchmarks.report import OUT, ROOT

GROWTH_BAR_MS: Final = 5.0
READER_BAR_US: Final = 50.0
PROCESSES_BAR, THREADS_BAR = 1.8, 1.4
RESTART_BAR_S: Final = 2.0
CHASES, BESIDE_NS = 8, 1_000.0
QUERY_BLOCKS: Final = 128
COLD_BLOCKS: Final = 8_192
COLD_FINDS: Final = 16
ROUND_S: Final = 0.4
# Until a process has read its order and made its questions.
LEAD_S: Final = 0.3
STARTS: Final = 10


@contextmanager
def alone(role: str, *cores: int) -> Iterator[Process]:
    where = ",".join(str(core) for core in cores)
    python = environment(OURS, None)
    with start(f"alone-{role}", "benchmarks.core_alone", [where], python) as process:
        yield process


def measure_growth(table: Table, blocks: int, rounds: int) -> None:
    """The longest store of each run, in a process of its own; the least of the runs counts."""
    name = f"longest store of 512 blocks while growing to {blocks:,}"
    found = []
    try:
        for number in range(rounds):
            with alone("growth", SYSTEM_CORE) as process:
                found.append(process.call("growth", blocks=blocks))
            table.row("growth", index_blocks=blocks, round=number, **found[-1])
            say(f"growth, round {number + 1} of {rounds}: {found[-1]['longest_ms']:.2f} ms")
    except PeerError as error:
        table.absent(name, f"not built: {error}")
        return
    table.at_most(name, min(each["longest_ms"] for each in found), GROWTH_BAR_MS, "ms")


# ---- readers


def measure_readers(table: Table, blocks: int, rounds: int) -> None:
    beside = "reader p99 beside a writer at full rate, in another process"
    scaling = "two reader processes of one"
    try:
        with (
            alone("writer", SYSTEM_CORE) as writer,
            alone("reader-0", SYSTEM_CORE) as first,
            alone("reader-1", DRIVER_CORE) as second,
        ):
            where = writer.call("fill", blocks=blocks, shared=True)
            for reader in (first, second):
                reader.call("workload", blocks=blocks)
                reader.call("attach", **where)
                _together({reader: "ask"}, ROUND_S)  # makes its questions
            _beside_writer(table, beside, writer, second, rounds)
            _two_readers(table, scaling, first, second, rounds)
    except PeerError as error:
        known = {bar.name for bar in table.report.bars}
        for name in (beside, scaling):
            if name not in known:
                table.absent(name, f"not built: {error}")


def _together(roles: dict[Process, str], duration_s: float) -> list[dict[str, float]]:
    """What each found in the same stretch of time. Raises PeerError."""
    for _ in range(STARTS):
        begin_at_s = time.monotonic() + LEAD_S
        for process, role in roles.items():
            what = {"blocks": QUERY_BLOCKS} if role == "ask" else {}
            # A writer is there before the readers and stays until they are done.
            around = 0.0 if role == "ask" else 0.1
            end_at_s = begin_at_s + duration_s + around
            process.send(role, **what, begin_at_s=begin_at_s - around, end_at_s=end_at_s)
        found = [process.receive() for process in roles]
        if None not in found:
            return found
    raise PeerError(f"a process was late at each of {STARTS} starts: the machine is too busy")


def _beside_writer(table: Table, name: str, writer: Process, reader: Process, rounds: int) -> None:
    best = None
    for number in range(rounds):
        written, read = _together({writer: "churn", reader: "ask"}, ROUND_S)
        table.row("reader beside a writer", round=number, **read,
                  writer_million_blocks_a_s=written["million_blocks_a_s"])  # fmt: skip
        best = read["p99_us"] if best is None else min(best, read["p99_us"])
    if best is not None:
        say(f"reader beside a writer: p99 {best:.2f} us in the best of {rounds} rounds")
        table.at_most(name, best, READER_BAR_US, "us")


def _two_readers(table: Table, name: str, first: Process, second: Process, rounds: int) -> None:
    alone_best, both_best = {first.name: 0.0, second.name: 0.0}, 0.0
    for number in range(rounds):
        for reader in (first, second):
            (one,) = _together({reader: "ask"}, ROUND_S)
            alone_best[reader.name] = max(alone_best[reader.name], one["finds_a_s"])
        both = _together({first: "ask", second: "ask"}, ROUND_S)
        both_best = max(both_best, sum(each["finds_a_s"] for each in both))
        table.row("two readers", round=number, both=both_best, **alone_best)
    one_reader = sum(alone_best.values()) / len(alone_best)
    table.at_least(name, both_best / one_reader, PROCESSES_BAR)


def measure_threads(table: Table, blocks: int, rounds: int) -> None:
    name = "two threads on batched finds of one"
    best = {1: 0.0, 2: 0.0}
    try:
        with alone("threads", SYSTEM_CORE, DRIVER_CORE) as process:
            process.call("fill", blocks=blocks, shared=False)
            for _ in range(rounds):
                for count, so_far in best.items():
                    found = process.call(
                        "threads", count=count, blocks=QUERY_BLOCKS, duration_s=ROUND_S
                    )
                    best[count] = max(so_far, found)
    except PeerError as error:
        table.absent(name, f"not built: {error}")
        return
    table.row("threads", finds_a_s_of_one=best[1], finds_a_s_of_two=best[2])
    say(f"threads: {best[2] / best[1]:.2f} times")
    table.at_least(name, best[2] / best[1], THREADS_BAR)


# ---- a full index: restart, cold finds


def measure_full(table: Table, blocks: int, rounds: int, groups: list[str]) -> None:
    cold = f"cold find of {COLD_BLOCKS:,} blocks at {blocks:,}"
    restart = f"restart from a snapshot of {blocks:,} blocks to the first answer"
    with alone("full", SYSTEM_CORE) as process:
        say(f"filling an index of {blocks:,} blocks")
        process.call("fill", blocks=blocks, shared=False)
        if "cold" in groups:
            try:
                _cold(table, cold, process, rounds)
            except PeerError as error:
                table.absent(cold, str(error))
        if "restart" in groups:
            path = OUT / "core.snapshot"
            try:
                _restart(table, restart, process, path, rounds)
            except PeerError as error:
                table.absent(restart, f"not built: {error}")
            finally:
                path.unlink(missing_ok=True)


def _cold(table: Table, name: str, process: Process, rounds: int) -> None:
    library = str(_library())
    found: dict[str, list[float]] = {"huge pages": [], "4 KiB pages": [], "find": []}
    for _ in range(rounds):
        found["huge pages"].append(process.call("chase", library=library, huge=True))
        found["4 KiB pages"].append(process.call("chase", library=library, huge=False))
        one = process.call("cold", library=library, blocks=COLD_BLOCKS, count=COLD_FINDS)
        found["find"].append(one["cold_ns"])
    best = {what: min(values) for what, values in found.items()}
    for pages in ("huge pages", "4 KiB pages"):
        table.row("pointer chase over 1 GiB", pages=pages, ns=best[pages])
    chases = (best["find"] - BESIDE_NS) / best["huge pages"]
    table.row("cold find", blocks=COLD_BLOCKS, us=best["find"] / 1e3, chases_beside_1_us=chases)
    say(f"cold find: {best['find'] / 1e3:.2f} us, a chase {best['huge pages']:.0f} ns")
    table.at_most(f"{name}, less 1 us, of a pointer chase on huge pages", chases, CHASES, "chases")


def _library() -> Path:
    """The chase, compiled. Raises PeerError without a compiler."""
    source, library = ROOT / "benchmarks" / "core_chase.c", OUT / "core_chase.so"
    command = ["cc", "-O2", "-shared", "-fPIC", "-o", str(library), str(source)]
    try:
        subprocess.run(command, check=True, capture_output=True)
    except (OSError, subprocess.CalledProcessError) as error:
        raise PeerError(f"the pointer chase cannot be compiled: {error}") from error
    return library


def _restart(table: Table, name: str, process: Process, path: Path, rounds: int) -> None:
    """From the start of a new process, its imports included; the file is in the page cache."""
    written = process.call("snapshot", path=str(path))
    question = process.call("question")
    table.row("snapshot", **written)
    best = None
    for number in range(rounds):
        begin = time.monotonic()
        with alone("restart", SYSTEM_CORE) as fresh:
            found = fresh.call("restore", path=str(path), question=question)
        took = found["ready_at_s"] - begin
        table.row("restart", round=number, s=took, restore_s=found["restore_s"])
        best = took if best is None else min(best, took)
    if best is not None:
        say(f"restart: {best:.2f} s")
        table.at_most(name, best, RESTART_BAR_S, "s")
