"""Plans over HTTP: the whole service on one core, one caller on the other, on real Postgres.

Sixty-four engines on nodes of their own have the prompt, in part, on their devices; sixteen others
may run it, of which some have its beginning. Every answer is checked for what was chosen among.
"""

import asyncio
import http.client
import os
import statistics
import sys
import tempfile
import time
from array import array
from base64 import b64encode
from pathlib import Path
from typing import Any

import msgspec
import orjson

from app.db.embedded import EmbeddedPostgres
from benchmarks.report import Bar, Report
from benchmarks.service import LOAD_CORE, SECRET, prepare, server, wait_for

PROMPT_TOKENS = 8_192
BLOCK_TOKENS = 16
SOURCES, TARGETS = 64, 16
MODEL, TENANT = "bench-model", "bench"
BAR_MS = 2.0


class Caller:
    """One keep-alive connection."""

    def __init__(self, base_url: str, key: str) -> None:
        host, port = base_url.removeprefix("http://").split(":")
        self._connection = http.client.HTTPConnection(host, int(port), timeout=30)
        self._headers = {"authorization": f"Bearer {key}"}

    def send(self, method: str, path: str, body: bytes, kind: str = "application/json") -> Any:
        self._connection.request(method, path, body, self._headers | {"content-type": kind})
        answer = self._connection.getresponse()
        content = answer.read()
        if answer.status >= 300:
            raise RuntimeError(f"{method} {path}: {answer.status} {content[:500]!r}")
        return content


def tokens() -> list[int]:
    return [17 * n % 50_000 for n in range(PROMPT_TOKENS)]


def fill(caller: Caller) -> None:
    """Engines with the prompt's prefix, each a block less than the one before; and a topology."""
    prompt = tokens()
    nodes = [f"node-{n}" for n in range(SOURCES + TARGETS)]
    links = [
        {"source": one, "target": two, "bandwidth_bytes_per_us": 12_500, "latency_us": 20,
         "max_in_flight": 0, "both_ways": False}
        for one in nodes for two in nodes[SOURCES:] if one != two
    ]  # fmt: skip
    document = {
        "schema_version": "nexuskv.topology.v1",
        "nodes": [{"name": name} for name in nodes],
        "engines": [], "links": links, "tiers": [],
    }  # fmt: skip
    caller.send("PUT", "/v1/topology", orjson.dumps(document))
    for number, node in enumerate(nodes):
        of_target = number - SOURCES
        held = PROMPT_TOKENS - BLOCK_TOKENS * number if of_target < 0 else 128 * (of_target % 3)
        told = prompt[:held] or [1] * BLOCK_TOKENS
        spec = {"instance_id": f"engine-{number}", "model": MODEL, "block_tokens": BLOCK_TOKENS,
                "tenants": [TENANT], "node": node}  # fmt: skip
        caller.send("POST", "/v1/engines", orjson.dumps(spec))
        event = {
            "type": "BlockStored", "block_hashes": list(range(1, len(told) // BLOCK_TOKENS + 1)),
            "parent_block_hash": None, "token_ids": told, "block_size": BLOCK_TOKENS,
            "lora_id": None, "medium": "GPU", "lora_name": None,
        }  # fmt: skip
        caller.send(
            "POST",
            f"/v1/engines/engine-{number}/events?sequence=0",
            msgspec.msgpack.encode([1.5, [event], 0]),
            "application/octet-stream",
        )


def request() -> bytes:
    packed = b64encode(array("I", tokens()).tobytes()).decode()
    targets = [
        {"engine_id": f"engine-{SOURCES + n}", "generation": 1, "queue_depth": n % 4,
         "running_prefill_tokens": 2_048 * (n % 4), "running_decode_tokens": 20_000,
         "free_blocks": 10_000}
        for n in range(TARGETS)
    ]  # fmt: skip
    query = {"tenant": TENANT, "model": MODEL, "tokens_b64": packed}
    return orjson.dumps({"query": query, "targets": targets, "deadline_us": 10_000_000})


def measure_http(report: Report, requests: int) -> None:
    """Adds a row and the bar. The database is as good as idle: a plan asks it nothing."""
    with tempfile.TemporaryDirectory() as scratch:
        Path(scratch).chmod(0o711)
        os.sched_setaffinity(0, {LOAD_CORE})
        with EmbeddedPostgres(Path(scratch) / "data") as postgres:
            key = asyncio.run(prepare(postgres.url))
            ready = Path(scratch) / "ready.json"
            command = [sys.executable, "-m", "app.cli", "serve", "--listen", "127.0.0.1:0"]
            command += ["--ready-file", str(ready), "--log-level", "warning"]
            env = os.environ | {"NEXUSKV_DATABASE_URL": postgres.url, "NEXUSKV_SPOOL_DIR": scratch}
            with server(command, env=env | {"NEXUSKV_HANDLE_SECRET": SECRET}):
                caller = Caller(wait_for(ready)["base_url"], key)
                fill(caller)
                report.rows.append(_timed(caller, requests))
    row = report.rows[-1]
    report.bars.append(
        Bar("a plan over HTTP, p50", row["http_p50_ms"], "ms", BAR_MS, at_least=False)
    )


def _timed(caller: Caller, requests: int) -> dict[str, Any]:
    body, took_ms, answer = request(), [], b""
    deadline_s = time.monotonic() + 10
    while orjson.loads(caller.send("POST", "/v1/plans", body))["topology_version"] is None:
        if time.monotonic() > deadline_s:
            raise TimeoutError("the service does not follow the topology")
    for _ in range(requests):
        begin_ns = time.perf_counter_ns()
        answer = caller.send("POST", "/v1/plans", body)
        took_ms.append((time.perf_counter_ns() - begin_ns) / 1e6)
    plan = orjson.loads(answer)
    among = sum(one["count"] for one in plan["excluded"]) + 1
    if among < TARGETS * (SOURCES + 1):
        raise RuntimeError(f"the plan was chosen among {among} alternatives only")
    took_ms.sort()
    return {
        "sources": SOURCES, "targets": TARGETS, "alternatives": among,
        "chosen": plan["action"], "requests": requests, "answer_bytes": len(answer),
        "http_p50_ms": statistics.median(took_ms), "http_p99_ms": took_ms[len(took_ms) * 99 // 100],
    }  # fmt: skip
