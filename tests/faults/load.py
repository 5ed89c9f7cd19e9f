"""Requests at full speed over raw sockets, and every decision id that an answer acknowledged.

A `Load` goes on whatever happens to the service: a connection that breaks is opened again, at the
address of the service as it is then. What was sent and not answered was promised to nobody.
"""

import json
import socket
import threading
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Self
from urllib.parse import urlsplit

from tests.fixtures.wire import estimate_body, lookup_body, materialize_body
from tests.process.waiting import POLL_S, until

ANSWER_S = 30.0
PIPELINED = 8
_WIDE = "\N{GRINNING FACE}" * 512


def fat_body(tenant: str) -> dict[str, Any]:
    """A lookup without a match whose decision takes some 25 KB."""
    identity = {"kind": "k", "revision": _WIDE, "fingerprint": _WIDE}
    return lookup_body(
        tenant,
        model_identity={
            "model_revision": _WIDE,
            "adapter_revision": _WIDE,
            "execution_profile": _WIDE,
        },
        input_identity={
            "tokenizer": identity | {"kind": "tokenizer"},
            "template": identity | {"kind": "template"},
            "multimodal_preprocessing": identity | {"kind": "multimodal_preprocessing"},
        },
        tokens=[1],
    )


class Wire:
    """One connection with a key; answers come in the order of the requests."""

    def __init__(self, url: str, key: str) -> None:
        parts = urlsplit(url)
        self._key = key.encode()
        self._socket = socket.create_connection((parts.hostname, parts.port), timeout=ANSWER_S)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._reader = self._socket.makefile("rb")

    def request(self, operation: str, body: bytes) -> bytes:
        return (
            b"POST /locus/v1/%b HTTP/1.1\r\nhost: 127.0.0.1\r\nauthorization: Bearer %b\r\n"
            b"content-length: %d\r\n\r\n%b" % (operation.encode(), self._key, len(body), body)
        )

    def send(self, data: bytes) -> None:
        self._socket.sendall(data)

    def answer(self) -> tuple[int, dict[str, str], bytes]:
        """Raises ConnectionError when it ends before the whole answer has come."""
        line = self._reader.readline()
        if not line:
            raise ConnectionResetError
        headers = {}
        while (head := self._reader.readline()) not in (b"\r\n", b""):
            name, _, value = head.decode().rstrip().partition(": ")
            headers[name.lower()] = value
        length = int(headers.get("content-length", -1)) if head else -1
        body = self._reader.read(length) if length >= 0 else b""
        if length < 0 or len(body) < length:
            raise ConnectionResetError
        return int(line.split()[1]), headers, body

    def ask(self, operation: str, body: dict[str, Any]) -> tuple[int, dict[str, str], Any]:
        self.send(self.request(operation, json.dumps(body).encode()))
        status, headers, answer = self.answer()
        return status, headers, json.loads(answer)

    def close(self) -> None:
        self._reader.close()
        self._socket.close()


class Acknowledged:
    """Decision ids by what was promised of them, from all threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.promised: dict[str, str] = {}
        self.newest = ""
        self.statuses: Counter[tuple[str, int]] = Counter()
        # Materializations that were answered with a receipt: each has an outcome as well.
        self.receipts: set[str] = set()

    def take(self, operation: str, status: int, headers: dict[str, str]) -> None:
        decision_id = headers.get("x-nexuskv-decision-id")
        with self._lock:
            self.statuses[operation, status] += 1
            if decision_id is None:
                return
            assert decision_id not in self.promised, "one id for two answers"
            self.newest = self.promised[decision_id] = headers["x-nexuskv-durability"]
            if operation == "materialize" and status == 200:
                self.receipts.add(decision_id)

    def kept(self) -> set[str]:
        with self._lock:
            return {one for one, how in self.promised.items() if how != "lost"}

    def lost(self) -> set[str]:
        with self._lock:
            return {one for one, how in self.promised.items() if how == "lost"}

    def __len__(self) -> int:
        return len(self.promised)


class Load:
    """Threads that look up, hit and miss, and one that materializes, until `stop` or exit."""

    def __init__(
        self,
        url: Callable[[], str],
        key: str,
        tenant: str,
        *,
        threads: int = 2,
        materialize: bool = True,
        bodies: list[dict[str, Any]] | None = None,
        acknowledged: Acknowledged | None = None,
    ) -> None:
        self._url = url
        self._key = key
        self._tenant = tenant
        found = bodies or [lookup_body(tenant), lookup_body(tenant, tokens=[1, 2, 3])]
        self._bodies = [json.dumps(body).encode() for body in found]
        self._ending = threading.Event()
        self._lock = threading.Lock()
        self._answers = 0
        work: list[Callable[[Wire], None]] = [self._look_up] * threads
        if materialize:
            work.append(self._materialize)
        self._threads = [threading.Thread(target=self._run, args=(one,)) for one in work]
        self.failures: list[BaseException] = []
        self.acknowledged = Acknowledged() if acknowledged is None else acknowledged

    def __enter__(self) -> Self:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_exc: object) -> None:
        self.stop()
        assert not self.failures, self.failures

    def stop(self) -> None:
        self._ending.set()
        for thread in self._threads:
            thread.join()

    def more(self, count: int, within_s: float = 30.0) -> None:
        """Returns once so many more answers have come."""
        begun = self._answers
        until(
            lambda: self._answers >= begun + count or self.failures,
            f"{count} more answers",
            within_s=within_s,
        )

    def _run(self, work: Callable[[Wire], None]) -> None:
        try:
            while not self._ending.is_set():
                with suppress(ConnectionError):
                    wire = Wire(self._url(), self._key)
                    try:
                        while not self._ending.is_set():
                            work(wire)
                    finally:
                        wire.close()
                self._ending.wait(POLL_S)
        except BaseException as error:  # noqa: BLE001 - the test says what it was
            self.failures.append(error)

    def _take(self, operation: str, status: int, headers: dict[str, str]) -> None:
        self.acknowledged.take(operation, status, headers)
        with self._lock:
            self._answers += 1

    def _look_up(self, wire: Wire) -> None:
        sent = [self._bodies[n % len(self._bodies)] for n in range(PIPELINED)]
        wire.send(b"".join(wire.request("lookup", body) for body in sent))
        for _ in sent:
            status, headers, answer = wire.answer()
            # A process that has just begun may not know its keys yet.
            assert status == 200 or (status == 503 and b"is starting" in answer), answer
            self._take("lookup", status, headers)

    def _materialize(self, wire: Wire) -> None:
        """Lookup, estimate and materialize, as far as each is answered with what the next needs."""
        status, headers, found = wire.ask("lookup", lookup_body(self._tenant))
        self._take("lookup", status, headers)
        if status != 200 or found["match_result"] is None:
            return
        handle = found["match_result"]["validation"]["source_handle"]
        status, headers, option = wire.ask("estimate", estimate_body(handle))
        self._take("estimate", status, headers)
        if status != 200:
            self._ending.wait(POLL_S)
            return
        status, headers, _ = wire.ask("materialize", materialize_body(option))
        self._take("materialize", status, headers)
