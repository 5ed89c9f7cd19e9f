"""Statements that are transactions by themselves, on connections of their own."""

import asyncio
from collections.abc import AsyncIterator

import asyncpg
import pytest
from sqlalchemy import text

from app.db.session import Database
from app.errors import ErrorCode, NexusError
from tests.db.rows import eventually

_PID = text("SELECT pg_backend_pid()")
_ADD = text("INSERT INTO quota_tenant (tenant) VALUES (:tenant)")
_COUNT = text("SELECT count(*) FROM quota_tenant")
_SLEEP = text("SELECT pg_sleep(30)")
_SETTING = text("SELECT current_setting(:name)")


@pytest.fixture
async def database(database_url: str) -> AsyncIterator[Database]:
    async with Database(
        database_url, pool_connections=2, connect_timeout_s=1, statement_timeout_s=1
    ) as opened:
        yield opened


async def scalar(database: Database, statement=_COUNT, **values) -> object:
    async with database.single() as session:
        return (await session.execute(statement, values)).scalar()


async def expect_unavailable(database: Database, statement=_SLEEP) -> None:
    with pytest.raises(NexusError) as refused:
        await scalar(database, statement)
    assert refused.value.code is ErrorCode.DATABASE_UNAVAILABLE


async def test_one_statement_commits_by_itself_whatever_follows(database: Database) -> None:
    async def add_and_fail() -> None:
        async with database.single() as session:
            await session.execute(_ADD, {"tenant": "a"})
            raise LookupError

    with pytest.raises(LookupError):
        await add_and_fail()
    assert await scalar(database) == 1
    async with database.read() as session:
        assert await session.scalar(_COUNT) == 1


async def test_a_second_statement_would_be_another_transaction(database: Database) -> None:
    async def add_two() -> None:
        async with database.single() as session:
            await session.execute(_ADD, {"tenant": "a"})
            await session.execute(_ADD, {"tenant": "b"})

    with pytest.raises(AssertionError, match="one statement only"):
        await add_two()
    assert await scalar(database) == 1


async def test_connections_are_kept_and_carry_the_server_side_limits(database: Database) -> None:
    assert await scalar(database, _PID) == await scalar(database, _PID)
    limits = {
        "statement_timeout": "1s",
        "lock_timeout": "1s",
        "client_connection_check_interval": "1s",
        "application_name": "nexuskv",
        "TimeZone": "UTC",
    }
    for name, value in limits.items():
        assert await scalar(database, _SETTING, name=name) == value, name


async def test_what_fails_leaves_the_connection_as_it_was(database: Database) -> None:
    pid = await scalar(database, _PID)
    await scalar(database, _ADD, tenant="a")
    with pytest.raises(asyncpg.UniqueViolationError):
        await scalar(database, _ADD, tenant="a")
    await expect_unavailable(database)
    assert await scalar(database, _PID) == pid


async def test_waiting_for_a_connection_has_an_end(database: Database) -> None:
    async with database.single(), database.single():
        await expect_unavailable(database, _COUNT)
    assert await scalar(database) == 0


async def test_a_cancelled_request_gives_its_place_back(database: Database) -> None:
    async def sleeping() -> bool:
        async with database.read() as session:
            found = text("SELECT count(*) FROM pg_stat_activity WHERE query LIKE '%pg_sleep(30)'")
            return bool(await session.scalar(found))

    for _ in range(3):
        request = asyncio.create_task(scalar(database, _SLEEP))
        await eventually(sleeping)
        request.cancel()
        with pytest.raises(asyncio.CancelledError):
            await request
    assert await scalar(database) == 0


async def test_connections_that_were_cut_cost_at_most_the_statement_under_way(
    database: Database,
) -> None:
    pid = await scalar(database, _PID)
    async with database.read() as session:
        await session.execute(text("SELECT pg_terminate_backend(:pid)"), {"pid": pid})

    async def noticed() -> bool:
        try:
            return await scalar(database, _PID) != pid
        except NexusError:
            return False

    await eventually(noticed)


@pytest.mark.parametrize("host", ["127.0.0.1:9", "no-such-host.invalid"])
async def test_no_server_is_unavailable_each_time(host: str) -> None:
    async with Database(f"postgresql://u:p@{host}/d", connect_timeout_s=1) as nowhere:
        for _ in range(2):
            await expect_unavailable(nowhere, _COUNT)


async def test_a_process_that_is_gone_does_not_get_what_it_waited_for(
    database: Database, database_url: str
) -> None:
    await scalar(database, _ADD, tenant="a")
    update = text("UPDATE quota_tenant SET entries = 1 WHERE tenant = 'a'")
    waiting = text("SELECT count(*) FROM pg_locks WHERE NOT granted")
    other = Database(database_url, statement_timeout_s=30)
    async with database.write() as holder:
        await holder.execute(text("SELECT FROM quota_tenant FOR UPDATE"))
        async with other.single() as gone:
            request = asyncio.create_task(gone.execute(update, {}))

            async def waits() -> bool:
                return bool(await scalar(database, waiting))

            await eventually(waits)
            # As the kernel does for a process that was killed: nothing is said any more.
            gone._driver._protocol.abort()
            await asyncio.gather(request, return_exceptions=True)

            async def given_up() -> bool:
                return not await scalar(database, waiting)

            await eventually(given_up)
    await other.close()
    assert await scalar(database, text("SELECT sum(entries) FROM quota_tenant")) == 0
