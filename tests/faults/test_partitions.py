"""Days come and go under load, also while a reader stays inside one for long."""

from datetime import UTC, datetime, timedelta

import asyncpg

from app.db.session import Database
from app.decisions.partitions import attached_days, drop_partitions_before, ensure_day
from app.errors import NexusError
from tests.faults.checker import check
from tests.faults.faulty import ROUNDS, FaultyService
from tests.fixtures.database import run_elsewhere
from tests.process.waiting import until

OLD_DAYS = 40
KEPT_DAYS = 30


def test_a_long_reader_keeps_nobody_from_storing(faulty: FaultyService) -> None:
    now = datetime.now(UTC)
    old = (now - timedelta(days=OLD_DAYS)).date()
    cutoff = now - timedelta(days=KEPT_DAYS)

    async def rotate(number: int) -> list[str]:
        """Make days ahead and a past one, and drop the past, in vain while it is read."""
        async with Database(faulty.database_url, statement_timeout_s=0.5) as database:
            await ensure_day(database, now.date() + timedelta(days=20 + number))
            return await drop_partitions_before(database, cutoff)

    async def make_old() -> None:
        async with Database(faulty.database_url) as database:
            await ensure_day(database, old)

    async def days() -> list[object]:
        async with Database(faulty.database_url) as database:
            return list(await attached_days(database, "decision"))

    def stored() -> float:
        return faulty.metric("nexuskv_decisions_stored_total")

    async def read_for_long() -> tuple[asyncpg.Connection, asyncpg.transaction.Transaction]:
        reader = await asyncpg.connect(dsn(faulty.database_url))
        reading = reader.transaction(isolation="repeatable_read", readonly=True)
        await reading.start()
        await reader.fetchval("SELECT count(*) FROM decision")
        return reader, reading

    async def beside_a_reader() -> None:
        reader, reading = await read_for_long()
        try:
            for number in range(ROUNDS):
                try:
                    dropped = await rotate(number)
                except NexusError:
                    dropped = []
                assert f"decision_p{old:%Y%m%d}" not in dropped, "the reader is still inside"
                before = stored()
                load.more(300)
                until(lambda least=before: stored() > least + 300, "rows are stored meanwhile")
            await reading.rollback()
        finally:
            await reader.close()
        # The service's own keeping may be at it, too.
        await rotate(ROUNDS)

    failed = faulty.log().count("decisions_not_copied")
    run_elsewhere(make_old())
    with faulty.load() as load:
        run_elsewhere(beside_a_reader())
        load.more(300)
    until(lambda: old not in run_elsewhere(days()), "the day has left")
    faulty.settle()
    assert faulty.log().count("decisions_not_copied") == failed
    check(faulty.database_url, faulty.acknowledged, None, may_lack=frozenset({"torn"}))


def dsn(url: str) -> str:
    return url.replace("postgresql+asyncpg://", "postgresql://", 1)
