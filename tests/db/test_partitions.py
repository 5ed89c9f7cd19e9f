import asyncio
from datetime import UTC, date, datetime, timedelta

import asyncpg
import pytest
from sqlalchemy import text

from app.db.partitions import partition_name
from app.db.session import Database, NoPartitionError
from app.decisions.partitions import (
    TABLES,
    drop_partitions_before,
    ensure_day,
    ensure_partitions,
)
from app.errors import NexusError
from tests.db.rows import (
    DECISION_COLUMNS,
    OUTCOME_COLUMNS,
    copy_lines,
    decision,
    eventually,
    outcome,
)

NOW = datetime.now(UTC)
TODAY = NOW.date()
FAR = datetime(2031, 3, 1, 12, tzinfo=UTC)


async def partitions(database: Database, table: str = "decision") -> list[str]:
    """Attached ones; one whose detaching was cut short no longer counts."""
    async with database.read() as session:
        found = await session.scalars(
            text(
                "SELECT inhrelid::regclass::text FROM pg_inherits"
                " WHERE inhparent = CAST(:table AS regclass) AND NOT inhdetachpending ORDER BY 1"
            ),
            {"table": table},
        )
        return list(found.all())


async def tables_named(database: Database, pattern: str) -> list[str]:
    async with database.read() as session:
        found = await session.scalars(
            text("SELECT relname FROM pg_class WHERE relkind = 'r' AND relname LIKE :pattern"),
            {"pattern": pattern},
        )
        return list(found.all())


def days(table: str, first: date, count: int) -> list[str]:
    return [partition_name(table, first + timedelta(days=n)) for n in range(count)]


async def insert_now(database: Database, moment: datetime = NOW) -> None:
    await copy_lines(database, "decision", DECISION_COLUMNS, [decision(moment)])


async def test_the_first_migration_brings_yesterday_to_a_week_ahead(database: Database) -> None:
    for table in TABLES:
        assert await partitions(database, table) == days(table, TODAY - timedelta(days=1), 9)


async def test_rows_of_today_find_their_place(database: Database) -> None:
    await copy_lines(database, "decision", DECISION_COLUMNS, [decision(NOW)])
    await copy_lines(database, "decision_outcome", OUTCOME_COLUMNS, [outcome(NOW)])
    async with database.read() as session:
        for table in TABLES:
            place = await session.scalar(text(f"SELECT tableoid::regclass::text FROM {table}"))
            assert place == partition_name(table, TODAY)


async def test_a_day_begins_and_ends_at_midnight_utc(database: Database) -> None:
    await ensure_day(database, FAR.date())
    first = datetime(2031, 3, 1, tzinfo=UTC)
    last = first + timedelta(days=1) - timedelta(microseconds=1)
    await insert_now(database, first)
    await insert_now(database, last)
    for outside in (first - timedelta(microseconds=1), first + timedelta(days=1)):
        with pytest.raises(NoPartitionError):
            await insert_now(database, outside)


@pytest.mark.parametrize("table", TABLES)
@pytest.mark.parametrize("change", ["UPDATE {} SET tenant = 'x'", "DELETE FROM {}"])
async def test_history_is_insert_only_in_old_and_new_partitions(
    database: Database, table: str, change: str
) -> None:
    await ensure_day(database, FAR.date())
    columns, row = {
        "decision": (DECISION_COLUMNS, decision),
        "decision_outcome": (OUTCOME_COLUMNS, outcome),
    }[table]
    for moment in (NOW, FAR):
        await copy_lines(database, table, columns, [row(moment)])
    for target in (table, partition_name(table, TODAY), partition_name(table, FAR.date())):
        with pytest.raises(asyncpg.RestrictViolationError, match="insert-only"):
            async with database.write() as session:
                await session.execute(text(change.format(target)))
    async with database.read() as session:
        count = text(f"SELECT count(*) FROM {table} WHERE tenant = 'acme'")
        assert await session.scalar(count) == 2


async def test_ensuring_makes_what_is_missing_and_then_nothing(database: Database) -> None:
    later = NOW + timedelta(days=3)
    assert await ensure_partitions(database, later) == 3 * len(TABLES)
    assert await ensure_partitions(database, later) == 0
    for table in TABLES:
        assert await partitions(database, table) == days(table, TODAY - timedelta(days=1), 12)


async def test_a_new_partition_is_like_those_of_the_migration(database: Database) -> None:
    await ensure_day(database, FAR.date())
    indexes = text(
        "SELECT count(*) FROM pg_index i JOIN pg_inherits h ON h.inhrelid = i.indexrelid"
        " WHERE i.indrelid = to_regclass(:name)"
    )
    triggers = text("SELECT tgname FROM pg_trigger WHERE tgrelid = to_regclass(:name)")
    async with database.read() as session:
        for day in (TODAY, FAR.date()):
            name = {"name": partition_name("decision", day)}
            assert await session.scalar(indexes, name) == 14
            assert list((await session.scalars(triggers, name)).all()) == ["refuse_change"]


async def test_replicas_that_rotate_together_make_each_partition_once(
    database: Database, database_url: str
) -> None:
    async with Database(database_url) as other, Database(database_url) as third:
        made = await asyncio.gather(
            *(ensure_partitions(replica, FAR) for replica in (database, other, third, database))
        )
    assert sum(made) == 9 * len(TABLES)
    assert (await partitions(database))[9:] == days("decision", FAR.date() - timedelta(days=1), 9)


async def test_a_late_row_gets_its_day(database: Database) -> None:
    late = NOW - timedelta(days=40)
    with pytest.raises(NoPartitionError):
        await insert_now(database, late)
    assert await ensure_day(database, late.date()) == len(TABLES)
    await insert_now(database, late)
    assert partition_name("decision", late.date()) in await partitions(database)


async def test_dropping_removes_whole_days_before_the_cutoff_only(database: Database) -> None:
    for age in (40, 20, 10):
        await ensure_day(database, TODAY - timedelta(days=age))
    cutoff = NOW - timedelta(days=10)
    dropped = await drop_partitions_before(database, cutoff)
    old = [TODAY - timedelta(days=40), TODAY - timedelta(days=20)]
    assert dropped == [partition_name(table, day) for table in TABLES for day in old]
    for day in old:
        assert await tables_named(database, f"%{day:%Y%m%d}") == []
    assert partition_name("decision", cutoff.date()) in await partitions(database)
    assert await drop_partitions_before(database, cutoff) == []


async def test_dropping_finishes_what_was_cut_short(database: Database) -> None:
    day = TODAY - timedelta(days=40)
    await ensure_day(database, day)
    await insert_now(database, NOW - timedelta(days=40))
    async with database.write() as session:
        name = partition_name("decision", day)
        await session.execute(text(f"ALTER TABLE decision DETACH PARTITION {name}"))
    assert await tables_named(database, name) == [name]
    assert len(await drop_partitions_before(database, NOW)) > 0
    assert await tables_named(database, name) == []


async def test_a_detached_day_that_is_needed_again_is_attached_with_its_rows(
    database: Database,
) -> None:
    day = TODAY - timedelta(days=40)
    await ensure_day(database, day)
    await insert_now(database, NOW - timedelta(days=40))
    async with database.write() as session:
        name = partition_name("decision", day)
        await session.execute(text(f"ALTER TABLE decision DETACH PARTITION {name}"))
    assert await ensure_day(database, day) == 1
    async with database.read() as session:
        assert await session.scalar(text("SELECT count(*) FROM decision")) == 1


async def test_inserts_go_on_beside_a_long_reader_while_partitions_rotate(
    database: Database, database_url: str
) -> None:
    """One reader holds every partition; DROP or CREATE .. PARTITION OF would queue all inserts."""
    old = TODAY - timedelta(days=40)
    await ensure_day(database, old)
    async with Database(database_url, statement_timeout_s=3) as rotator:
        async with database.read() as reader:
            await reader.execute(text("SELECT count(*) FROM decision"))
            assert await ensure_partitions(rotator, FAR) == 9 * len(TABLES)
            await insert_now(database, FAR)

            dropping = asyncio.create_task(
                drop_partitions_before(rotator, NOW - timedelta(days=20))
            )

            async def waits() -> bool:
                async with database.read() as session:
                    return bool(
                        await session.scalar(
                            text(
                                "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type ="
                                " 'Lock' AND query LIKE '%DETACH%CONCURRENTLY%'"
                            )
                        )
                    )

            await eventually(waits)
            async with asyncio.timeout(2):
                await insert_now(database)
            assert not dropping.done()
            with pytest.raises(NexusError):
                await dropping
        # The reader is gone: the next round finishes what this one began.
        dropped = await drop_partitions_before(rotator, NOW - timedelta(days=20))
    assert dropped == [partition_name(table, old) for table in TABLES]
    async with database.read() as session:
        assert await session.scalar(text("SELECT count(*) FROM decision")) == 2
