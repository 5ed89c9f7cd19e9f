"""Load on a service that is about to end, and what of it must be stored afterwards."""

import socket
import threading
from collections.abc import Callable
from typing import Self

import httpx
from sqlalchemy import text

from app.db.session import Database
from tests.fixtures.database import run_elsewhere
from tests.fixtures.wire import lookup_body

RECEIVE_BYTES = 65_536


class Lookups:
    """Threads that look up until they are refused; `answered` are the decisions promised."""

    def __init__(self, client: Callable[[], httpx.Client], tenant: str, threads: int = 3) -> None:
        self._client = client
        self._body = lookup_body(tenant)
        self._threads = [threading.Thread(target=self._run) for _ in range(threads)]
        self.answered: set[str] = set()
        self.unexpected: list[str] = []

    def __enter__(self) -> Self:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_exc: object) -> None:
        """The service must have ended, or be about to."""
        for thread in self._threads:
            thread.join()

    def _run(self) -> None:
        with self._client() as client:
            while True:
                try:
                    answer = client.post("/locus/v1/lookup", json=self._body)
                except httpx.TransportError:
                    return
                if answer.status_code != 200:
                    self.unexpected.append(answer.text)
                    return
                self.answered.add(answer.headers["x-nexuskv-decision-id"])


class HeldRequest:
    """A request whose head is being served, and whose body is yet to come."""

    def __init__(self, base_url: str, key: str, body: bytes) -> None:
        url = httpx.URL(base_url)
        self.address = (url.host, url.port)
        self._body = body
        self._socket = socket.create_connection(self.address, timeout=30)
        self._socket.sendall(
            b"POST /locus/v1/lookup HTTP/1.1\r\nhost: localhost\r\nexpect: 100-continue\r\n"
            b"authorization: Bearer %b\r\ncontent-length: %d\r\n\r\n" % (key.encode(), len(body))
        )
        # The server says so when the operation asks for the body.
        assert self._socket.recv(RECEIVE_BYTES).startswith(b"HTTP/1.1 100 ")

    def finish(self) -> tuple[int, str]:
        """Status and decision id of the answer, after which the server closes."""
        self._socket.sendall(self._body)
        answer = b""
        with self._socket:
            while chunk := self._socket.recv(RECEIVE_BYTES):
                answer += chunk
        head = answer.partition(b"\r\n\r\n")[0].decode().lower().split("\r\n")
        headers = dict(line.split(": ", 1) for line in head[1:])
        return int(head[0].split(" ")[1]), headers["x-nexuskv-decision-id"]


def refuses(address: tuple[str, int]) -> bool:
    try:
        socket.create_connection(address, timeout=5).close()
    except ConnectionRefusedError:
        return True
    return False


def stored_decisions(database_url: str) -> set[str]:
    async def find() -> set[str]:
        database = Database(database_url, pool_connections=1)
        try:
            async with database.read() as session:
                rows = await session.execute(text("SELECT decision_id FROM decision"))
                return {str(row.decision_id) for row in rows}
        finally:
            await database.close()

    found: set[str] = run_elsewhere(find())
    return found
