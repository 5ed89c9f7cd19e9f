"""Materialize through the API into worker sinks, and what the policy costs a request in CPU.

4 KiB payloads, 32 requests in flight, each with an option and a sink of its own: database, API, two
workers and the client share the machine. Every answer must be physical; bytes are compared after.
"""

import asyncio
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import httpx

from app.clock import SystemClock
from app.db.embedded import EmbeddedPostgres
from app.transfer.tokens import Direction, Grant, TokenKeys
from app.transfer.wire import SINK_NAMESPACE
from benchmarks.report import Bar, Report
from benchmarks.service import cpu_s, http_request, lookup_body, prepare, registration, wait_for

SECRET = "benchmark-" + "0" * 32
KEYS = TokenKeys([SECRET])
TENANT = "bench"
TOKENS = 128
PAYLOAD = os.urandom(4096)
IN_FLIGHT = 32
REQUESTS = 1_600
BATCH = 320
CALLS = 100_000
POLICIES = Path(__file__).resolve().parent.parent / "policies"


def measure_materialize(report: Report, _rounds: int) -> None:
    """The bar on many small transfers."""
    with tempfile.TemporaryDirectory() as place, ExitStack() as held:
        scratch = Path(place)
        scratch.chmod(0o711)
        postgres = held.enter_context(EmbeddedPostgres(scratch / "data"))
        key = asyncio.run(prepare(postgres.url))
        pid, url = held.enter_context(api(scratch, postgres.url))
        pids, nodes = {"api": pid}, {}
        for name in ("wa", "wb"):
            pids[name], nodes[name] = held.enter_context(worker(name, scratch, url))
        fleet = Fleet(url, key, nodes, pids)
        fleet.begin()
        durations, asked_s = [], 0.0
        spent: dict[str, float] = {}
        for _ in range(REQUESTS // BATCH):
            requests, sinks = fleet.orders(BATCH)
            before, begin = fleet.cpu_s(), time.perf_counter()
            durations += asyncio.run(load(url, requests))
            asked_s += time.perf_counter() - begin
            for name, used_s in fleet.cpu_s().items():
                spent[name] = spent.get(name, 0.0) + used_s - before[name]
            fleet.check(sinks)
    durations.sort()
    per_s = REQUESTS / asked_s
    report.rows.append(
        {
            "what": "materialize 4 KiB, 32 in flight",
            "requests": REQUESTS,
            "per_s": per_s,
            "p50_ms": durations[len(durations) // 2] * 1e3,
            "p99_ms": durations[int(len(durations) * 0.99)] * 1e3,
            **{f"{name}_cpu_ms": used_s / REQUESTS * 1e3 for name, used_s in spent.items()},
        }
    )
    report.bars.append(Bar("materialize 4 KiB, 32 in flight", per_s, "1/s", 150, True))


class Fleet:
    """One API with two workers, and a client that prepares orders."""

    def __init__(
        self, url: str, key: str, nodes: dict[str, dict[str, Any]], pids: dict[str, int]
    ) -> None:
        self.pids = pids
        self.key = key
        self.nodes = nodes
        self.api = httpx.Client(
            base_url=url, headers={"authorization": f"Bearer {key}"}, timeout=60, trust_env=False
        )
        self.worker = httpx.Client(timeout=60, trust_env=False)
        self.number = 0

    def begin(self) -> None:
        while len(self.api.get("/v1/workers").raise_for_status().json()["items"]) < 2:
            time.sleep(0.02)
        grant = Grant("wa", TENANT, Direction.PUT_PAYLOAD, "p")
        self.ask("PUT", "wa", "/v1/payloads/p", grant, content=PAYLOAD)
        state = registration(0, TOKENS)
        state["entry"]["location"]["locator"] = "node://wa/state/p"
        self.api.post("/v1/states", json={"entries": [state]}).raise_for_status()

    def cpu_s(self) -> dict[str, float]:
        """CPU used so far by each process of ours, and by this one."""
        return {name: cpu_s(pid) for name, pid in (self.pids | {"client": os.getpid()}).items()}

    def ask(
        self, method: str, node: str, path: str, grant: Grant, **options: Any
    ) -> httpx.Response:
        token = KEYS.sign(grant, now_s=SystemClock().now_us() // 1_000_000, ttl_s=300)
        headers = {"authorization": f"Bearer {token}"}
        answer = self.worker.request(
            method, self.nodes[node]["url"] + path, headers=headers, **options
        )
        return answer.raise_for_status()

    def orders(self, count: int) -> tuple[list[bytes], list[str]]:
        """Requests ready to be sent, each with its own option, and their sinks."""
        found = self.api.post("/locus/v1/lookup", content=lookup_body(0, TOKENS)).json()
        hit = found["match_result"]
        engine = {"target_engine_id": "bench", "target_engine_generation": 1}
        schema = {"schema_version": "locus.nexuskv-bridge.v1", "target_id": "t", **engine}
        requests, sinks = [], []
        for _ in range(count):
            self.number += 1
            priced = self.api.post(
                "/locus/v1/estimate",
                json={
                    **schema,
                    "source_handle": hit["validation"]["source_handle"],
                    "source_state": hit["entry"]["identity"]["entry_id"],
                    "source_locator": hit["entry"]["location"]["locator"],
                    "source_tier": hit["entry"]["location"]["tier"],
                    "target_residency": "wb",
                },
            ).raise_for_status()
            sink = self.ask(
                "POST",
                "wb",
                "/v1/sinks",
                Grant("wb", TENANT, Direction.CREATE_SINK),
                json={
                    "payload_bytes": len(PAYLOAD), "engine_id": "bench", "engine_generation": 1,
                },
            ).json()["sink_id"]  # fmt: skip
            body = {
                **schema,
                "option_id": priced.json()["option_id"],
                "option_handle": priced.json()["option_handle"],
                "import_id": f"import-{self.number}",
                "sink_namespace": SINK_NAMESPACE,
                "sink_value": sink,
            }
            body_bytes = json.dumps(body).encode()
            requests.append(http_request("/locus/v1/materialize", body_bytes, self.key))
            sinks.append(sink)
        return requests, sinks

    def check(self, sinks: list[str]) -> None:
        """Every sink holds the bytes; then it gives its memory back."""
        for sink in sinks:
            grant = Grant("wb", TENANT, Direction.READ_SINK, "", sink)
            assert self.ask("GET", "wb", f"/v1/sinks/{sink}/content", grant).content == PAYLOAD
            grant = Grant("wb", TENANT, Direction.FINISH_SINK, "", sink)
            body = {"engine_id": "bench", "engine_generation": 1}
            self.ask("POST", "wb", f"/v1/sinks/{sink}:consume", grant, json=body)


async def load(url: str, requests: list[bytes]) -> list[float]:
    """Every request once, 32 at a time; their durations in seconds."""
    host, _, port = url.removeprefix("http://").partition(":")
    waiting, durations = list(requests), []

    async def client() -> None:
        reader, writer = await asyncio.open_connection(host, int(port))
        while waiting:
            begin = time.perf_counter()
            writer.write(waiting.pop())
            head = await reader.readuntil(b"\r\n\r\n")
            at = head.index(b"content-length: ") + 16
            body = await reader.readexactly(int(head[at : head.index(b"\r", at)]))
            durations.append(time.perf_counter() - begin)
            assert head.startswith(b"HTTP/1.1 200"), body
            assert b'"level":"physical"' in body, body
        writer.close()

    await asyncio.gather(*(client() for _ in range(IN_FLIGHT)))
    return durations


@contextmanager
def api(scratch: Path, database_url: str) -> Iterator[tuple[int, str]]:
    ready = scratch / "api.json"
    env = os.environ | {
        "NEXUSKV_DATABASE_URL": database_url,
        "NEXUSKV_HANDLE_SECRET": SECRET,
        "NEXUSKV_WORKER_SECRET": SECRET,
    }
    command = [sys.executable, "-m", "app.cli", "serve", "--listen", "127.0.0.1:0"]
    command += ["--ready-file", str(ready), "--log-level", "error"]
    with running(command, env) as pid:
        yield pid, wait_for(ready)["base_url"]


@contextmanager
def worker(node: str, scratch: Path, api_url: str) -> Iterator[tuple[int, dict[str, Any]]]:
    ready = scratch / f"{node}.json"
    command = [sys.executable, "-m", "app.cli", "worker", "--node", node, "--api-url", api_url]
    command += ["--dram-bytes", str(64 * 1024 * 1024), "--ready-file", str(ready)]
    env = os.environ | {"NEXUSKV_WORKER_SECRET": SECRET}
    with running([*command, "--log-level", "error"], env) as pid:
        yield pid, wait_for(ready)


@contextmanager
def running(command: list[str], env: dict[str, str]) -> Iterator[int]:
    process = subprocess.Popen(command, env=env, stderr=subprocess.DEVNULL)
    try:
        yield process.pid
    finally:
        process.terminate()
        process.wait(timeout=60)
