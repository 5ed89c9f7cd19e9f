"""The worker benchmark: `make bench-worker` -> `.bench/worker.json`.

Remote: 64 MiB from one worker process to another, as a whole transfer (order over HTTP, token,
fetch over the data port, checksum at the destination, sink complete), beside a plain `sendfile`
and `recv_into` pair of two processes over loopback. Local: 64 MiB from a payload into a sink of the
same worker, as a whole transfer again, beside one memoryview assignment between two halves of a
memfd. Rounds are interleaved; a ratio is that of the medians. What is compared on both sides is the
time from the request to the last byte being in place.
"""

import argparse
import json
import mmap
import os
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import httpx

from app.clock import SystemClock
from app.transfer.tokens import Direction, Grant, TokenKeys
from benchmarks.materialize import measure_materialize
from benchmarks.policy import measure_policy
from benchmarks.report import Bar, Report

PAYLOAD_BYTES = 64 * 1024 * 1024
DRAM_BYTES = 4 * PAYLOAD_BYTES
SECRET = "benchmark-" + "0" * 32
TENANT = "bench"
KEYS = TokenKeys([SECRET])
D = Direction


class Node:
    """One worker process."""

    def __init__(self, node: str, ready: dict[str, Any]) -> None:
        self.node = node
        self.url = ready["url"]
        self.data_address = ready["data_address"]
        self.http = httpx.Client(timeout=120, trust_env=False)

    def ask(self, method: str, path: str, grant: Grant, **options: Any) -> dict[str, Any]:
        answer = self.http.request(
            method, self.url + path, headers={"authorization": f"Bearer {signed(grant)}"}, **options
        )
        answer.raise_for_status()
        found: dict[str, Any] = answer.json()
        return found

    def put(self, payload_id: str, data: bytes) -> None:
        grant = Grant(self.node, TENANT, D.PUT_PAYLOAD, payload_id)
        self.ask("PUT", f"/v1/payloads/{payload_id}", grant, content=data)

    def new_sink(self) -> str:
        body = {"payload_bytes": PAYLOAD_BYTES, "engine_id": "bench", "engine_generation": 1}
        made = self.ask("POST", "/v1/sinks", Grant(self.node, TENANT, D.CREATE_SINK), json=body)
        return str(made["sink_id"])

    def consume(self, sink_id: str) -> None:
        body = {"engine_id": "bench", "engine_generation": 1}
        grant = Grant(self.node, TENANT, D.FINISH_SINK, "", sink_id)
        self.ask("POST", f"/v1/sinks/{sink_id}:consume", grant, json=body)

    def pull(self, source: "Node", sink_id: str, session_id: str) -> dict[str, Any]:
        order = {
            "session_id": session_id,
            "source": {
                "worker": source.node,
                "payload_id": "p",
                "data_address": source.data_address,
                "token": signed(
                    Grant(
                        source.node,
                        TENANT,
                        D.FETCH,
                        "p",
                        sink_id,
                        target_worker=self.node,
                        data_address=source.data_address,
                    )
                ),
            },
            "backend": "baseline_transport",
            "target_sink_id": sink_id,
        }
        grant = Grant(self.node, TENANT, D.TRANSFER, "p", sink_id)
        done = self.ask("POST", "/v1/transfers", grant, json=order)
        assert done["status"] == "completed", done
        return done


def signed(grant: Grant) -> str:
    return KEYS.sign(grant, now_s=SystemClock().now_us() // 1_000_000, ttl_s=300)


@contextmanager
def worker(node: str, scratch: Path) -> Iterator[Node]:
    ready = scratch / f"{node}.json"
    command = [sys.executable, "-m", "app.cli", "worker", "--node", node]
    command += ["--dram-bytes", str(DRAM_BYTES), "--ready-file", str(ready)]
    command += ["--log-level", "warning"]
    env = os.environ | {"NEXUSKV_WORKER_SECRET": SECRET}
    process = subprocess.Popen(command, env=env, stderr=subprocess.DEVNULL)
    try:
        end = time.monotonic() + 60
        while not ready.exists():
            assert process.poll() is None, "the worker did not start"
            assert time.monotonic() < end, "the worker is not ready"
            time.sleep(0.02)
        running = Node(node, json.loads(ready.read_text()))
        with running.http:
            yield running
    finally:
        process.terminate()
        process.wait(timeout=60)


@contextmanager
def plain_pair() -> Iterator[Callable[[], None]]:
    """One call: ask the other process, and receive everything into a memfd's mapping."""
    command = [sys.executable, "-m", "benchmarks.pair", str(PAYLOAD_BYTES)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    port = int(process.stdout.readline())
    with ExitStack() as held:
        held.callback(process.wait, 60)
        connection = held.enter_context(socket.create_connection(("127.0.0.1", port)))
        view = held.enter_context(mapped(PAYLOAD_BYTES))

        def receive() -> None:
            connection.sendall(b"?")
            place = 0
            while place < PAYLOAD_BYTES:
                place += connection.recv_into(view[place:])

        yield receive
    process.stdout.close()


@contextmanager
def mapped(length: int) -> Iterator[memoryview]:
    """A memfd's mapping, every page of it touched."""
    fd = os.memfd_create("bench", os.MFD_CLOEXEC)
    os.ftruncate(fd, length)
    area = mmap.mmap(fd, length)
    with memoryview(area) as view:
        view[:] = bytes(length)
        yield view
    area.close()
    os.close(fd)


def measured(work: Callable[[], Any]) -> float:
    begin = time.perf_counter()
    work()
    return time.perf_counter() - begin


def compare(
    report: Report,
    what: str,
    plain: Callable[[], None],
    *,
    rounds: int,
    target: Node,
    source: Node,
) -> float:
    """Plain time over ours, of the medians of interleaved rounds; the first one is not counted."""
    plain_s, ours_s, inside_s = [], [], []
    for number in range(rounds + 1):
        sink_id = target.new_sink()
        plain_s.append(measured(plain))
        begin = time.perf_counter()
        done = target.pull(source, sink_id, f"{what.replace(' ', '-')}-{number}")
        ours_s.append(time.perf_counter() - begin)
        inside_s.append(done["transfer_us"] / 1e6)
        target.consume(sink_id)
    medians = [statistics.median(found[1:]) for found in (plain_s, ours_s, inside_s)]
    report.rows.append(
        {
            "what": what,
            "payload_bytes": PAYLOAD_BYTES,
            "rounds": rounds,
            "plain_ms": medians[0] * 1e3,
            "transfer_ms": medians[1] * 1e3,
            "of_which_the_worker_says_ms": medians[2] * 1e3,
            "gib_per_s": PAYLOAD_BYTES / medians[1] / 2**30,
        }
    )
    return medians[0] / medians[1]


def measure_bytes(report: Report, rounds: int) -> None:
    """The bars on moving 64 MiB."""
    with tempfile.TemporaryDirectory() as place, ExitStack() as held:
        first = held.enter_context(worker("bench-a", Path(place)))
        second = held.enter_context(worker("bench-b", Path(place)))
        data = os.urandom(PAYLOAD_BYTES)
        first.put("p", data)
        second.put("p", data)
        with plain_pair() as receive:
            ratio = compare(
                report, "worker to worker", receive, rounds=rounds, target=second, source=first
            )
        report.bars.append(
            Bar("64 MiB worker to worker, of sendfile/recv_into", ratio, "ratio", 0.5, True)
        )
        with mapped(2 * PAYLOAD_BYTES) as view:

            def copy() -> None:
                view[PAYLOAD_BYTES:] = view[:PAYLOAD_BYTES]

            ratio = compare(
                report,
                "into a sink on the same node",
                copy,
                rounds=rounds,
                target=second,
                source=second,
            )
        report.bars.append(Bar("64 MiB into a local sink, of memcpy", ratio, "ratio", 0.5, True))


MEASUREMENTS: dict[str, Callable[[Report, int], None]] = {
    "bytes": measure_bytes,
    "materialize": measure_materialize,
    "policy": measure_policy,
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--only", choices=list(MEASUREMENTS))
    options = parser.parse_args()
    report = Report("worker", [" ".join(["make bench-worker", *sys.argv[1:]])])
    for name, measure in MEASUREMENTS.items():
        if options.only in (None, name):
            measure(report, options.rounds)
    report.show()
    print(f"\nwritten to {report.write()}")


if __name__ == "__main__":
    main()
