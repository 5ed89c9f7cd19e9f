"""Removes what the history need not keep: one replica at a time, beside the traffic.

Whole days leave by detaching their partition. What leaves earlier, because its tenant or kind is
kept for less than others, and old rollups, are deleted in small batches with a pause after each.
A round touches a few days at most: whatever goes wrong, also with the clocks, goes wrong slowly.
"""

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, time, timedelta
from functools import partial
from typing import Final

import asyncpg
import structlog

from app.clock import Clock
from app.db.partitions import day_of
from app.db.session import Database, translated_errors
from app.decisions.partitions import (
    TABLES,
    attached_days,
    drop_partitions_before,
    ensure_partitions,
)
from app.decisions.retention import MAX_HISTORY_DAYS, HistoryLimits, Keeping, TrustedClocks
from app.decisions.retention_repository import (
    ROLLUPS,
    Leaving,
    database_now,
    delete_expired,
    delete_rollups,
    forget_writers,
    keep_rules,
    next_tenant,
    take_removal_turn,
)

_END_S: Final = 3.0
_INTERVAL_S: Final = 3600.0
_DAYS_PER_ROUND: Final = 7
_BATCH_ROWS: Final = 1_000
_LEAST_PAUSE_S: Final = 0.01
# A round ends by then, and the next goes on: its turn is not kept for ever.
_ROUND_S: Final = 3_000.0
_STATEMENT_S: Final = 5.0
# A writer silent for as long as this has no row left, and none will come.
_WRITER_DAYS: Final = MAX_HISTORY_DAYS + 30
log = structlog.get_logger()


@dataclass(slots=True)
class Removed:
    """What one round removed; `left` where it stopped before it was done."""

    partitions: list[str] = field(default_factory=list)
    rows: dict[str, int] = field(default_factory=lambda: dict.fromkeys((*TABLES, *ROLLUPS), 0))
    left: bool = False


class HistoryKeeper:
    """The background task of one process, and its counters.

    `rounds` by how they ended (`busy`: another replica has the turn; `doubt`: the clocks),
    `rows` deleted by table, `dropped` partitions, `done_at` the last complete round.
    """

    def __init__(
        self,
        database: Database,
        clock: Clock,
        limits: HistoryLimits,
        *,
        pause_s: float = _LEAST_PAUSE_S,
        statement_timeout_s: float = _STATEMENT_S,
    ) -> None:
        self._database = database
        self._clock = clock
        self._limits = limits
        self._pause_s = pause_s
        self._statement_timeout_s = statement_timeout_s
        self._clocks = TrustedClocks(clock)
        # Days that were gone through, under which rules and on which day: once a day will do.
        self._seen: set[tuple[str, date]] = set()
        self._seen_under: tuple[object, ...] = ()
        self.rounds: dict[str, int] = dict.fromkeys(("done", "busy", "doubt", "failed"), 0)
        self.rows: dict[str, int] = dict.fromkeys((*TABLES, *ROLLUPS), 0)
        self.dropped = 0
        self.done_at: datetime | None = None
        self.days_ahead = 0

    async def watch(self) -> None:
        """Makes days ahead and removes old ones, for ever, every hour."""
        while True:
            try:
                await self.prepare()
            except Exception as error:  # noqa: BLE001 - a late row makes a missing day by itself
                log.warning("partitions_not_ensured", cause=repr(error))
            try:
                await self._whole_round()
            except Exception as error:  # noqa: BLE001 - the next round goes on where this one ended
                self.rounds["failed"] += 1
                log.warning("history_not_removed", cause=repr(error))
            await asyncio.sleep(_INTERVAL_S)

    async def _whole_round(self) -> None:
        """`remove`; one that is told to end goes on for a moment, so that none is cut in the middle
        of a statement, whose connection nobody could close in order.
        """
        going_on = asyncio.create_task(self.remove())
        try:
            await asyncio.shield(going_on)
        except asyncio.CancelledError:
            await asyncio.wait((going_on,), timeout=_END_S)
            going_on.cancel()
            await asyncio.gather(going_on, return_exceptions=True)
            raise

    async def prepare(self) -> None:
        """Makes the partitions of the days ahead. Raises NexusError when it cannot."""
        now = self._clock.now()
        try:
            await ensure_partitions(self._database, now)
        finally:
            self.days_ahead = 0
            last = [(await attached_days(self._database, table))[-1] for table in TABLES]
            self.days_ahead = (min(last) - day_of(now)).days

    async def remove(self) -> Removed | None:
        """One round; None when another replica is at it, or while the clocks are in doubt.

        Raises NexusError when the database is unavailable, or a reader stays for long inside a day
        that leaves; the next round goes on.
        """
        async with _turn(self._database, self._statement_timeout_s) as database:
            if database is None:
                self.rounds["busy"] += 1
                return None
            theirs = await database_now(database)
            now = self._clocks.agreed(theirs)
            if now is None:
                self.rounds["doubt"] += 1
                log.warning(
                    "history_clocks_in_doubt",
                    process=self._clock.now().isoformat(),
                    database=theirs.isoformat(),
                )
                return None
            removed = Removed()
            await self._round(database, now, removed)
        self.rounds["done"] += 1
        self.done_at = now
        return removed

    async def _round(self, database: Database, now: datetime, removed: Removed) -> None:
        end_us = self._clock.monotonic_us() + round(_ROUND_S * 1e6)
        batches = _Batches(self._clock, self._pause_s, end_us, removed)
        async with database.read() as session:
            rules = await keep_rules(session)
        keeping = Keeping(rules, self._limits.days)
        today = day_of(now)
        if self._seen_under != (under := (today, *rules)):
            self._seen, self._seen_under = set(), under
        try:
            for table in TABLES:
                await self._thin(database, table, keeping, today, batches)
            await self._forget_sums(database, today, batches)
            # Last, as a long reader may stop it.
            removed.partitions = await drop_partitions_before(
                database,
                _midnight(today - timedelta(days=keeping.longest_days)),
                limit_days=_DAYS_PER_ROUND,
            )
        finally:
            for table, rows in removed.rows.items():
                self.rows[table] += rows
            self.dropped += len(removed.partitions)
            if removed.partitions or any(removed.rows.values()):
                log.info("history_removed", partitions=removed.partitions, rows=removed.rows)

    async def _thin(
        self, database: Database, table: str, keeping: Keeping, today: date, batches: "_Batches"
    ) -> None:
        touched = 0
        for day in await attached_days(database, table):
            age_days = (today - day).days
            due = keeping.shortest_days < age_days <= keeping.longest_days
            if not due or (table, day) in self._seen:
                continue
            if touched == _DAYS_PER_ROUND or batches.removed.left:
                batches.removed.left = True
                return
            before = batches.removed.rows[table]
            tenant = await next_tenant(database, table, day, "")
            while tenant is not None and not batches.removed.left:
                leaving = keeping.leaving(tenant, age_days)
                if leaving is not None:
                    await batches.run(table, _Expired(database, table, day, tenant, leaving))
                tenant = await next_tenant(database, table, day, tenant)
            touched += batches.removed.rows[table] > before
            if not batches.removed.left:
                self._seen.add((table, day))

    async def _forget_sums(self, database: Database, today: date, batches: "_Batches") -> None:
        for step, days in (("minute", self._limits.minute_days), ("hour", self._limits.hour_days)):
            before = _midnight(today - timedelta(days=days))
            for table in ROLLUPS:
                delete = partial(delete_rollups, database, table, step, before)
                await batches.run(table, partial(delete, limit_rows=_BATCH_ROWS))
        silent = _midnight(today - timedelta(days=_WRITER_DAYS))
        await forget_writers(database, silent, limit_rows=_BATCH_ROWS)


class _Batches:
    """Repeats a deletion until it finds less than a batch, half the time at most at work."""

    def __init__(self, clock: Clock, pause_s: float, end_us: int, removed: Removed) -> None:
        self._clock = clock
        self._pause_s = pause_s
        self._end_us = end_us
        self.removed = removed

    async def run(self, table: str, delete: Callable[[], Awaitable[int]]) -> None:
        """Adds what it deletes of `table` to `removed`, and says there when time ran out."""
        while not self.removed.left:
            began_us = self._clock.monotonic_us()
            gone = await delete()
            self.removed.rows[table] += gone
            now_us = self._clock.monotonic_us()
            if gone < _BATCH_ROWS:
                return
            self.removed.left = now_us > self._end_us
            await asyncio.sleep(max(self._pause_s, (now_us - began_us) / 1e6))


class _Expired:
    """Deletes the next batch of what leaves a day, where the last one ended."""

    def __init__(
        self, database: Database, table: str, day: date, tenant: str, leaving: Leaving
    ) -> None:
        self._delete = partial(delete_expired, database, table, day, tenant, leaving)
        self._start = _midnight(day)

    async def __call__(self) -> int:
        rows, self._start = await self._delete(start=self._start, limit_rows=_BATCH_ROWS)
        return rows


def _midnight(day: date) -> datetime:
    return datetime.combine(day, time(), UTC)


@asynccontextmanager
async def _turn(database: Database, statement_timeout_s: float) -> AsyncGenerator[Database | None]:
    """Connections for removal alone, while no other replica removes; None when one does.

    The turn is a lock of the first connection, and ends with it.
    """
    url = database.url.render_as_string(hide_password=False)
    async with Database(
        url,
        pool_connections=2,
        statement_timeout_s=statement_timeout_s,
        application_name="nexuskv-history",
    ) as own:
        with translated_errors():
            turn = await own.engine.connect()
        driver = (await turn.get_raw_connection()).driver_connection
        try:
            taken = await take_removal_turn(turn)
        except BaseException:
            # Cut short it may have the lock or not: it is ended, and not handed back.
            if isinstance(driver, asyncpg.Connection):
                driver.terminate()
            await turn.invalidate()
            raise
        try:
            yield own if taken else None
        finally:
            await turn.close()
