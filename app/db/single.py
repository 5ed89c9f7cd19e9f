"""Statements that are transactions by themselves: one round trip each, nothing begun or ended.

They have connections of their own, straight from the driver's pool: a checkout through SQLAlchemy,
a BEGIN and a COMMIT take four times the CPU of a short statement, and a row that it locks stays
locked for as long as the event loop takes to come back to it.
"""

import asyncio
from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager
from typing import Any

import asyncpg
from sqlalchemy import TextClause
from sqlalchemy.engine import URL, Dialect

from app.db.native import Rows, Statements, arguments


class SingleSession:
    """Takes one statement, which commits by itself."""

    def __init__(self, driver: Any, statements: Statements) -> None:
        self._driver = driver
        self._statements = statements
        self._taken = False

    async def execute(self, statement: TextClause, values: Mapping[str, Any]) -> Rows:
        """The statement's rows; it has committed. A second one would be another transaction."""
        assert not self._taken, "one statement only: use `write()` for more"
        self._taken = True
        prepared = self._statements.prepared(statement)
        return Rows(await self._driver.fetch(prepared.sql, *arguments(prepared, values)), prepared)


class SingleStatements:
    """A bounded pool of the driver's own connections, opened as they are needed."""

    def __init__(
        self,
        url: URL,
        dialect: Dialect,
        statements: Statements,
        connect_args: Mapping[str, Any],
        *,
        connections: int,
        wait_s: float,
    ) -> None:
        self._statements = statements
        self._wait_s = wait_s
        _, asked = dialect.create_connect_args(url)
        self._options = {
            **asked,
            **connect_args,
            "server_settings": {
                **connect_args["server_settings"],
                # Each is short and finds rows by their keys: to plan it again is half of its cost.
                "plan_cache_mode": "force_generic_plan",
            },
            "min_size": 0,
            "max_size": connections,
        }
        self._pool: asyncpg.Pool | None = None

    @asynccontextmanager
    async def session(self) -> AsyncGenerator[SingleSession]:
        """Raises what the driver raises, TimeoutError when no connection becomes free in time."""
        if self._pool is None:
            # No await before it is set: nobody makes a second one.
            self._pool = asyncpg.create_pool(**self._options, reset=_nothing)
        pool = await self._pool
        assert pool is not None
        # A time-out costs as much as the checkout that it watches.
        connection = await pool.acquire(timeout=None if pool.get_idle_size() else self._wait_s)
        try:
            yield SingleSession(connection, self._statements)
        except (asyncpg.PostgresError, AssertionError):
            raise
        except BaseException:
            # It got no answer: nobody knows what the server is doing on it.
            connection.terminate()
            raise
        finally:
            await pool.release(connection)

    async def close(self) -> None:
        """Close every connection, those in use after a while."""
        pool, self._pool = self._pool, None
        if pool is None:
            return
        try:
            async with asyncio.timeout(self._wait_s):
                await pool.close()
        except TimeoutError:
            pool.terminate()


async def _nothing(_: Any) -> None:
    """A single statement leaves nothing behind to be reset."""
