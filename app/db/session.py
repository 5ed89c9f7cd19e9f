"""The engine, the two kinds of session, and the only `commit()` of the service.

A body inside `read()` or `write()` speaks to the database and does nothing else: whatever says
"the database cannot answer now" leaves it as `NexusError(DATABASE_UNAVAILABLE)`.
"""

from collections.abc import AsyncGenerator, Generator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from types import TracebackType
from typing import Any, Literal, Self, TypeVar

import asyncpg
import orjson
from sqlalchemy import Executable, TextClause, event
from sqlalchemy.engine import URL
from sqlalchemy.exc import (
    DBAPIError,
    DisconnectionError,
    InterfaceError,
    OperationalError,
)
from sqlalchemy.exc import TimeoutError as PoolTimeoutError
from sqlalchemy.ext.asyncio import (
    AsyncConnection,
    AsyncEngine,
    AsyncResult,
    create_async_engine,
)
from sqlalchemy.sql.selectable import TextualSelect

from app.db.connect import connect_args, normalise_url
from app.db.native import Kept, Rows, Statements, arguments
from app.db.single import SingleSession, SingleStatements
from app.errors import ErrorCode, NexusError

# Connection exceptions, bad credentials, missing database, no resources, operator intervention
# (shutdown, cancel, starting up), system errors, idle in transaction, deadlock or serialization
# failure, a lock not granted in time: the same request may succeed later.
_UNAVAILABLE_CLASSES = ("08", "28", "3D", "53", "57", "58")
_UNAVAILABLE_STATES = frozenset({"25P03", "25P04", "40001", "40P01", "55P03"})


class NoPartitionError(Exception):
    """`copy_lines` met a row whose day has no partition; nothing was written.

    Make the day with `app.decisions.partitions.ensure_day` and store it again.
    """


class ReadSession:
    """One READ ONLY transaction on one connection; it is never committed."""

    def __init__(
        self, connection: AsyncConnection, driver: asyncpg.Connection, statements: Statements
    ) -> None:
        self._connection = connection
        self._driver = driver
        self._statements = statements

    async def execute(
        self, statement: Executable | Kept, values: Mapping[str, Any] | None = None
    ) -> Any:
        """The statement's rows: `Rows`, or SQLAlchemy's own result for a composed statement that is
        not kept.
        """
        if isinstance(statement, (TextClause, TextualSelect, Kept)):
            prepared = self._statements.prepared(statement)
            found = await self._driver.fetch(prepared.sql, *arguments(prepared, values or {}))
            return Rows(found, prepared)
        return await self._connection.execute(statement, values)

    async def scalar(self, statement: Executable, values: Mapping[str, Any] | None = None) -> Any:
        """The first column of the first row; None when there is no row."""
        return (await self.execute(statement, values)).scalar()

    async def scalars(self, statement: Executable, values: Mapping[str, Any] | None = None) -> Any:
        """The first column of every row."""
        return (await self.execute(statement, values)).scalars()

    async def stream(self, statement: Executable) -> AsyncResult[Any]:
        """Rows in batches, for results that do not fit memory."""
        return await self._connection.stream(statement)

    async def connection(self) -> AsyncConnection:
        """The connection below, for what only SQLAlchemy does."""
        return self._connection


class WriteSession(ReadSession):
    """A transaction that commits when its block ends cleanly.

    Whatever accepts a `ReadSession` also works inside a write; the reverse does not type-check.
    """

    async def execute_many(
        self, statement: TextClause, values: Sequence[Mapping[str, Any]]
    ) -> None:
        """One statement with each of the values, in their order and without a round trip each."""
        prepared = self._statements.prepared(statement)
        await self._driver.executemany(prepared.sql, [arguments(prepared, one) for one in values])

    async def copy_lines(self, table: str, columns: Sequence[str], lines: Sequence[bytes]) -> None:
        """Append rows given as lines of `app.db.copy_text` by one COPY.

        Raises NoPartitionError for a day that has none, and asyncpg's own error for rows that do
        not fit the table; the transaction then has failed.
        """
        try:
            await self._driver.copy_to_table(
                table, columns=list(columns), source=_once(b"".join(lines)), format="text"
            )
        except asyncpg.CheckViolationError as error:
            # A row without a partition violates no constraint that has a name.
            if error.constraint_name is None:
                raise NoPartitionError(str(error)) from error
            raise


S = TypeVar("S", bound=ReadSession)


class Database:
    """A bounded pool of connections to one Postgres.

    Connections are opened on first use, so constructing one never fails on an absent server.
    """

    def __init__(
        self,
        url: str,
        *,
        pool_connections: int = 10,
        connect_timeout_s: float = 5,
        statement_timeout_s: float = 5,
        application_name: str = "nexuskv",
    ) -> None:
        self._statement_timeout_s = statement_timeout_s
        self.engine: AsyncEngine = create_engine(
            url,
            pool_connections=pool_connections,
            connect_timeout_s=connect_timeout_s,
            statement_timeout_s=statement_timeout_s,
            application_name=application_name,
            # BEGIN and COMMIT are ours: sent to the driver as they are, like most statements.
            isolation_level="AUTOCOMMIT",
        )
        self._statements = Statements(self.engine.dialect)
        self._single = SingleStatements(
            self.engine.url,
            self.engine.dialect,
            self._statements,
            connect_args(connect_timeout_s, statement_timeout_s, application_name),
            connections=pool_connections,
            wait_s=connect_timeout_s,
        )

    @property
    def url(self) -> URL:
        """Where it connects to; printing it hides the password."""
        return self.engine.url

    @asynccontextmanager
    async def read(self) -> AsyncGenerator[ReadSession]:
        """A read-only transaction, rolled back at the end. Raises NexusError when unavailable."""
        async with self._transaction(ReadSession, "BEGIN READ ONLY", "ROLLBACK") as session:
            yield session

    @asynccontextmanager
    async def write(self, *, durable: bool = True) -> AsyncGenerator[WriteSession]:
        """A transaction that commits on clean exit and rolls back on any error.

        `durable=False` does not wait for the disk: everybody sees it at once, and a crash of
        Postgres may take the last half second of such commits away. For what expires anyway, where
        a row's lock must not be held for as long as the disk takes.

        A constraint that fails only at commit raises from here, before anything is answered.
        Raises NexusError when unavailable; the outcome of a commit whose acknowledgement was lost
        is unknown to the caller, so what it wrote must be safe to write again.
        """
        begin = "BEGIN" if durable else "BEGIN; SET LOCAL synchronous_commit = off"
        async with self._transaction(WriteSession, begin, "COMMIT") as session:
            yield session

    @asynccontextmanager
    async def single(self) -> AsyncGenerator[SingleSession]:
        """For one statement, which commits by itself: a third of the cost of a transaction.

        Raises NexusError when unavailable, and then says as little of the outcome as `write` does.
        """
        with translated_errors():
            try:
                async with self._single.session() as session:
                    yield session
            except OSError as error:
                raise unavailable(error) from error

    @asynccontextmanager
    async def _transaction(self, kind: type[S], begin: str, end: str) -> AsyncGenerator[S]:
        with translated_errors():
            async with AsyncExitStack() as held:
                connection = await _connected(held, self.engine)
                raw = await connection.get_raw_connection()
                driver = raw.driver_connection
                assert isinstance(driver, asyncpg.Connection)
                async with _discarded_when_unsure(connection, driver):
                    await driver.execute(begin)
                try:
                    yield kind(connection, driver, self._statements)
                except BaseException:
                    async with _discarded_when_unsure(connection, driver):
                        await _roll_back(driver)
                    raise
                async with _discarded_when_unsure(connection, driver):
                    await driver.execute(end)

    async def close(self) -> None:
        """Close every connection; the object is not used afterwards."""
        await self._single.close()
        await self.engine.dispose()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.close()


async def _once(data: bytes) -> AsyncGenerator[bytes]:
    yield data


def create_engine(
    url: str,
    *,
    pool_connections: int,
    connect_timeout_s: float,
    statement_timeout_s: float,
    application_name: str,
    isolation_level: Literal["READ COMMITTED", "AUTOCOMMIT"] = "READ COMMITTED",
) -> AsyncEngine:
    """An engine whose every connection carries the server-side limits of the service."""
    engine = create_async_engine(
        normalise_url(url),
        pool_size=pool_connections,
        max_overflow=0,
        isolation_level=isolation_level,
        pool_timeout=connect_timeout_s,
        hide_parameters=True,
        json_serializer=_dump_json,
        json_deserializer=orjson.loads,
        connect_args=connect_args(connect_timeout_s, statement_timeout_s, application_name),
    )
    event.listen(engine.sync_engine, "checkout", _refuse_closed)
    return engine


def _refuse_closed(connection: Any, _record: Any, _proxy: Any) -> None:
    """Let the pool replace a connection whose server has gone, as after a restart of Postgres.

    asyncpg knows from the socket. SQLAlchemy's own pre-ping asks the server instead: a
    transaction around an empty statement, three round trips before every use.
    """
    if connection.driver_connection.is_closed():
        raise DisconnectionError


def _dump_json(value: Any) -> str:
    return orjson.dumps(value).decode()


async def _connected(held: AsyncExitStack, engine: AsyncEngine) -> AsyncConnection:
    """An open connection: refused, unreachable and unresolvable hosts all fail here."""
    try:
        return await held.enter_async_context(engine.connect())
    except OSError as error:
        raise unavailable(error) from error


@asynccontextmanager
async def _discarded_when_unsure(
    connection: AsyncConnection, driver: asyncpg.Connection
) -> AsyncGenerator[None]:
    """A connection whose BEGIN or end got no answer is not used again: nobody knows its state."""
    try:
        yield
    except asyncpg.PostgresError:
        # An answer, if a bad one: a commit that failed is a transaction that ended.
        raise
    except BaseException:
        driver.terminate()
        await connection.invalidate()
        raise


async def _roll_back(driver: asyncpg.Connection) -> None:
    """End a failed transaction. What it failed with is raised, not what keeps it from ending."""
    if driver.is_closed():
        return
    try:
        await driver.execute("ROLLBACK")
    except Exception:  # noqa: BLE001 - also what the driver says of its own broken state
        driver.terminate()


@contextmanager
def translated_errors() -> Generator[None]:
    """The one translation of "the database cannot answer now" into the service's error."""
    try:
        yield
    except (ConnectionError, TimeoutError, PoolTimeoutError, asyncpg.InternalClientError) as error:
        # The driver calls it internal when a connection broke in the middle of an answer.
        raise unavailable(error) from error
    except (DBAPIError, asyncpg.PostgresError, asyncpg.InterfaceError) as error:
        if not _is_unavailable(error):
            raise
        raise unavailable(error) from error


def _is_unavailable(error: Exception) -> bool:
    original: BaseException | None = error
    if isinstance(error, DBAPIError):
        if error.connection_invalidated:
            return True
        original = error.orig
    state = getattr(original, "sqlstate", None)
    if isinstance(state, str):
        return state[:2] in _UNAVAILABLE_CLASSES or state in _UNAVAILABLE_STATES
    # asyncpg reports a value that does not fit its column as a kind of interface error: a bug of
    # the caller, which another try does not repair.
    if isinstance(original, asyncpg.DataError) or isinstance(
        getattr(original, "__cause__", None), asyncpg.DataError
    ):
        return False
    return isinstance(error, (OperationalError, InterfaceError, asyncpg.InterfaceError))


def unavailable(error: BaseException) -> NexusError:
    """The public refusal for a database that cannot answer now; `error` goes to the log only."""
    return NexusError(
        ErrorCode.DATABASE_UNAVAILABLE,
        "The database cannot answer right now. Try again.",
        internal=f"{type(error).__name__}: {error}",
    )
