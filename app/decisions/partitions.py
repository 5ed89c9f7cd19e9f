"""Keeps the history's day partitions: made ahead of time, made for late rows, dropped with age."""

from datetime import date, datetime, timedelta

from app.db.partitions import (
    day_of,
    drop_day_partitions_before,
    ensure_day_partition,
    partition_days,
)
from app.db.session import Database

TABLES = ("decision", "decision_outcome")


async def ensure_partitions(database: Database, now: datetime, days_ahead: int = 7) -> int:
    """Make what is missing from yesterday to `days_ahead` days after `now`; returns how many.

    Safe to run from several replicas at once, and never blocks inserts for longer than a lock
    attempt of 2 s. Raises NexusError when the database is unavailable; run it again later.
    """
    today = day_of(now)
    made = 0
    for offset in range(-1, days_ahead + 1):
        made += await ensure_day(database, today + timedelta(days=offset))
    return made


async def ensure_day(database: Database, day: date) -> int:
    """Make the partitions of one UTC day, for rows that come late; returns how many were missing.

    Raises as `ensure_partitions`.
    """
    made = 0
    for table in TABLES:
        made += await ensure_day_partition(database, table, day)
    return made


async def drop_partitions_before(
    database: Database, cutoff: datetime, *, limit_days: int | None = None
) -> list[str]:
    """Drop every partition whose whole UTC day lies before `cutoff`; returns their names.

    At most the `limit_days` oldest of each table. Inserts go on meanwhile. Raises NexusError when
    a reader stays inside one for longer than the statement time-out; the next call finishes it.
    """
    dropped = []
    for table in TABLES:
        dropped += await drop_day_partitions_before(
            database, table, day_of(cutoff), limit_days=limit_days
        )
    return dropped


async def attached_days(database: Database, table: str) -> list[date]:
    """The UTC days that `table` has a partition for, oldest first."""
    async with database.read() as session:
        return await partition_days(session, table)
