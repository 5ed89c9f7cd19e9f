"""The benchmark of the decision history: `make bench-decisions` -> `.bench/decisions.json`.

Reading: five million decisions with outcomes and sums are made inside Postgres, and a real
`nexuskv serve` is asked over HTTP, one request after the other, on one connection: the first page
of every filter with frequent, medium, rare and absent values; a day's summary by hour; single
decisions with their chains; the console's overview. Whole answers, from the request sent to the
last byte, with the key checked.
"""

import argparse
import asyncio
import json
import os
import random
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from http import HTTPStatus
from http.client import HTTPConnection
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import urlencode, urlsplit

import asyncpg
import httpx

from app.db.embedded import EmbeddedPostgres
from app.db.migrate import upgrade
from app.db.session import Database
from app.decisions.partitions import ensure_day, ensure_partitions
from benchmarks import decisions_rows
from benchmarks.decisions_rows import Loaded
from benchmarks.decisions_write import measure_writing
from benchmarks.report import Bar, Report
from benchmarks.service import SECRET, new_key, wait_for

ROUNDS = 40
PAGE_BAR_MS, SUMMARY_BAR_MS, DETAIL_BAR_MS, CONSOLE_BAR_MS = 50.0, 300.0, 10.0, 1000.0
DETAILS = 400
# filter -> how common -> value. Absent ones are valid values that no row has.
FILTERS: dict[str, dict[str, str]] = {
    "tenant": {
        "frequent": "tenant-00",
        "medium": "tenant-20",
        "rare": "tenant-rare",
        "absent": "tenant-none",
    },
    "namespace": {"frequent": "default", "medium": "batch", "rare": "rare", "absent": "none"},
    "model": {
        "frequent": "model-00",
        "medium": "model-05",
        "rare": "model-rare",
        "absent": "model-none",
    },
    "kind": {
        "frequent": "lookup",
        "medium": "materialize",
        "rare": "prefetch",
        "absent": "store",
    },
    "outcome": {
        "frequent": "hit",
        "medium": "excluded",
        "rare": "unavailable",
        "absent": "replayed",
    },
    "action": {
        "frequent": "reuse",
        "medium": "transfer",
        "rare": "skip",
        "absent": "register",
    },
    "backend": {
        "frequent": "baseline_transport",
        "medium": "staged_copy",
        "rare": "rdma",
        "absent": "zero_copy",
    },
    "tier": {
        "frequent": "host_dram",
        "medium": "local_ssd",
        "rare": "object_store",
        "absent": "remote_shared",
    },
    "reason": {
        "frequent": "cache_miss",
        "medium": "preferred_backend_unavailable",
        "rare": "no_transfer_path",
        "absent": "engine_policy",
    },
    "policy_version": {
        "frequent": "default@5",
        "medium": "default@1",
        "rare": "canary@1",
        "absent": "none@1",
    },
}


class Answer(NamedTuple):
    """What came back."""

    status: int
    body: bytes

    def json(self) -> Any:
        return json.loads(self.body)


class Client:
    """Asks one service on one connection, and knows how long the answers took."""

    def __init__(self, base_url: str, key: str) -> None:
        where = urlsplit(base_url)
        self._connection = HTTPConnection(where.hostname or "", where.port, timeout=120)
        self._headers = {"authorization": f"Bearer {key}"}
        # Opens the connection, here and to Postgres.
        self.get_ms("/v1/decisions")

    def get_ms(self, path: str, params: Any = None) -> tuple[float, Answer]:
        target = f"{path}?{urlencode(params, doseq=True)}" if params else path
        begin = time.perf_counter()
        self._connection.request("GET", target, headers=self._headers)
        got = self._connection.getresponse()
        answer = Answer(got.status, got.read())
        took_ms = (time.perf_counter() - begin) * 1e3
        assert answer.status in {HTTPStatus.OK, HTTPStatus.SERVICE_UNAVAILABLE}, answer
        return took_ms, answer

    def close(self) -> None:
        self._connection.close()


def p(times_ms: Sequence[float], q: float) -> float:
    ordered = sorted(times_ms)
    return ordered[min(len(ordered) - 1, int(q * len(ordered)))]


def measure(report: Report, what: str, times_ms: Sequence[float], **facts: Any) -> float:
    """Adds a row; returns p95."""
    row = {"what": what, **facts, "p50_ms": p(times_ms, 0.5), "p95_ms": p(times_ms, 0.95)}
    report.rows.append(row | {"first_ms": times_ms[0], "runs": len(times_ms)})
    print(f"  {report.rows[-1]}", flush=True)
    return p(times_ms, 0.95)


def measure_pages(report: Report, client: Client, loaded: Loaded) -> None:
    middle = loaded.start + timedelta(days=3, hours=7)
    asked: list[tuple[str, str, dict[str, str]]] = [("none", "", {})]
    asked += [
        (name, how, {name: value})
        for name, values in FILTERS.items()
        for how, value in values.items()
    ]
    trace = client.get_ms("/v1/decisions", {"kind": "materialize"})[1].json()["items"][0][
        "trace_id"
    ]
    asked += [
        ("trace_id", "rare", {"trace_id": trace}),
        ("trace_id", "absent", {"trace_id": "0" * 31 + "1"}),
        ("to", "middle", {"to": middle.isoformat()}),
        ("from", "absent", {"from": (loaded.end + timedelta(days=1)).isoformat()}),
    ]
    worst = {}
    for name, how, params in asked:
        answers = [client.get_ms("/v1/decisions", params)]
        # One that takes its whole time limit is known after a few.
        while len(answers) < (ROUNDS if answers[-1][1].status == HTTPStatus.OK else 3):
            answers.append(client.get_ms("/v1/decisions", params))
        last = answers[-1][1]
        items = len(last.json()["items"]) if last.status == HTTPStatus.OK else None
        what = f"first page by {name}" if name != "none" else "first page"
        times = [took for took, _ in answers]
        worst[f"{name} {how}"] = measure(report, what, times, value=how, items=items)
        # Among few rows none may be of a rare kind.
        assert items is None or how == "rare" or (items == 0) == (how == "absent"), (name, how)
    slowest = max(worst, key=worst.__getitem__)
    report.bars.append(
        Bar(
            f"first page of one filter, p95, the slowest ({slowest})",
            worst[slowest],
            "ms",
            PAGE_BAR_MS,
            False,
        )
    )


def measure_summaries(report: Report, client: Client, loaded: Loaded) -> None:
    day = (loaded.start + timedelta(days=4)).replace(hour=0, minute=0, second=0)
    span = {"from": day.isoformat(), "to": (day + timedelta(days=1)).isoformat(), "step": "hour"}
    worst = 0.0
    for groups in ([], ["model"], ["kind", "outcome"], ["tenant"]):
        params = span | {"group_by": groups} if groups else span
        times = [client.get_ms("/v1/decisions/summary", params)[0] for _ in range(ROUNDS)]
        by = ", ".join(groups) or "nothing"
        p95 = measure(report, "a day's summary by hour", times, by=by)
        if not groups:
            worst = p95
    times = [
        client.get_ms("/v1/decisions/summary", span | {"tenant": "tenant-03"})[0]
        for _ in range(ROUNDS)
    ]
    measure(report, "a day's summary by hour", times, by="nothing, of one tenant")
    report.bars.append(Bar("a day's summary by hour, p95", worst, "ms", SUMMARY_BAR_MS, False))


def measure_details(report: Report, client: Client, ids: Sequence[Any]) -> None:
    answers = [client.get_ms(f"/v1/decisions/{decision_id}") for decision_id in ids]
    chains = sum(len(answer.json()["chain"]) for _, answer in answers) / len(answers)
    times = [took for took, _ in answers]
    p95 = measure(report, "one decision", times, links_of_its_chain=chains)
    report.bars.append(Bar("one decision, p95", p95, "ms", DETAIL_BAR_MS, False))


def measure_console(report: Report, base_url: str, key: str) -> None:
    """Only where there is a console."""
    with httpx.Client(base_url=base_url, timeout=120, follow_redirects=True) as http:
        form = http.get("/console")
        if form.status_code == httpx.codes.NOT_FOUND:
            report.rows.append({"what": "the console's overview", "there": False})
            return
        hidden = dict(re.findall(r'<input[^>]*name="(\w+)"[^>]*value="([^"]*)"', form.text))
        http.post(str(form.url), data=hidden | {"key": key}).raise_for_status()
        times = []
        for _ in range(ROUNDS):
            begin = time.perf_counter()
            answer = http.get("/console")
            times.append((time.perf_counter() - begin) * 1e3)
            answer.raise_for_status()
        assert "sign-in" not in str(answer.url), "the console did not let us in"
        p95 = measure(report, "the console's overview", times, answer_bytes=len(answer.content))
        report.bars.append(Bar("the console's overview, p95", p95, "ms", CONSOLE_BAR_MS, False))


async def prepare(url: str, rows: int) -> tuple[Loaded, str]:
    await upgrade(url)
    now = datetime.now(UTC)
    database = Database(url, pool_connections=1)
    await ensure_partitions(database, now)
    for age in range(decisions_rows.DAYS + 1):
        await ensure_day(database, (now - timedelta(days=age)).date())
    await database.close()
    return await decisions_rows.load(url, rows, now), await new_key(url)


async def some_ids(url: str, loaded: Loaded) -> list[Any]:
    """Of rows of any age; half of them in a chain."""
    chance = random.Random(7)
    numbers = [chance.randrange(loaded.rows - 10) for _ in range(DETAILS)]
    numbers[::2] = [number // 10 * 10 + 9 for number in numbers[::2]]
    connection = await asyncpg.connect(url)
    try:
        return await loaded.ids(connection, numbers)
    finally:
        await connection.close()


@contextmanager
def serving(url: str, directory: Path) -> Iterator[str]:
    ready = directory / "ready.json"
    command = [sys.executable, "-m", "app.cli", "serve", "--listen", "127.0.0.1:0"]
    command += ["--ready-file", str(ready), "--log-level", "error"]
    env = os.environ | {"NEXUSKV_DATABASE_URL": url, "NEXUSKV_HANDLE_SECRET": SECRET}
    env |= {"NEXUSKV_SPOOL_DIR": str(directory / "spool")}
    process = subprocess.Popen(command, env=env)
    try:
        yield wait_for(ready)["base_url"]
    finally:
        process.terminate()
        process.wait(timeout=60)


def measure_reading(url: str, report: Report, rows: int, directory: Path) -> None:
    print(f"loading {rows:,} decisions ...", flush=True)
    loaded, key = asyncio.run(prepare(url, rows))
    report.rows.append(
        {"what": "loaded", **loaded.counts, **{f"{k}_s": v for k, v in loaded.took_s.items()}}
    )
    print(f"  {report.rows[-1]}", flush=True)
    with serving(url, directory) as base_url:
        client = Client(base_url, key)
        measure_pages(report, client, loaded)
        measure_summaries(report, client, loaded)
        measure_details(report, client, asyncio.run(some_ids(url, loaded)))
        measure_console(report, base_url, key)
        client.close()


def main() -> None:
    asked = argparse.ArgumentParser(description=__doc__)
    asked.add_argument("--rows", type=int, default=5_000_000, help="decisions to read among")
    asked.add_argument(
        "--rounds", type=int, default=60, help="of lookups with and without recording"
    )
    asked.add_argument("--sustained-s", type=int, default=60, help="how long the rate is held")
    asked.add_argument("--only", choices=("read", "write"), help="one part")
    options = asked.parse_args()
    report = Report("decisions", [" ".join(["make bench-decisions", *sys.argv[1:]])])
    if options.only != "read":
        measure_writing(report, rounds=options.rounds, sustained_s=options.sustained_s)
    if options.only != "write":
        # On disk: ten gigabytes of it. Without fsync, as nothing here waits for a disk to write.
        with tempfile.TemporaryDirectory(prefix="nexuskv-bench-") as scratch:
            directory = Path(scratch)
            directory.chmod(0o711)
            with EmbeddedPostgres(directory / "postgres", durable=False) as postgres:
                measure_reading(postgres.url, report, options.rows, directory)
    print(f"\n{report.write()}")
    report.show()


if __name__ == "__main__":
    main()
