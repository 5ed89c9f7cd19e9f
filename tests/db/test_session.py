import asyncio
import socket
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta

import asyncpg
import pytest
from sqlalchemy import ARRAY, Integer, bindparam, insert, select, text
from sqlalchemy.exc import DBAPIError, IntegrityError

from app.control.models import DeploymentSecretRow
from app.db.connect import normalise_url
from app.db.session import (
    Database,
    NoPartitionError,
    ReadSession,
    WriteSession,
)
from app.errors import ErrorCode, NexusError
from tests.db.rows import DECISION_COLUMNS, copy_lines, decision, eventually

NOW = datetime.now(UTC)
SECRET = "hunter2-in-a-parameter"


@pytest.fixture
async def impatient(database_url: str) -> AsyncIterator[Database]:
    """One connection and short limits."""
    opened = Database(
        database_url, pool_connections=1, connect_timeout_s=0.3, statement_timeout_s=0.3
    )
    yield opened
    await opened.close()


def secret(name: str) -> dict[str, object]:
    return {"name": name, "secret": SECRET.encode()}


async def count_secrets(database: Database) -> int:
    async with database.read() as session:
        return await session.scalar(text("SELECT count(*) FROM deployment_secret"))


async def test_write_commits_on_clean_exit(database: Database) -> None:
    async with database.write() as session:
        assert isinstance(session, WriteSession)
        await session.execute(insert(DeploymentSecretRow).values(secret("hash")))
    async with database.read() as session:
        assert not isinstance(session, WriteSession)
        stored = await session.scalar(select(DeploymentSecretRow.secret))
    assert stored == SECRET.encode()


async def test_write_rolls_back_on_error(database: Database) -> None:
    async def change_your_mind() -> None:
        async with database.write() as session:
            await session.execute(insert(DeploymentSecretRow).values(secret("hash")))
            raise ValueError("no")

    with pytest.raises(ValueError, match="no"):
        await change_your_mind()
    assert await count_secrets(database) == 0


async def test_a_constraint_that_fails_at_commit_is_an_error_of_the_block(
    database: Database,
) -> None:
    async with database.write() as session:
        await session.execute(
            text("CREATE TABLE late (id int UNIQUE DEFERRABLE INITIALLY DEFERRED)")
        )
    statements_passed = []

    async def insert_twice() -> None:
        async with database.write() as session:
            await session.execute(text("INSERT INTO late VALUES (1), (1)"))
            statements_passed.append(True)

    with pytest.raises(asyncpg.UniqueViolationError):
        await insert_twice()
    assert statements_passed == [True]
    async with database.read() as session:
        assert await session.scalar(text("SELECT count(*) FROM late")) == 0


async def test_a_read_session_cannot_write_and_leaves_its_connection_writable(
    database_url: str,
) -> None:
    database = Database(database_url, pool_connections=1)
    with pytest.raises(DBAPIError, match="read-only transaction"):
        async with database.read() as session:
            await session.execute(insert(DeploymentSecretRow).values(secret("hash")))
    async with database.write() as session:
        await session.execute(insert(DeploymentSecretRow).values(secret("hash")))
    assert await count_secrets(database) == 1
    await database.close()


async def test_every_connection_carries_the_server_side_limits(database_url: str) -> None:
    database = Database(database_url, statement_timeout_s=1.5, application_name="nexuskv-test")
    async with database.read() as session:
        rows = await session.execute(
            text(
                "SELECT name, setting FROM pg_settings WHERE name IN ('application_name',"
                " 'statement_timeout', 'lock_timeout', 'idle_in_transaction_session_timeout',"
                " 'TimeZone')"
            )
        )
        assert dict(rows.all()) == {
            "application_name": "nexuskv-test",
            "statement_timeout": "1500",
            "lock_timeout": "1500",
            "idle_in_transaction_session_timeout": "6000",
            "TimeZone": "UTC",
        }
    await database.close()


async def expect_unavailable(database: Database, statement: str) -> NexusError:
    with pytest.raises(NexusError) as caught:
        async with database.write() as session:
            await session.execute(text(statement))
    assert caught.value.code is ErrorCode.DATABASE_UNAVAILABLE
    assert caught.value.retryable
    return caught.value


async def test_a_statement_over_its_time_is_unavailable_and_the_connection_survives(
    impatient: Database,
) -> None:
    error = await expect_unavailable(impatient, "SELECT pg_sleep(30)")
    assert "statement timeout" in str(error.internal)
    assert "timeout" not in error.message
    assert await count_secrets(impatient) == 0


async def test_a_lock_not_granted_in_time_is_unavailable(
    database: Database, impatient: Database
) -> None:
    async with database.write() as holder:
        await holder.execute(text("LOCK TABLE deployment_secret"))
        await expect_unavailable(impatient, "LOCK TABLE deployment_secret")


async def test_an_exhausted_pool_is_unavailable_and_recovers(impatient: Database) -> None:
    async with impatient.read():
        with pytest.raises(NexusError) as caught:
            async with impatient.read():
                pass
    assert caught.value.code is ErrorCode.DATABASE_UNAVAILABLE
    assert await count_secrets(impatient) == 0


async def test_nobody_listening_is_unavailable() -> None:
    with socket.socket() as taken:
        # Bound but not listening: connections to it are refused, and nobody else gets the port.
        taken.bind(("127.0.0.1", 0))
        port = taken.getsockname()[1]
        refused = Database(f"postgresql://u:pw@127.0.0.1:{port}/db")
        for attempt in (refused.read, refused.write):
            with pytest.raises(NexusError) as caught:
                async with attempt():
                    pass
            assert caught.value.code is ErrorCode.DATABASE_UNAVAILABLE
        with pytest.raises(NexusError):
            await copy_lines(refused, "decision", DECISION_COLUMNS, [decision(NOW)])
        await refused.close()


@pytest.mark.parametrize(
    "url",
    [
        "postgresql://u@/db?host=/nowhere/at/all",
        "postgresql://u@no-such-host.invalid/db",
    ],
)
async def test_an_address_that_does_not_exist_is_unavailable(url: str) -> None:
    database = Database(url, connect_timeout_s=2)
    with pytest.raises(NexusError) as caught:
        async with database.read():
            pass
    assert caught.value.code is ErrorCode.DATABASE_UNAVAILABLE
    await database.close()


async def test_a_missing_database_is_unavailable(database_url: str) -> None:
    name = Database(database_url).url.database
    database = Database(database_url.replace(str(name), "no_such_database"))
    with pytest.raises(NexusError) as caught:
        async with database.read():
            pass
    assert caught.value.code is ErrorCode.DATABASE_UNAVAILABLE
    await database.close()


async def test_a_connection_cut_in_flight_is_unavailable_and_the_next_one_works(
    database: Database, database_url: str
) -> None:
    victim = Database(database_url, pool_connections=1)
    async with victim.read() as session:
        pid = await session.scalar(text("SELECT pg_backend_pid()"))
    waiting = asyncio.create_task(expect_unavailable(victim, "SELECT pg_sleep(30)"))

    async def cut() -> bool:
        async with database.read() as session:
            return bool(
                await session.scalar(
                    text(
                        "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
                        " WHERE pid = :pid AND query LIKE 'SELECT pg_sleep%'"
                    ),
                    {"pid": pid},
                )
            )

    await eventually(cut)
    await waiting
    assert await count_secrets(victim) == 0
    await victim.close()


async def test_a_cancelled_request_gives_its_connection_back(
    database: Database, impatient: Database
) -> None:
    async def stuck() -> bool:
        async with database.read() as session:
            return bool(
                await session.scalar(
                    text("SELECT count(*) FROM pg_stat_activity WHERE query LIKE 'SELECT pg_sl%'")
                )
            )

    for _ in range(3):
        request = asyncio.create_task(expect_unavailable(impatient, "SELECT pg_sleep(30)"))
        await eventually(stuck)
        request.cancel()
        with pytest.raises(asyncio.CancelledError):
            await request
    assert await count_secrets(impatient) == 0


async def test_connections_cut_while_idle_cost_no_request(
    database: Database, database_url: str
) -> None:
    async with Database(database_url, pool_connections=3) as victim:
        async with victim.read() as one, victim.read() as two, victim.read() as three:
            sessions = (one, two, three)
            pids = [await session.scalar(text("SELECT pg_backend_pid()")) for session in sessions]
            drivers = [
                (await (await session.connection()).get_raw_connection()).driver_connection
                for session in sessions
            ]
        async with database.read() as session:
            cut = text("SELECT bool_and(pg_terminate_backend(pid)) FROM unnest(:pids) AS pid")
            assert await session.scalar(cut.bindparams(bindparam("pids", pids, ARRAY(Integer))))

        async def noticed() -> bool:
            return all(driver.is_closed() for driver in drivers)

        await eventually(noticed)
        for _ in range(4):
            assert await count_secrets(victim) == 0


async def test_a_callers_mistake_is_not_called_unavailable(database: Database) -> None:
    with pytest.raises(IntegrityError) as duplicate:
        async with database.write() as session:
            await session.execute(
                insert(DeploymentSecretRow).values([secret("hash"), secret("hash")])
            )
    # Parameters hold secrets, and exceptions end up in logs.
    assert SECRET not in str(duplicate.value)
    with pytest.raises(asyncpg.DataError, match="invalid input for query argument"):
        async with database.read() as session:
            await session.execute(text("SELECT CAST(:n AS integer)"), {"n": "not a number"})
    with pytest.raises(asyncpg.UndefinedTableError, match="does not exist"):
        async with database.read() as session:
            await session.execute(text("SELECT * FROM no_such_table"))


async def test_copy_lines_appends(database: Database) -> None:
    rows = [decision(NOW, writer_seq=n, match='{"units": 3}') for n in range(500)]
    await copy_lines(database, "decision", DECISION_COLUMNS, rows)
    async with database.read() as session:
        stored = await session.execute(
            text("SELECT writer_seq, match -> 'units', path FROM decision ORDER BY writer_seq")
        )
        assert stored.all() == [(n, 3, ["described", "matched"]) for n in range(500)]


async def test_copy_lines_stores_all_or_nothing(database: Database) -> None:
    rows = [decision(NOW), decision(NOW, inputs="{not json")]
    with pytest.raises(Exception, match="invalid input syntax for type json"):
        await copy_lines(database, "decision", DECISION_COLUMNS, rows)
    async with database.read() as session:
        assert await session.scalar(text("SELECT count(*) FROM decision")) == 0


async def test_copy_lines_tells_a_missing_day_from_other_failures(database: Database) -> None:
    rows = [decision(NOW), decision(NOW - timedelta(days=40))]
    with pytest.raises(NoPartitionError, match="no partition"):
        await copy_lines(database, "decision", DECISION_COLUMNS, rows)
    async with database.read() as session:
        assert await session.scalar(text("SELECT count(*) FROM decision")) == 0


async def test_copy_lines_over_its_time_is_unavailable(
    database: Database, impatient: Database
) -> None:
    async with database.write() as holder:
        await holder.execute(text("LOCK TABLE decision"))
        with pytest.raises(NexusError) as caught:
            await copy_lines(impatient, "decision", DECISION_COLUMNS, [decision(NOW)])
    assert caught.value.code is ErrorCode.DATABASE_UNAVAILABLE


@pytest.mark.parametrize(
    ("given", "normal"),
    [
        ("postgres://u@h/d", "postgresql+asyncpg://u@h/d"),
        ("postgresql://u:p%40ss@h:5433/d", "postgresql+asyncpg://u:p%40ss@h:5433/d"),
        ("postgresql+asyncpg://u@h/d", "postgresql+asyncpg://u@h/d"),
        ("postgresql://u@/d?host=/run/pg", "postgresql+asyncpg://u@/d?host=%2Frun%2Fpg"),
        ("postgresql://u@h/d?sslmode=require", "postgresql+asyncpg://u@h/d?ssl=require"),
        ("postgresql://u@h/d?application_name=x&connect_timeout=3", "postgresql+asyncpg://u@h/d"),
    ],
)
def test_normalise_url(given: str, normal: str) -> None:
    assert normalise_url(given) == normal
    assert normalise_url(normal) == normal


@pytest.mark.parametrize("url", ["mysql://u:pw12@h/d", "not a url pw12", "postgresql+psycopg://h"])
def test_a_url_that_is_not_ours_is_refused_without_its_password(url: str) -> None:
    with pytest.raises(ValueError, match="postgresql://") as caught:
        normalise_url(url)
    assert "pw12" not in str(caught.value)


async def test_printing_the_url_hides_the_password() -> None:
    database = Database("postgresql://u:pw12@h/d")
    assert "pw12" not in f"{database.url!s} {database.url!r}"
    await database.close()


def test_the_session_types_are_distinct() -> None:
    assert issubclass(WriteSession, ReadSession)
    assert not issubclass(ReadSession, WriteSession)
