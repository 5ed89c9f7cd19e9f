"""A closed-loop HTTP load: keep-alive connections on one core, requests prepared beforehand.

Run as its own process: `python -m benchmarks.load HOST PORT SECONDS CONNECTIONS CORE < requests`.
Standard input holds the requests, each after its length as 4 bytes; standard output gets one JSON
object. Raw sockets, because a client library would cost more than the server under test.
"""

import json
import os
import resource
import selectors
import socket
import struct
import sys
import time


class _Connection:
    __slots__ = ("buffer", "needed", "next_request", "sent_at", "sock")

    def __init__(self, address: tuple[str, int], next_request: int) -> None:
        self.sock = socket.create_connection(address, timeout=10)
        self.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.buffer = b""
        self.needed = 0
        self.next_request = next_request
        self.sent_at = 0.0


def run(
    host: str, port: int, duration_s: float, connections: int, requests: list[bytes]
) -> dict[str, float]:
    """Requests a second and latency quantiles (us) of answers received within `duration_s`."""
    selector = selectors.EpollSelector()
    opened = [_Connection((host, port), i) for i in range(connections)]
    latencies: list[float] = []
    failures = 0
    clock = time.perf_counter
    begin = clock()
    end = begin + duration_s
    for connection in opened:
        selector.register(connection.sock, selectors.EVENT_READ, connection)
        connection.sent_at = clock()
        connection.sock.sendall(requests[connection.next_request % len(requests)])
    outstanding = len(opened)
    while outstanding:
        for key, _ in selector.select(10):
            connection = key.data
            data = connection.sock.recv(262_144)
            if not data:
                raise ConnectionError("the server closed a connection")
            data = connection.buffer + data if connection.buffer else data
            head_end = data.find(b"\r\n\r\n")
            if head_end < 0:
                connection.buffer = data
                continue
            at = data.find(b"content-length: ", 0, head_end)
            length = int(data[at + 16 : data.find(b"\r", at)])
            if len(data) < head_end + 4 + length:
                connection.buffer = data
                continue
            connection.buffer = b""
            now = clock()
            latencies.append(now - connection.sent_at)
            # A lookup that hits nothing is a 200 too, and not what is measured.
            failures += not data.startswith(b"HTTP/1.1 200") or data.endswith(b":null}")
            if now >= end:
                outstanding -= 1
                selector.unregister(connection.sock)
                connection.sock.close()
                continue
            connection.next_request += connections
            connection.sent_at = now
            connection.sock.sendall(requests[connection.next_request % len(requests)])
    elapsed_s = clock() - begin
    latencies.sort()
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return {
        "requests": len(latencies),
        "failures": failures,
        "requests_per_s": len(latencies) / elapsed_s,
        "p50_us": latencies[len(latencies) // 2] * 1e6,
        "p99_us": latencies[int(len(latencies) * 0.99)] * 1e6,
        "load_cpu_share": (usage.ru_utime + usage.ru_stime) / elapsed_s,
    }


def _read_requests() -> list[bytes]:
    raw, requests, at = sys.stdin.buffer.read(), [], 0
    while at < len(raw):
        (length,) = struct.unpack_from(">I", raw, at)
        requests.append(raw[at + 4 : at + 4 + length])
        at += 4 + length
    return requests


def main() -> None:
    host, port, duration_s, connections, core = sys.argv[1:6]
    os.sched_setaffinity(0, {int(core)})
    result = run(host, int(port), float(duration_s), int(connections), _read_requests())
    print(json.dumps(result))


if __name__ == "__main__":
    main()
