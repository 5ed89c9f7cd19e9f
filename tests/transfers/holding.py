"""What stops a transfer at one of its steps: a lock in Postgres, a data port that is held."""

import asyncio
import re
import socket
import struct
import threading
from collections.abc import Coroutine
from contextlib import suppress
from typing import Any, Self, TypeVar

import asyncpg
from sqlalchemy.engine import make_url

from tests.process.waiting import until

T = TypeVar("T")
PIECE_BYTES = 65_536
# Longer than any test takes: whoever waits this long waits for a program that is broken.
HOLD_S = 60.0
_BLOCKED = (
    "SELECT count(*) FROM pg_stat_activity"
    " WHERE datname = current_database() AND $1 = ANY(pg_blocking_pids(pid))"
)

_WAITING = (
    "SELECT count(*) FROM pg_stat_activity"
    " WHERE datname = current_database() AND cardinality(pg_blocking_pids(pid)) > 0"
)


_NEW_TRANSFER = """
    INSERT INTO transfer_session (tenant, transfer_id, asked, status, fence, decision_id,
                                  created_at, updated_at, expires_at)
    SELECT $1, 'move-1', '{}', 'failed', 1, gen_random_uuid(), now(), now(), now()
    RETURNING tenant
"""


class Postgres:
    """A database as a bystander sees it, over one connection in a loop of its own."""

    def __init__(self, url: str) -> None:
        self._dsn = make_url(url).set(drivername="postgresql").render_as_string(hide_password=False)
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever)
        self._thread.start()
        self._connection: asyncpg.Connection = self._wait(self.connect())

    async def connect(self) -> asyncpg.Connection:
        return await asyncpg.connect(self._dsn)

    def fetch(self, statement: str, *values: Any) -> list[tuple[Any, ...]]:
        return [tuple(row) for row in self._wait(self._connection.fetch(statement, *values))]

    def close(self) -> None:
        self._wait(self._connection.close())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def _wait(self, work: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(HOLD_S)

    def quota_of(self, tenant: str) -> "RowLock":
        """Nothing can be charged to the tenant, or given back, until it is let go."""
        self.fetch("INSERT INTO quota_tenant (tenant) VALUES ($1) ON CONFLICT DO NOTHING", tenant)
        return RowLock(self, "SELECT FROM quota_tenant WHERE tenant = $1 FOR UPDATE", tenant)

    def claims_of(self, tenant: str) -> "RowLock":
        """None of the tenant's options can be consumed, or released, until it is let go."""
        return RowLock(self, "SELECT FROM option_claim WHERE tenant = $1 FOR UPDATE", tenant)

    def transfers_of(self, tenant: str) -> "RowLock":
        """None of the tenant's transfers goes on to another status until it is let go."""
        return RowLock(self, "SELECT FROM transfer_session WHERE tenant = $1 FOR UPDATE", tenant)

    def new_transfer_of(self, tenant: str) -> "RowLock":
        """The tenant's `move-1` cannot be begun until it is let go; then it never was."""
        return RowLock(self, _NEW_TRANSFER, tenant)


class RowLock:
    """Held from `take` to `let_go`; what its statement wrote is rolled back."""

    def __init__(self, postgres: Postgres, statement: str, tenant: str) -> None:
        self._postgres = postgres
        self._statement = statement
        self._tenant = tenant
        self._taken = threading.Event()
        self._end = threading.Event()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._hold()))
        self._pid = 0

    def take(self) -> Self:
        self._thread.start()
        assert self._taken.wait(HOLD_S)
        return self

    def wait_met(self) -> None:
        """Returns once somebody waits for just this lock."""
        until(
            lambda: self._postgres.fetch(_BLOCKED, self._pid)[0][0] > 0,
            "somebody waits for the lock",
            within_s=HOLD_S,
        )

    def wait_given_up(self) -> None:
        """Returns once nobody waits for it: Postgres has noticed that whoever did is dead."""
        until(
            lambda: self._postgres.fetch(_BLOCKED, self._pid)[0][0] == 0,
            "nobody waits for the lock",
            within_s=HOLD_S,
        )

    def wait_queue(self, count: int) -> None:
        """Returns once so many wait, for this lock or behind each other: they get it in turn."""
        until(
            lambda: self._postgres.fetch(_WAITING)[0][0] >= count,
            f"{count} wait for the lock",
            within_s=HOLD_S,
        )

    def let_go(self) -> None:
        self._end.set()
        if self._thread.ident is not None:
            self._thread.join()

    async def _hold(self) -> None:
        connection = await self._postgres.connect()
        try:
            await connection.execute("BEGIN")
            assert await connection.fetch(self._statement, self._tenant)
            self._pid = connection.get_server_pid()
            self._taken.set()
            await asyncio.to_thread(self._end.wait, HOLD_S)
            await connection.execute("ROLLBACK")
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


_NO_HOLD = Hold(1 << 62)
_NAMED = re.compile(rb'NKVD.*"payload_id":"([^"]+)"', re.DOTALL)


class _Flow:
    """What passes over one connection now."""

    def __init__(self) -> None:
        self.hold = _NO_HOLD
        self.passed = 0


class Relay:
    """Stands before a port of a worker, whose `upstream` may change when that starts again.

    It holds one payload on its way (`hold`), or every answer whatever it is (`hold_answers`).
    """

    def __init__(self) -> None:
        self.upstream = ""
        self._holds: dict[str, Hold] = {}
        self._flowing = threading.Event()
        self._flowing.set()
        self._dropping = False
        self._counting = threading.Lock()
        # Answers that are held.
        self.held_answers = 0
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

    def hold_answers(self) -> None:
        self.held_answers, self._dropping = 0, False
        self._flowing.clear()

    def wait_answers(self, count: int) -> None:
        until(lambda: self.held_answers >= count, f"{count} answers are held", within_s=HOLD_S)

    def let_go(self, *, drop: bool = False) -> None:
        """With `drop`, what is held never arrives: its connections end."""
        self._dropping = drop
        self._flowing.set()

    def close(self) -> None:
        self.let_go()
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
            flow = _Flow()
            threading.Thread(target=self._pump, args=(near, far, flow), daemon=True).start()
            while (piece := far.recv(PIECE_BYTES)) and self._may_pass():
                flow.hold.pass_on(flow.passed)
                near.sendall(piece)
                flow.passed += len(piece)
                flow.hold.pass_on(flow.passed)
            # Whoever still reads from it must hear of its end, too.
            near.shutdown(socket.SHUT_RDWR)

    def _pump(self, near: socket.socket, far: socket.socket, flow: "_Flow") -> None:
        with suppress(OSError):
            while piece := near.recv(PIECE_BYTES):
                # One fetch follows another on a connection.
                if (named := _NAMED.search(piece)) is not None:
                    flow.hold = self._holds.get(named[1].decode(), _NO_HOLD)
                    flow.passed = 0
                far.sendall(piece)
        with suppress(OSError):
            far.shutdown(socket.SHUT_WR)

    def _may_pass(self) -> bool:
        if self._flowing.is_set():
            return True
        with self._counting:
            self.held_answers += 1
        self._flowing.wait(HOLD_S)
        return not self._dropping
