"""Rows of `benchmarks.core` over HTTP: `/indexer/query` beside `python -m dynamo.indexer`.

Both read the same events from the same sockets, one of each engine, and answer the same prompts of
2,048 tokens. Each is pinned to the core of whoever is measured; load, events and Postgres are on
the other one.
"""

import asyncio
import json
import math
import os
import socket
import sys
import tempfile
import time
import urllib.error
import urllib.request
from array import array
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import zmq

from app.db.embedded import EmbeddedPostgres
from benchmarks import core_work as work
from benchmarks import service
from benchmarks.core_frames import frames
from benchmarks.core_nexus import Nexus
from benchmarks.core_peers import PeerError, environment
from benchmarks.core_table import DifferentAnswerError, Plan, Table, say

PACKED_BAR, JSON_BAR = 1.5, 0.5
BLOCKS: Final = 100_000
QUERY_BLOCKS: Final = 128
BODIES: Final = 256
CHECKED: Final = 32
ROUND_S: Final = 1.0
READY_S: Final = 60.0
MODEL: Final = "bench-model"
PATH: Final = "/indexer/query"
PACKED: Final = "application/octet-stream"
JSON: Final = "application/json"


def measure_http(table: Table, plan: Plan) -> None:
    bars = {
        "packed": "/indexer/query, 2,048 tokens packed, requests/s of dynamo.indexer",
        "JSON": "/indexer/query, 2,048 tokens as JSON, requests/s of dynamo.indexer",
    }
    if "dynamo" not in plan.names:
        return
    try:
        python = environment("dynamo", plan.wheels)
        with tempfile.TemporaryDirectory() as scratch:
            Path(scratch).chmod(0o711)
            with EmbeddedPostgres(Path(scratch) / "data") as postgres:
                best = _measured(table, postgres.url, Path(scratch), python, plan.rounds)
    except (PeerError, OSError) as error:
        for name in bars.values():
            table.absent(name, f"not built: {error}")
        return
    table.at_least(bars["packed"], best["packed"] / best["dynamo"], PACKED_BAR)
    table.at_least(bars["JSON"], best["JSON"] / best["dynamo"], JSON_BAR)


def _measured(table: Table, url: str, scratch: Path, python: Path, rounds: int) -> dict[str, float]:
    key = asyncio.run(service.prepare(url))
    requests = work.synthetic(BLOCKS)
    with _dynamo(python, scratch) as dynamo, _nexus(url, scratch) as ours, zmq.Context() as context:
        sockets = [_publisher(context) for _ in range(work.WORKERS)]
        for worker, (_, endpoint) in enumerate(sockets):
            body = {
                "instance_id": worker,
                "endpoint": endpoint,
                "model_name": MODEL,
                "block_size": work.BLOCK_TOKENS,
                "dp_rank": 0,
            }
            _post(f"{dynamo[1]}/register", json.dumps(body).encode(), JSON, "")
            _post(f"{ours[1]}/indexer/register", json.dumps(body).encode(), JSON, key)
        _publish(requests, [one for one, _ in sockets])
        prompts = _prompts(requests)
        _wait_until_equal(requests, prompts, (f"{dynamo[1]}/query", f"{ours[1]}{PATH}"), key)
        say("over HTTP: both know all events, and answer alike")
        packed_path = f"{PATH}?model_name={MODEL}"
        asked = {
            "dynamo": (dynamo, [_request("/query", _json(each), JSON, "") for each in prompts]),
            "JSON": (ours, [_request(PATH, _json(each), JSON, key) for each in prompts]),
            "packed": (ours, [_request(packed_path, each.tobytes(), PACKED, key)
                              for each in prompts]),
        }  # fmt: skip
        best, cpu_us = dict.fromkeys(asked, 0.0), dict.fromkeys(asked, math.inf)
        for number in range(rounds):
            for name, ((pid, base_url), bodies) in asked.items():
                port = int(base_url.rpartition(":")[2])
                found = service.load(port, ROUND_S, bodies, pid)
                if found["failures"]:
                    raise PeerError(f"{name}: {found['failures']} answers were not 200")
                best[name] = max(best[name], found["requests_per_s"])
                cpu_us[name] = min(cpu_us[name], found["server_cpu_us"])
                table.row("over HTTP", system=name, round=number, **found)
            say(f"  round {number + 1} of {rounds}: "
                + ", ".join(f"{name} {value:,.0f}/s" for name, value in best.items()))  # fmt: skip
        for name, value in best.items():
            table.row("/indexer/query, 2,048 tokens", system=name, requests_per_s=value,
                      server_cpu_us=cpu_us[name])  # fmt: skip
        for one, _ in sockets:
            one.close(linger=0)
    return best


# ---- servers


@contextmanager
def _dynamo(python: Path, scratch: Path) -> Iterator[tuple[int, str]]:
    port = _free_port()
    # One indexer thread: more of them on one core only take turns.
    command = [str(python), "-m", "dynamo.indexer", "--port", str(port), "--threads", "1"]
    with (
        (scratch / "dynamo.log").open("wb") as log,
        service.server(command, stdout=log) as process,
    ):
        base_url = f"http://127.0.0.1:{port}"
        end = time.monotonic() + READY_S
        while not _healthy(f"{base_url}/health"):
            if process.poll() is not None or time.monotonic() > end:
                raise PeerError("dynamo.indexer did not start")
            time.sleep(0.1)
        yield process.pid, base_url


@contextmanager
def _nexus(url: str, scratch: Path) -> Iterator[tuple[int, str]]:
    ready = scratch / "ready.json"
    command = [sys.executable, "-m", "app.cli", "serve", "--listen", "127.0.0.1:0"]
    command += ["--ready-file", str(ready), "--log-level", "warning"]
    env = os.environ | {
        "NEXUSKV_DATABASE_URL": url,
        "NEXUSKV_HANDLE_SECRET": service.SECRET,
        "NEXUSKV_SPOOL_DIR": str(scratch / "spool"),
        "NEXUSKV_ENGINE_HOSTS": "127.0.0.1",
        # Nothing more is said after the load.
        "NEXUSKV_ENGINE_STALE_S": "3600",
    }
    with service.server(command, env=env) as process:
        yield process.pid, service.wait_for(ready)["base_url"]


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as bound:
        return int(bound.getsockname()[1])


def _healthy(url: str) -> bool:
    try:
        with urllib.request.urlopen(url, timeout=5) as answer:
            return answer.status == 200
    except OSError:
        return False


# ---- events


def _publisher(context: zmq.Context[Any]) -> tuple[zmq.Socket[Any], str]:
    """One that sees who subscribes, so that nothing is sent before both have."""
    one = context.socket(zmq.XPUB)
    one.setsockopt(zmq.XPUB_VERBOSE, 1)
    one.setsockopt(zmq.SNDHWM, 0)
    port = one.bind_to_random_port("tcp://127.0.0.1")
    return one, f"tcp://127.0.0.1:{port}"


def _publish(requests: Sequence[work.Request], sockets: Sequence[zmq.Socket[Any]]) -> None:
    for worker, one in enumerate(sockets):
        for number in range(2):
            if not one.poll(int(READY_S * 1000)):
                raise PeerError(f"{2 - number} of the two do not listen to engine {worker}")
            one.recv()
    numbers = [0] * len(sockets)
    for request in requests:
        for worker, frame in frames(request, work.BLOCK_TOKENS):
            sequence = numbers[worker].to_bytes(8, "big")
            sockets[worker].send_multipart([b"", sequence, frame])
            numbers[worker] += 1


# ---- queries


def _prompts(requests: Sequence[work.Request]) -> list[array]:
    queries = work.queries(requests, QUERY_BLOCKS, "hit")[:BODIES]
    return [work.chain_tokens(query.chain, work.BLOCK_TOKENS) for query in queries]


def _json(prompt: array) -> bytes:
    return json.dumps({"model_name": MODEL, "token_ids": prompt.tolist()}).encode()


def _request(path: str, body: bytes, media_type: str, key: str) -> bytes:
    return (
        f"POST {path} HTTP/1.1\r\nhost: 127.0.0.1\r\nauthorization: Bearer {key}\r\n"
        f"content-type: {media_type}\r\ncontent-length: {len(body)}\r\n\r\n"
    ).encode() + body


def _post(url: str, body: bytes, media_type: str, key: str) -> Any:
    headers = {"authorization": f"Bearer {key}", "content-type": media_type}
    try:
        with urllib.request.urlopen(
            urllib.request.Request(url, body, headers), timeout=READY_S
        ) as answer:
            return json.loads(answer.read())
    except urllib.error.HTTPError as error:
        text = error.read(500).decode(errors="replace")
        raise PeerError(f"{url} answered {error.code}: {text}") from error


def _wait_until_equal(
    requests: Sequence[work.Request], prompts: Sequence[array], urls: Sequence[str], key: str
) -> None:
    """Events take their time; then both have to say what our index in this process says."""
    index = Nexus()
    index.apply(index.prepare(requests, work.BLOCK_TOKENS, "keys"))
    ask = index.ask("tokens")
    expected = [
        {str(worker): blocks * work.BLOCK_TOKENS for worker, blocks in
         index.answer(ask(prompt)).items()}
        for prompt in prompts[:CHECKED]
    ]  # fmt: skip
    for url in urls:
        bodies = [(url, _json(each), JSON) for each in prompts[:CHECKED]]
        if url.endswith(PATH):
            packed = f"{url}?model_name={MODEL}"
            bodies += [(packed, each.tobytes(), PACKED) for each in prompts[:CHECKED]]
        end = time.monotonic() + READY_S
        while True:
            found = [_scores(_post(*body, key)) for body in bodies]
            wanted = expected * (len(bodies) // len(expected))
            if found == wanted:
                break
            if time.monotonic() > end:
                pairs = zip(wanted, found, strict=True)
                number, pair = next((at, two) for at, two in enumerate(pairs) if two[0] != two[1])
                raise DifferentAnswerError(
                    f"{url}, query {number}: {pair[0]} is right, not {pair[1]}"
                )
            time.sleep(0.25)


def _scores(answer: Any) -> dict[str, int]:
    return {instance: ranks["0"] for instance, ranks in answer["scores"].items()}
