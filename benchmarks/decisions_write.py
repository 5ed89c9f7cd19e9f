"""The writing part of `benchmarks.decisions`: what recording costs, and what the copier does.

Cost: two services, one of which records nothing, are asked the same in turns; CPU of the API's
process alone, as the copier is another one. Rate: a process appends so many rows a second to a
spool, and the copier stores them. Drain: the copier alone, with a spool that is full of rows.
"""

import asyncio
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import msgspec
import orjson

from app.clock import SystemClock, SystemIds
from app.db.embedded import EmbeddedPostgres
from app.decisions.copier.main import CopierOrder
from app.decisions.record import Action, DecisionOutcome
from app.decisions.rows import LookupEnd, LookupRow, LookupScope, LookupWinner, encode
from app.decisions.spool.writer import Spool, SpoolLimits
from benchmarks import service
from benchmarks.report import Bar, Report

COST_BAR_US, RATE_BAR, DRAIN_BAR, GROWTH_BAR_BYTES = 15.0, 5_000.0, 12_000.0, 16 * 1024 * 1024
ROUND_S = 0.5
TICK_S = 0.01
DRAINED_ROWS = 300_000
SETTLED_S = 15
WAIT_S = 120


def measure_writing(report: Report, *, rounds: int, sustained_s: int) -> None:
    """On a Postgres of its own, with fsync on, like a real one."""
    with tempfile.TemporaryDirectory(prefix="nexuskv-bench-") as scratch:
        directory = Path(scratch)
        directory.chmod(0o711)
        # Its processes stay on the core of the load, as an API's do on theirs.
        os.sched_setaffinity(0, {service.LOAD_CORE})
        with EmbeddedPostgres(directory / "data") as postgres:
            key = asyncio.run(service.prepare(postgres.url))
            _measure_cost(report, postgres.url, key, directory, rounds)
        os.sched_setaffinity(0, {service.SERVER_CORE, service.LOAD_CORE})
        with EmbeddedPostgres(directory / "data") as postgres:
            _measure_drain(report, postgres.url, directory)
            _measure_rate(report, postgres.url, directory, sustained_s)


# ---- the cost of a lookup


def _measure_cost(report: Report, url: str, key: str, directory: Path, rounds: int) -> None:
    with ExitStack() as stack:
        ports: dict[str, tuple[int, int]] = {}
        for name, module in (("on", "app.cli"), ("off", "benchmarks.decisions_off")):
            pid, base_url = stack.enter_context(_serving(url, directory, name, module))
            entries = [service.registration(n, service.QUERY_TOKENS) for n in range(service.BODIES)]
            service.post(f"{base_url}/v1/states", orjson.dumps({"entries": entries}), key)
            ports[name] = pid, int(base_url.rpartition(":")[2])
        requests = [
            service.http_request(
                "/locus/v1/lookup", service.lookup_body(n, service.QUERY_TOKENS), key
            )
            for n in range(service.BODIES)
        ]
        cpu_us: dict[str, list[float]] = {"on": [], "off": []}
        for number in range(rounds + 1):
            for name, (pid, port) in ports.items():
                found = service.load(port, ROUND_S, requests, pid)
                if number:
                    cpu_us[name].append(found["server_cpu_us"])
                    report.rows.append({"what": "lookup", "recording": name, **found})
    best = {name: min(values) for name, values in cpu_us.items()}
    differences = sorted(on - off for on, off in zip(cpu_us["on"], cpu_us["off"], strict=True))
    middle = differences[len(differences) // 2]
    report.rows.append({"what": "recording", **best, "median_difference_us": middle})
    print(f"  recording: {best}, median of the differences {middle:.1f} us", flush=True)
    report.bars.append(Bar("recording a lookup, CPU of the API", middle, "us", COST_BAR_US, False))


@contextmanager
def _serving(url: str, directory: Path, name: str, module: str) -> Iterator[tuple[int, str]]:
    ready = directory / f"ready-{name}.json"
    command = [sys.executable, "-m", module, "serve", "--listen", "127.0.0.1:0"]
    command += ["--ready-file", str(ready), "--log-level", "error"]
    env = os.environ | {
        "NEXUSKV_DATABASE_URL": url,
        "NEXUSKV_HANDLE_SECRET": service.SECRET,
        "NEXUSKV_SPOOL_DIR": str(directory / f"spool-{name}"),
    }
    with service.server(command, env=env) as process:
        base_url = service.wait_for(ready)["base_url"]
        _place_children(process.pid, service.LOAD_CORE)
        yield process.pid, base_url


def _place_children(pid: int, core: int, deadline_s: float = 60) -> None:
    """Pin what a service started, its copier: it is counted by itself, and is on the other core."""
    end = time.monotonic() + deadline_s
    children = Path(f"/proc/{pid}/task/{pid}/children")
    while not (found := children.read_text().split()):
        if time.monotonic() > end:
            raise TimeoutError("the service has not started its copier")
        time.sleep(0.01)
    for child in found:
        for thread in Path(f"/proc/{child}/task").iterdir():
            os.sched_setaffinity(int(thread.name), {core})


# ---- the copier


class _Rows:
    """Lookups as a service spools them: hits of some tenants and models, with new ids."""

    def __init__(self) -> None:
        self._ids = SystemIds()
        inputs = '{"v":1,"engine_family":"vllm","semantic_type":"attention_kv","advisory":[]'
        self._scopes = [
            msgspec.Raw(
                encode(LookupScope(f"tenant-{n % 8}", "default", f"m-{n % 4}", "default@1", inputs))
            )
            for n in range(16)
        ]
        states = ["described", "matched", "validated"]
        self._end = msgspec.Raw(encode(LookupEnd(DecisionOutcome.HIT, Action.REUSE, states)))
        facts = '"generation":1,"tier":"host_dram","locator":"worker://w1/payload-1"}'
        state = self._ids.uuid7().bytes
        self._winner = msgspec.Raw(encode(LookupWinner("entry-1", state, "host_dram", facts)))
        self._made = 0

    def next(self) -> bytes:
        self._made += 1
        return encode(
            LookupRow(
                self._ids.uuid7().bytes, self._scopes[self._made % 16], self._end, 160,
                "4f1d1a5be1c0ffee4f1d1a5be1c0ffee", "0123456789ab", None, "current", "spooled",
                None, self._winner, "prefix", 128, "", 0, bytes(range(16)), 3, 0,
                1_000 + self._made, 40,
            )
        )  # fmt: skip


@contextmanager
def _copier(url: str, directory: Path) -> Iterator[int]:
    order = CopierOrder(str(directory), "error", 60.0, 5.0)
    process = subprocess.Popen(
        [
            sys.executable, "-c", "from app.decisions.copier.main import main; main()",
            msgspec.json.encode(order).decode(),
        ],
        stdin=subprocess.PIPE,
        env=os.environ | {"NEXUSKV_DATABASE_URL": url},
    )  # fmt: skip
    try:
        yield process.pid
    finally:
        assert process.stdin is not None
        process.stdin.close()
        process.wait(timeout=90)


def _spool(directory: Path) -> Spool:
    spool = Spool(SystemIds().uuid7(), SystemClock(), SpoolLimits(max_bytes=4 << 30))
    spool.open(directory)
    return spool


def _measure_drain(report: Report, url: str, directory: Path) -> None:
    asyncio.run(service.prepare(url))
    spool, rows = _spool(directory / "drained"), _Rows()
    for _ in range(DRAINED_ROWS):
        assert spool.append(rows.next()), "the spool has room"
    with _copier(url, directory / "drained") as pid:
        _until(lambda: spool.committed > 0)
        first, began = spool.committed, time.monotonic()
        _until(lambda: spool.committed >= DRAINED_ROWS)
        took_s = time.monotonic() - began
        rate = (DRAINED_ROWS - first) / took_s
        cpu_us = service.cpu_s(pid) / DRAINED_ROWS * 1e6
        spool.close()
    report.rows.append(
        {"what": "drain", "rows": DRAINED_ROWS, "rows_per_s": rate, "copier_cpu_us": cpu_us}
    )
    print(f"  drain: {rate:,.0f} rows/s, {cpu_us:.0f} us of the copier's CPU a row", flush=True)
    report.bars.append(Bar("drain of a backlog", rate, "rows/s", DRAIN_BAR, True))


def _measure_rate(report: Report, url: str, directory: Path, sustained_s: int) -> None:
    spool, rows = _spool(directory / "sustained"), _Rows()
    memory: dict[str, list[int]] = {"copier": [], "spooling": []}
    most_pending = 0
    with _copier(url, directory / "sustained") as pid:
        began = due = time.monotonic()
        each = round(RATE_BAR * TICK_S)
        for tick in range(round(sustained_s / TICK_S)):
            for _ in range(each):
                assert spool.append(rows.next()), "the spool has room"
            due += TICK_S
            time.sleep(max(0.0, due - time.monotonic()))
            most_pending = max(most_pending, spool.pending)
            if tick % 100 == 99:
                memory["copier"].append(_resident_bytes(pid))
                memory["spooling"].append(_resident_bytes(os.getpid()))
        recorded_s = time.monotonic() - began
        left = spool.pending
        _until(lambda: spool.pending == 0)
        stored_s = time.monotonic() - began
        spool.close()
    rate = spool.recorded / stored_s
    growth = {name: seen[-1] - seen[SETTLED_S] for name, seen in memory.items()}
    row: dict[str, Any] = {
        "what": "sustained", "rows": spool.recorded, "recorded_s": recorded_s,
        "stored_s": stored_s, "most_pending": most_pending, "left": left, "memory": memory,
    }  # fmt: skip
    report.rows.append(row)
    print(f"  sustained: {rate:,.0f} rows/s for {stored_s:.1f} s, at most {most_pending:,} behind,"
          f" memory grew by {growth}", flush=True)  # fmt: skip
    # What was recorded in the last moment takes a moment to be stored.
    report.bars += [
        Bar("rows stored a second, sustained", rate, "rows/s", 0.98 * RATE_BAR, True),
        Bar("memory of the copier, growth", growth["copier"], "bytes", GROWTH_BAR_BYTES, False),
    ]


def _until(done: Any) -> None:
    end = time.monotonic() + WAIT_S
    while not done():
        if time.monotonic() > end:
            raise TimeoutError("the copier does not come to an end")
        time.sleep(0.005)


def _resident_bytes(pid: int) -> int:
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")
