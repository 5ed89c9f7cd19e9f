"""What stops a transfer at one of its steps: a lock in Postgres, a data port that is held."""

import asyncio
import socket
import struct
import threading
from contextlib import suppress
from typing import Any, Self

import asyncpg
from sqlalchemy.engine import make_url

from tests.fixtures.database import run_elsewhere
from tests.process.waiting import until

PIECE_BYTES = 65_536
HOLD_S = 30.0
_WAITING = (
    "SELECT count(*) FROM pg_stat_activity"
    " WHERE datname = current_database() AND wait_event_type = 'Lock'"
)


class Postgres:
    """A database as a bystander sees it."""

    def __init__(self, url: str) -> None:
        self._dsn = make_url(url).set(drivername="postgresql").render_as_string(hide_password=False)

    async def connect(self) -> asyncpg.Connection:
        return await asyncpg.connect(self._dsn)

    def fetch(self, statement: str, *values: Any) -> list[tuple[Any, ...]]:
        async def run() -> list[tuple[Any, ...]]:
            connection = await self.connect()
            try:
                return [tuple(row) for row in await connection.fetch(statement, *values)]
            finally:
                await connection.close()

        rows: list[tuple[Any, ...]] = run_elsewhere(run())
        return rows

    def wait_for_waiting(self, count: int) -> None:
        """Returns once so many transactions wait for a lock of somebody's."""
        until(lambda: self.fetch(_WAITING)[0][0] >= count, f"{count} wait for a lock")

    def quota_of(self, tenant: str) -> "RowLock":
        """Nothing can be charged to the tenant, or given back, until it is let go."""
        self.fetch("INSERT INTO quota_tenant (tenant) VALUES ($1) ON CONFLICT DO NOTHING", tenant)
        return RowLock(self, "SELECT FROM quota_tenant WHERE tenant = $1 FOR UPDATE", tenant)

    def claims_of(self, tenant: str) -> "RowLock":
        """None of the tenant's options can be consumed, or released, until it is let go."""
        return RowLock(self, "SELECT FROM option_claim WHERE tenant = $1 FOR UPDATE", tenant)


class RowLock:
    """Held from `take` to `let_go`."""

    def __init__(self, postgres: Postgres, statement: str, tenant: str) -> None:
        self._postgres = postgres
        self._statement = statement
        self._tenant = tenant
        self._taken = threading.Event()
        self._end = threading.Event()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._hold()))

    def take(self) -> Self:
        self._thread.start()
        assert self._taken.wait(HOLD_S)
        return self

    def let_go(self) -> None:
        self._end.set()
        self._thread.join()

    async def _hold(self) -> None:
        connection = await self._postgres.connect()
        try:
            async with connection.transaction():
                assert await connection.fetch(self._statement, self._tenant)
                self._taken.set()
                await asyncio.to_thread(self._end.wait, HOLD_S)
        finally:
            await connection.close()


class Hold:
    """One payload that is let through up to `after_bytes`, and then not until `go_on` is set."""

    def __init__(self, after_bytes: int) -> None:
        self.after_bytes = after_bytes
        self.reached = threading.Event()
        self.go_on = threading.Event()

    def wait_reached(self) -> None:
        assert self.reached.wait(HOLD_S)

    def pass_on(self, passed: int) -> None:
        if passed >= self.after_bytes:
            self.reached.set()
            self.go_on.wait(HOLD_S)


class Relay:
    """Stands before a worker's data port, whose `upstream` may change when that starts again."""

    def __init__(self) -> None:
        self.upstream = ""
        self._holds: dict[str, Hold] = {}
        self._listening = socket.create_server(("127.0.0.1", 0))
        self._accepting = threading.Thread(target=self._accept)
        self._accepting.start()

    @property
    def address(self) -> str:
        host, port = self._listening.getsockname()
        return f"{host}:{port}"

    def hold(self, payload_id: str, after_bytes: int) -> Hold:
        held = self._holds[payload_id] = Hold(after_bytes)
        return held

    def close(self) -> None:
        for held in self._holds.values():
            held.go_on.set()
        self._listening.shutdown(socket.SHUT_RDWR)
        self._accepting.join()
        self._listening.close()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                near, _ = self._listening.accept()
                threading.Thread(target=self._relay, args=(near,), daemon=True).start()

    def _relay(self, near: socket.socket) -> None:
        host, port = self.upstream.rsplit(":", 1)
        with suppress(OSError), near, socket.create_connection((host, int(port))) as far:
            # Like a process that died: its peer is not left with bytes that nobody will read.
            far.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            request = near.recv(PIECE_BYTES)
            far.sendall(request)
            # What comes after the request is the confirmation, or the end.
            threading.Thread(target=_pump, args=(near, far), daemon=True).start()
            held = next((h for name, h in self._holds.items() if f'"{name}"' in str(request)), None)
            held = held or Hold(1 << 62)
            passed = 0
            held.pass_on(passed)
            while piece := far.recv(PIECE_BYTES):
                near.sendall(piece)
                passed += len(piece)
                held.pass_on(passed)


def _pump(near: socket.socket, far: socket.socket) -> None:
    with suppress(OSError):
        while piece := near.recv(PIECE_BYTES):
            far.sendall(piece)
    with suppress(OSError):
        far.shutdown(socket.SHUT_WR)
