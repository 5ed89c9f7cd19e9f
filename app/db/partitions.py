"""Day partitions of an insert-only table, made ahead and dropped behind, never in the way.

A partition is a plain table made beside its parent and then attached: ATTACH lets inserts pass,
CREATE TABLE .. PARTITION OF does not. It leaves by DETACH CONCURRENTLY and then DROP, for the same
reason. There is no DEFAULT partition: every ATTACH would have to lock and scan it.
Each step is a short transaction that gives up rather than queue before the traffic.
"""

import re
from datetime import UTC, date, datetime, timedelta

import structlog
from sqlalchemy import TextClause, text

from app.db.session import Database, ReadSession, translated_errors

# One lock for all tables: replicas take turns at a partition, and find it made.
_ADVISORY_LOCK = 0x6E6B_765F_7061_7274
_DAY_NAME = re.compile(r"_p(\d{8})$")
log = structlog.get_logger()

_LIMITS = text("SET LOCAL lock_timeout = '2s'")
_TAKE_TURN = text("SELECT pg_advisory_xact_lock(:key)").bindparams(key=_ADVISORY_LOCK)
_ATTACHED = text(
    "SELECT EXISTS (SELECT 1 FROM pg_inherits"
    " WHERE inhparent = CAST(:parent AS regclass) AND inhrelid = to_regclass(:name))"
)
_EXISTS = text("SELECT to_regclass(:name) IS NOT NULL")
# Attached ones, ones whose detaching was cut short, and ones detached but not yet dropped.
_LIST = text(
    "SELECT c.relname, i.inhrelid IS NOT NULL, coalesce(i.inhdetachpending, false)"
    " FROM pg_class c LEFT JOIN pg_inherits i ON i.inhrelid = c.oid"
    " WHERE c.relkind = 'r' AND c.relnamespace ="
    "   (SELECT relnamespace FROM pg_class WHERE oid = CAST(:parent AS regclass))"
    " AND c.relname ~ ('^' || :parent || '_p[0-9]{8}$')"
    " ORDER BY c.relname"
)


def partition_name(table: str, day: date) -> str:
    """`decision_p20261129`."""
    return f"{table}_p{day:%Y%m%d}"


def day_of(moment: datetime) -> date:
    """The UTC day whose partition holds `moment`."""
    return moment.astimezone(UTC).date()


async def ensure_day_partition(database: Database, table: str, day: date) -> bool:
    """Make and attach the partition of one UTC day; False when it was there.

    Raises NexusError when the database is unavailable or a lock was not granted in 2 s; trying
    again is then safe.
    """
    name = partition_name(table, day)
    async with database.read() as session:
        if await _is_attached(session, table, name):
            return False
    first = datetime(day.year, day.month, day.day, tzinfo=UTC)
    bounds = f"FROM ('{first.isoformat()}') TO ('{(first + timedelta(days=1)).isoformat()}')"
    async with database.write() as session:
        await session.execute(_LIMITS)
        await session.execute(_TAKE_TURN)
        if await _is_attached(session, table, name):
            return False
        if not await session.scalar(_EXISTS, {"name": name}):
            await session.execute(_ddl(f"CREATE TABLE {name} (LIKE {table} INCLUDING ALL)"))
        await session.execute(
            _ddl(f"ALTER TABLE {table} ATTACH PARTITION {name} FOR VALUES {bounds}")
        )
    log.info("partition_made", partition=name)
    return True


async def partition_days(session: ReadSession, table: str) -> list[date]:
    """The days that have an attached partition, oldest first."""
    rows = (await session.execute(_LIST, {"parent": table})).all()
    return [_day_in(name) for name, attached, pending in rows if attached and not pending]


async def drop_day_partitions_before(
    database: Database, table: str, day: date, *, limit_days: int | None = None
) -> list[str]:
    """Remove the partitions of days before `day`, oldest first; returns the names removed.

    At most `limit_days` of them; None for all.
    Finishes what an earlier, interrupted call left. A reader that is still inside a partition is
    waited for, up to the statement time-out: then NexusError is raised and a later call goes on.
    """
    async with database.read() as session:
        rows = (await session.execute(_LIST, {"parent": table})).all()
    leaving = [row for row in rows if _day_in(row[0]) < day]
    dropped = []
    for name, attached, pending in leaving[:limit_days]:
        if attached:
            await _detach(database, table, name, pending=pending)
        if await _drop_detached(database, table, name):
            dropped.append(name)
            log.info("partition_dropped", partition=name)
    return dropped


async def _is_attached(session: ReadSession, table: str, name: str) -> bool:
    return bool(await session.scalar(_ATTACHED, {"parent": table, "name": name}))


async def _detach(database: Database, table: str, name: str, *, pending: bool) -> None:
    # Outside any transaction, as the engine is: it commits half-way, to let inserts pass meanwhile.
    how = "FINALIZE" if pending else "CONCURRENTLY"
    with translated_errors():
        async with database.engine.connect() as connection:
            await connection.execute(_ddl(f"ALTER TABLE {table} DETACH PARTITION {name} {how}"))


async def _drop_detached(database: Database, table: str, name: str) -> bool:
    async with database.write() as session:
        await session.execute(_LIMITS)
        await session.execute(_TAKE_TURN)
        # Another replica may have needed the day again, and attached it.
        if await _is_attached(session, table, name):
            return False
        if not await session.scalar(_EXISTS, {"name": name}):
            return False
        await session.execute(_ddl(f"DROP TABLE {name}"))
    return True


def _day_in(name: str) -> date:
    found = _DAY_NAME.search(name)
    assert found is not None
    return datetime.strptime(found.group(1), "%Y%m%d").replace(tzinfo=UTC).date()


def _ddl(statement: str) -> TextClause:
    """DDL takes no parameters; every name and bound in it is our own."""
    return text(statement.replace(":", r"\:"))
