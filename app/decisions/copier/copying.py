"""Copies what writers spooled into Postgres: each batch, how far it goes, and its sums at once.

One transaction stores a batch's rows, the number that it goes through, its gaps, and what the
rollups grow by. So the number says exactly which rows are stored: after a crash, or a connection
that broke behind a COMMIT, it is read again, and copying goes on behind it. Rows that Postgres
refuses for what they hold are found by halving, and become gaps.
"""

import asyncio
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final
from uuid import UUID

import asyncpg
import structlog

from app.clock import Clock, IdSource
from app.db.session import Database, NoPartitionError, WriteSession
from app.decisions.copier.repository import (
    Gap,
    add_gaps,
    add_rollups,
    advance,
    committed_through,
    copy_rows,
)
from app.decisions.copier.tail import Entry, Tail
from app.decisions.lookup_lines import SeenLookup
from app.decisions.partitions import ensure_day
from app.decisions.record import Decision, Outcome
from app.decisions.rollups import fold
from app.decisions.spool.control import Control
from app.errors import NexusError

log = structlog.get_logger(__name__)

REFUSED: Final = "refused"
DUPLICATE: Final = "duplicate"
# SQLSTATE classes that blame the row: data exception, integrity violation, program limit.
_ROW_FAULT_CLASSES: Final = ("22", "23", "54")
# What Postgres, or the line that is made for it, says of a value.
_ROW_FAULTS: Final = (asyncpg.PostgresError, TypeError, ValueError, OverflowError, AttributeError)
_WRITER: Final = re.compile(r"[0-9a-f]{32}")
_IDLE_S: Final = 0.01
_READ_ON_ENTRIES: Final = 50
_LOOK_S: Final = 0.2
_US_PER_S: Final = 1_000_000
# With its service Postgres may be ended as well.
_UNWELL_DRAIN_US: Final = 3_000_000
_DRAIN_RETRY_S: Final = 0.5


class OvertakenError(Exception):
    """Another copier has stored rows of this writer meanwhile."""


@dataclass(frozen=True, slots=True)
class CopierLimits:
    """A batch is stored when it is full, or its first row has waited for the interval.

    After a failure the next one is half as large, so that a slow Postgres ends one in its time;
    with every one that is stored they grow again by an eighth.
    """

    batch_rows: int = 4_000
    batch_bytes: int = 8 * 1024 * 1024
    flush_interval_s: float = 0.2
    retry_first_s: float = 0.05
    retry_max_s: float = 5.0


class Copier:
    """Of one spool directory, whose lock its caller has."""

    def __init__(
        self,
        database: Database,
        directory: Path,
        clock: Clock,
        ids: IdSource,
        *,
        limits: CopierLimits | None = None,
        observe_flush_s: Callable[[float], object] = lambda _: None,
    ) -> None:
        self._database = database
        self._directory = directory
        self._clock = clock
        self._ids = ids
        self._limits = limits or CopierLimits()
        self._observe_flush_s = observe_flush_s
        self._tails: dict[str, Tail] = {}
        self._waiting_since_us: dict[str, int] = {}
        self._looked_us = -_US_PER_S
        self._draining = False
        # Writers whose files cannot be read, told once each.
        self._refused: set[str] = set()
        self._batch_rows = self._limits.batch_rows
        self.copied = 0

    async def run(self) -> None:
        """Copies until it is cancelled, or `drain` was called and nothing is left.

        Raises what keeps it from draining for seconds: what is left is for the next copier.
        """
        retry_s = self._limits.retry_first_s
        given_up_us: int | None = None
        while True:
            try:
                stored = await self._round()
            except Exception as error:
                log.warning(
                    "decisions_not_copied",
                    error=type(error).__name__,
                    cause=error.internal if isinstance(error, NexusError) else str(error)[:200],
                    retry_s=retry_s,
                )
                await asyncio.sleep(retry_s * (0.5 + 0.5 * self._jitter()))
                most_s = _DRAIN_RETRY_S if self._draining else self._limits.retry_max_s
                retry_s = min(2 * retry_s, most_s)
                if self._draining:
                    now_us = self._clock.monotonic_us()
                    given_up_us = given_up_us or now_us + _UNWELL_DRAIN_US
                    if now_us >= given_up_us:
                        raise
                # What is stored is not known for sure: it is read again.
                self._forget()
                self._batch_rows = max(self._batch_rows // 2, 1)
                continue
            if stored:
                grown = self._batch_rows + self._batch_rows // 8 + 1
                self._batch_rows = min(grown, self._limits.batch_rows)
            retry_s, given_up_us = self._limits.retry_first_s, None
            if not stored:
                if self._draining and not any(t.waiting or t.lives for t in self._tails.values()):
                    return
                await asyncio.sleep(_IDLE_S)

    def drain(self) -> None:
        """Store what is there without waiting for more, and end once no writer lives."""
        self._draining = True

    def close(self) -> None:
        self._forget()

    def _forget(self) -> None:
        for tail in self._tails.values():
            tail.close()
        self._tails.clear()
        self._waiting_since_us.clear()
        self._looked_us = -_US_PER_S

    async def _round(self) -> int:
        """Read and store what there is; returns how many rows and gaps were stored."""
        now_us = self._clock.monotonic_us()
        if now_us - self._looked_us >= _LOOK_S * _US_PER_S or self._draining:
            await self._look()
            self._looked_us = now_us
        stored = 0
        for name, tail in list(self._tails.items()):
            try:
                stored += await self._follow(name, tail)
            except OSError as error:
                # Of this writer's files: the others go on. It is found again, and tried again.
                self._cannot_follow(name, error)
                if self._tails.pop(name, None) is not None:
                    tail.close()
        return stored

    async def _follow(self, name: str, tail: Tail) -> int:
        """Likewise of one writer. Raises OSError where its files cannot be read or removed."""
        stored = 0
        tail.read(most_entries=self._batch_rows, most_bytes=self._limits.batch_bytes)
        if tail.waiting and self._is_due(name, tail):
            entries = tail.batch(self._batch_rows)
            await self._store_and_read_on(tail, entries)
            self._waiting_since_us.pop(name, None)
            stored = len(entries)
        if tail.finished:
            del self._tails[name]
            tail.remove()
        else:
            tail.control.well_at_us = self._clock.now_us()
        return stored

    def _cannot_follow(self, name: str, error: OSError) -> None:
        if name not in self._refused:
            self._refused.add(name)
            log.error("spool_unreadable", writer_id=name, cause=str(error))

    def _is_due(self, name: str, tail: Tail) -> bool:
        now_us = self._clock.monotonic_us()
        since_us = self._waiting_since_us.setdefault(name, now_us)
        return (
            self._draining
            or tail.wanted
            or tail.waiting >= self._batch_rows
            or now_us - since_us >= self._limits.flush_interval_s * _US_PER_S
        )

    async def _look(self) -> None:
        """Find the writers' directories, and how far Postgres has each; and that it answers."""
        # Of ours alone: beside them lies what a person puts there.
        found = {path.parent.name for path in self._directory.glob("*/control")}
        names = {name for name in found if _WRITER.fullmatch(name)}
        new = sorted(names - self._tails.keys())
        async with self._database.read() as session:
            # Asked also where nothing is new: that is how it is known to be well.
            through = {name: await committed_through(session, UUID(name)) for name in new}
            if not new:
                await committed_through(session, UUID(int=0))
        for name in new:
            directory = self._directory / name
            try:
                control = Control(directory, writer=False)
            except FileNotFoundError:
                continue
            except OSError as error:
                self._cannot_follow(name, error)
                continue
            self._tails[name] = Tail(directory, control, through[name])

    async def _store_and_read_on(self, tail: Tail, entries: Sequence[Entry]) -> None:
        """While Postgres is at work on a batch, the next one is made ready."""
        storing = asyncio.create_task(self._store(tail, entries))
        try:
            most_entries, most_bytes = len(entries), 2 * self._limits.batch_bytes
            while not storing.done() and most_entries < 2 * self._batch_rows:
                await asyncio.sleep(0)
                most_entries += _READ_ON_ENTRIES
                tail.read(most_entries=most_entries, most_bytes=most_bytes)
        finally:
            await storing

    # ---- one batch

    async def _store(self, tail: Tail, entries: Sequence[Entry]) -> None:
        """Raises NexusError when unavailable, OvertakenError."""
        began_us = self._clock.monotonic_us()
        try:
            await self._transact(tail, entries)
        except NoPartitionError:
            for day in {one.row.created_at.date() for one in entries if one.row is not None}:
                await ensure_day(self._database, day)
            await self._transact_or_halve(tail, entries)
        except _ROW_FAULTS as error:
            await self._halve(tail, entries, error)
        self._observe_flush_s((self._clock.monotonic_us() - began_us) / _US_PER_S)

    async def _transact_or_halve(self, tail: Tail, entries: Sequence[Entry]) -> None:
        try:
            await self._transact(tail, entries)
        except _ROW_FAULTS as error:
            await self._halve(tail, entries, error)

    async def _halve(self, tail: Tail, entries: Sequence[Entry], error: Exception) -> None:
        """Find the rows that are to blame, and go on without them. Raises what blames no row."""
        state = getattr(error, "sqlstate", None) or ""
        if isinstance(error, asyncpg.PostgresError) and state[:2] not in _ROW_FAULT_CLASSES:
            raise error
        if len(entries) > 1:
            middle = len(entries) // 2
            await self._transact_or_halve(tail, entries[:middle])
            await self._transact_or_halve(tail, entries[middle:])
            return
        (one,) = entries
        duplicate = isinstance(error, asyncpg.UniqueViolationError)
        if not duplicate:
            # Without the message, which may quote what the row holds.
            log.error(
                "decision_row_refused",
                writer_seq=one.first_seq,
                error=type(error).__name__,
                sqlstate=state,
            )
        reason = DUPLICATE if duplicate else REFUSED
        await self._transact(tail, [one._replace(row=None, reason=reason)])

    async def _transact(self, tail: Tail, entries: Sequence[Entry]) -> None:
        through = entries[-1].last_seq
        rows = [one.row for one in entries]
        increments = fold(
            [row for row in rows if isinstance(row, Decision)],
            [row for row in rows if isinstance(row, Outcome)],
            [row for row in rows if isinstance(row, SeenLookup)],
        )
        decisions = [one.line for one in entries if isinstance(one.row, (SeenLookup, Decision))]
        outcomes = [one.line for one in entries if isinstance(one.row, Outcome)]
        gaps = [Gap(one.first_seq, one.last_seq, one.reason) for one in entries if one.row is None]
        async with self._database.write() as session:
            await self._advance(session, tail, through)
            await copy_rows(session, decisions, outcomes)
            await add_gaps(session, tail.writer_id, gaps, self._clock.now())
            # Last, as others wait for these rows until this commits.
            await add_rollups(session, increments)
        tail.settle(through)
        self.copied += len(decisions) + len(outcomes)
        for gap in gaps:
            if gap.reason != DUPLICATE:
                log.error("decision_gap", writer_id=str(tail.writer_id), **gap._asdict())

    async def _advance(self, session: WriteSession, tail: Tail, through: int) -> None:
        now = self._clock.now()
        if not await advance(session, tail.writer_id, tail.committed, through, now):
            raise OvertakenError(f"writer {tail.writer_id} is not at {tail.committed} any more")

    def _jitter(self) -> float:
        """A fraction from an id's random bits, so that replicas do not retry in step."""
        return (self._ids.uuid7().int & 0xFFFF) / 0x10000
