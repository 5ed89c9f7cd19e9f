"""The service benchmark: `make bench` -> `.bench/service.json`.

HTTP: the bridge's lookup beside a bare ASGI hello, interleaved in one run; the server is pinned to
one core, load and Postgres to the other. Keys are checked and decisions recorded and counted.
"""

import argparse
import asyncio
import json
import os
import socket
import statistics
import struct
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import asyncpg
import orjson

from app.clock import SystemClock, SystemIds
from app.contract.registration import parse_registration
from app.control.issue import issue_key
from app.control.keys import ALL_TENANTS, Scope
from app.db.embedded import EmbeddedPostgres
from app.db.migrate import upgrade
from app.db.session import Database
from app.decisions.partitions import ensure_partitions
from app.main import create_app
from app.settings import Settings
from benchmarks import matcher
from benchmarks.report import Bar, Report

SERVER_CORE, LOAD_CORE = 0, 1
CONNECTIONS = 32
BODIES = 256
QUERY_TOKENS = 128
LONG_TOKENS = 32_768
LONG_ROUNDS = 200
SECRET = "benchmark-" + "0" * 32
MODEL = {"model_revision": "bench-1", "adapter_revision": None, "execution_profile": "default"}
INPUT = {
    "tokenizer": {"kind": "tokenizer", "revision": "v1", "fingerprint": "tokenizer-v1"},
    "template": {"kind": "template", "revision": "v1", "fingerprint": "template-v1"},
    "multimodal_preprocessing": None,
}


def tokens_of(number: int, count: int) -> list[int]:
    """Distinct prompts: a multiplicative walk through 17 bits."""
    return [(number * 7919 + position * 104_729) % 131_072 for position in range(count)]


def registration(number: int, count: int) -> dict[str, Any]:
    key = {
        "tenant": "bench",
        "namespace": "default",
        "model": "bench-model",
        "engine_family": "vllm",
        "semantic_type": "gqa_kv",
        "tokens": tokens_of(number, count),
        "block_id": None,
        "page_id": None,
    }
    shape = ["32", "tokens", "8", "128"]
    return {
        "reuse_key": {"identity": key},
        "entry": {
            "identity": {
                "key": key,
                "entry_id": f"bench-{count}-{number}",
                "version": {"generation": 1, "lineage": "bench"},
            },
            "descriptor": {
                "schema_version": "nexuskv.contract.v1",
                "descriptor_id": "vllm-gqa-block",
                "engine_family": "vllm",
                "semantic_type": "gqa_kv",
                "granularity": "block",
                "tensor_specs": [
                    {"name": "k_cache", "role": "key", "dtype": "float16", "shape": shape},
                    {"name": "v_cache", "role": "value", "dtype": "float16", "shape": shape},
                ],
                "quantization": {"scheme": "none", "bits": 16, "group_size": 0},
                "layout": {
                    "layout": "paged",
                    "page_tokens": 16,
                    "block_tokens": 16,
                    "packed": False,
                },
                "compatibility_flags": ["exact_reuse", "prefix_reuse", "block_reuse"],
                "transfer_paths": [
                    {
                        "backend": "baseline_transport",
                        "capabilities": ["host_to_store", "store_to_host", "host_to_device"],
                    }
                ],
                "materialization": {
                    "capabilities": ["full", "partial", "fallback_recompute"],
                    "tier_kinds": ["host_dram"],
                    "device_classes": ["cuda"],
                    "buffer_kinds": ["host_pinned"],
                },
                "layout_metadata": {"engine_layout": "NHD"},
            },
            "location": {
                "tier": "host_dram",
                "locator": f"node://node-a/state/bench-{count}-{number}",
            },
            "policy_hint": {
                "reusable": True,
                "admission_hint": "bench",
                "eviction_hint": "retain",
            },
        },
        "validation": {
            "model_identity": MODEL,
            "input_semantic_identity": INPUT,
            "input_fingerprint": f"bench-fingerprint-{count}-{number}",
        },
    }


def lookup_body(number: int, count: int) -> bytes:
    return json.dumps(
        {
            "schema_version": "locus.nexuskv-bridge.v1",
            "nexuskv_schema_version": "nexuskv.contract.v1",
            "identity": {
                "tenant": "bench",
                "namespace": "default",
                "model": "bench-model",
                "engine_family": "vllm",
                "semantic_type": "gqa_kv",
                "tokens": tokens_of(number, count),
            },
            "locus_model_identity": MODEL,
            "locus_input_semantic_identity": INPUT,
            "input_fingerprint": f"bench-fingerprint-{count}-{number}",
        }
    ).encode()


def http_request(path: str, body: bytes, key: str) -> bytes:
    return (
        f"POST {path} HTTP/1.1\r\nhost: 127.0.0.1\r\nauthorization: Bearer {key}\r\n"
        f"content-type: application/json\r\ncontent-length: {len(body)}\r\n\r\n"
    ).encode() + body


@contextmanager
def server(command: list[str], **options: Any) -> Iterator[subprocess.Popen[bytes]]:
    process = subprocess.Popen(
        command,
        preexec_fn=lambda: os.sched_setaffinity(0, {SERVER_CORE}),  # noqa: PLW1509 - one thread
        stderr=subprocess.DEVNULL,
        **options,
    )
    try:
        yield process
    finally:
        process.terminate()
        process.wait(timeout=60)


def cpu_s(pid: int) -> float:
    """As `getrusage` in the process, to the nanosecond: `stat` counts whole ticks."""
    threads = Path(f"/proc/{pid}/task").glob("*/schedstat")
    return sum(int(thread.read_text().split()[0]) for thread in threads) / 1e9


def load(port: int, duration_s: float, requests: list[bytes], pid: int) -> dict[str, Any]:
    framed = b"".join(struct.pack(">I", len(request)) + request for request in requests)
    command = [sys.executable, "-m", "benchmarks.load", "127.0.0.1", str(port)]
    command += [str(duration_s), str(CONNECTIONS), str(LOAD_CORE)]
    before = cpu_s(pid)
    done = subprocess.run(command, input=framed, capture_output=True, check=True)
    result: dict[str, Any] = json.loads(done.stdout)
    result["server_cpu_us"] = (cpu_s(pid) - before) / result["requests"] * 1e6
    return result


async def new_key(url: str) -> str:
    database = Database(url, pool_connections=1)
    new, _ = await issue_key(
        database,
        SystemClock(),
        SystemIds().random_bytes,
        name="benchmark",
        scopes=[Scope.ADMIN],
        tenants=[ALL_TENANTS],
    )
    await database.close()
    return new.text


async def prepare(url: str) -> str:
    await upgrade(url)
    database = Database(url, pool_connections=1)
    await ensure_partitions(database, SystemClock().now())
    await database.close()
    return await new_key(url)


def wait_for(path: Path, deadline_s: float = 60) -> dict[str, Any]:
    end = time.monotonic() + deadline_s
    while time.monotonic() < end:
        with suppress(FileNotFoundError):
            return json.loads(path.read_text())
        time.sleep(0.05)
    raise TimeoutError(f"{path} did not appear")


def post(url: str, body: bytes, key: str) -> bytes:
    headers = {"authorization": f"Bearer {key}", "content-type": "application/json"}
    request = urllib.request.Request(url, body, headers)
    with urllib.request.urlopen(request, timeout=60) as answer:
        return answer.read()


async def stored_decisions(url: str) -> int:
    connection = await asyncpg.connect(url)
    found = await connection.fetchval("SELECT count(*) FROM decision")
    await connection.close()
    return found


def measure_http(url: str, report: Report, *, rounds: int, duration_s: float) -> None:
    key = asyncio.run(prepare(url))
    with tempfile.TemporaryDirectory() as scratch, hello_server() as hello:
        ready = Path(scratch) / "ready.json"
        command = [sys.executable, "-m", "app.cli", "serve", "--listen", "127.0.0.1:0"]
        command += ["--ready-file", str(ready), "--log-level", "warning"]
        env = os.environ | {"NEXUSKV_DATABASE_URL": url, "NEXUSKV_HANDLE_SECRET": SECRET}
        env["NEXUSKV_SPOOL_DIR"] = f"{scratch}/spool"
        with server(command, env=env) as service:
            base_url = wait_for(ready)["base_url"]
            entries = [registration(number, QUERY_TOKENS) for number in range(BODIES)]
            post(f"{base_url}/v1/states", orjson.dumps({"entries": entries}), key)
            bodies = [lookup_body(number, QUERY_TOKENS) for number in range(BODIES)]
            answer = post(f"{base_url}/locus/v1/lookup", bodies[0], key)
            assert orjson.loads(answer)["match_result"]["classification"] == "exact"
            requests = [http_request("/locus/v1/lookup", body, key) for body in bodies]
            asked = compare(
                report,
                hello,
                (service, int(base_url.rpartition(":")[2])),
                requests,
                rounds=rounds,
                duration_s=duration_s,
            )
            report.rows[-1]["answer_bytes"] = len(answer)
        # The service has drained by now: what it answered must be in Postgres, row by row.
        stored = asyncio.run(stored_decisions(url))
    asked += 1
    report.rows.append({"what": "decisions", "answered": asked, "stored": stored})
    report.bars.append(Bar("lookup: decisions lost", asked - stored, "decisions", 0, False))


@contextmanager
def hello_server() -> Iterator[tuple[subprocess.Popen[bytes], int]]:
    with socket.create_server(("127.0.0.1", 0), backlog=2048) as bound:
        bound.set_inheritable(True)
        command = [sys.executable, "-m", "benchmarks.hello", str(bound.fileno())]
        with server(command, pass_fds=(bound.fileno(),)) as process:
            yield process, bound.getsockname()[1]


def compare(
    report: Report,
    hello: tuple[subprocess.Popen[bytes], int],
    service: tuple[subprocess.Popen[bytes], int],
    requests: list[bytes],
    *,
    rounds: int,
    duration_s: float,
) -> int:
    """Interleaved rounds on two (process, port); the answers given by the service."""
    (hello, hello_port), (service, port) = hello, service
    get = [b"GET / HTTP/1.1\r\nhost: 127.0.0.1\r\n\r\n"]
    load(hello_port, 0.5, get, hello.pid)
    asked = load(port, 1.0, requests, service.pid)["requests"]
    ratios, cpu_ratios = [], []
    for number in range(rounds):
        plain = load(hello_port, duration_s, get, hello.pid)
        ours = load(port, duration_s, requests, service.pid)
        assert not ours["failures"], f"{ours['failures']} answers were not 200"
        asked += ours["requests"]
        ratios.append(ours["requests_per_s"] / plain["requests_per_s"])
        cpu_ratios.append(plain["server_cpu_us"] / ours["server_cpu_us"])
        report.rows += [
            {"what": "hello", "round": number, **plain},
            {"what": "lookup", "round": number, **ours, "of_hello": ratios[-1]},
        ]
    report.rows.append(
        {"what": "server CPU, hello / lookup", "ratio": statistics.median(cpu_ratios)}
    )
    report.bars.append(
        Bar("lookup of hello's requests/s", statistics.median(ratios), "ratio", 0.35, True)
    )
    return asked


async def measure_long(url: str, report: Report) -> None:
    """A 32,768-token lookup as an in-process ASGI call, beside orjson.loads of its body."""
    key = await new_key(url)
    app = create_app(Settings(database_url=url, handle_secret=SECRET))
    services = app.state.services
    await services.start()
    await services.loaded.wait()
    await services.registry.register(
        [parse_registration(registration(number, LONG_TOKENS)) for number in range(4)]
    )
    bodies = [lookup_body(number, LONG_TOKENS) for number in range(4)]
    scope = {
        "type": "http",
        "method": "POST",
        "path": "/locus/v1/lookup",
        "headers": [(b"authorization", f"Bearer {key}".encode())],
    }
    calls, loads = [], []
    for number in range(LONG_ROUNDS):
        body = bodies[number % len(bodies)]
        begin = time.perf_counter()
        orjson.loads(body)
        middle = time.perf_counter()
        sent = await call(app, scope, body)
        calls.append(time.perf_counter() - middle)
        loads.append(middle - begin)
        assert sent[0]["status"] == 200
        assert b'"classification":"exact"' in sent[1]["body"][:200]
    await services.stop()
    ratio = statistics.median(calls) / statistics.median(loads)
    report.rows.append(
        {
            "what": f"{LONG_TOKENS}-token lookup",
            "call_us": statistics.median(calls) * 1e6,
            "orjson_loads_us": statistics.median(loads) * 1e6,
            "rounds": LONG_ROUNDS,
        }
    )
    report.bars.append(Bar("32,768-token lookup / orjson.loads", ratio, "ratio", 3.0, False))


async def call(app: Any, scope: dict[str, Any], body: bytes) -> list[dict[str, Any]]:
    sent: list[dict[str, Any]] = []

    async def receive() -> dict[str, Any]:
        return {"type": "http.request", "body": body, "more_body": False}

    async def send(message: dict[str, Any]) -> None:
        sent.append(message)

    await app(scope, receive, send)
    return sent


def measure_matcher(report: Report) -> None:
    result = matcher.run()
    report.rows += [dict(row) for row in result["rows"]]
    report.bars += [
        Bar(bar["name"], bar["value"], bar["unit"], bar["bar"], False) for bar in result["bars"]
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--duration-s", type=float, default=5.0)
    parser.add_argument("--only", choices=["http", "long", "matcher"])
    options = parser.parse_args()
    report = Report("service", [" ".join(["make bench", *sys.argv[1:]])])
    if options.only in (None, "http", "long"):
        with tempfile.TemporaryDirectory() as scratch:
            Path(scratch).chmod(0o711)
            os.sched_setaffinity(0, {LOAD_CORE})
            with EmbeddedPostgres(Path(scratch) / "data") as postgres:
                if options.only != "long":
                    measure_http(
                        postgres.url, report, rounds=options.rounds, duration_s=options.duration_s
                    )
                else:
                    asyncio.run(prepare(postgres.url))
                os.sched_setaffinity(0, {SERVER_CORE})
                if options.only != "http":
                    asyncio.run(measure_long(postgres.url, report))
    if options.only in (None, "matcher"):
        measure_matcher(report)
    report.show()
    print(f"\nwritten to {report.write()}")


if __name__ == "__main__":
    main()
