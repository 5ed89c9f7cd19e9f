"""Proves from what is stored that nothing of a writer is missing, and nothing is there twice.

A writer numbers what it records from 1, through both tables. Up to its `committed_seq` every number
has to be stored once, or lie in a gap that says why it was lost. Numbers of rows that left with age
prove nothing: what is compared begins above them.
"""

from bisect import bisect_left, bisect_right
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, date, datetime, time, timedelta
from typing import Final
from uuid import UUID

from app.db.session import Database
from app.decisions.completeness_repository import (
    WriterFacts,
    gaps_of,
    islands,
    removed_through,
    slice_end,
    writers,
)
from app.decisions.partitions import TABLES, attached_days

SLICE_ROWS: Final = 50_000
MAX_WRITERS: Final = 100_000
MAX_GAPS: Final = 100_000
MAX_RANGES: Final = 500_000
SHOWN_HOLES: Final = 5
# A row's time is that of its request, its number that of its answer: near midnight the order of
# both differs by at most the longest request.
_DISORDER: Final = timedelta(hours=1)
_STEP: Final = timedelta(microseconds=1)
_TRIES: Final = 3


class UnprovableError(Exception):
    """The check cannot come to a result; the message says why and what to do."""


class Numbers:
    """A set of numbers, kept as ranges; `repeated` counts those that were added again."""

    def __init__(self) -> None:
        self._firsts: list[int] = []
        self._lasts: list[int] = []
        self.repeated = 0

    def __len__(self) -> int:
        """How many ranges it takes."""
        return len(self._firsts)

    def add(self, first: int, last: int) -> None:
        """Add first..last, both included. O(log ranges) where they come in order."""
        start = bisect_left(self._lasts, first - 1)
        stop = bisect_right(self._firsts, last + 1)
        for place in range(start, stop):
            shared = min(last, self._lasts[place]) - max(first, self._firsts[place]) + 1
            self.repeated += max(0, shared)
        if start < stop:
            first = min(first, self._firsts[start])
            last = max(last, self._lasts[stop - 1])
        self._firsts[start:stop] = [first]
        self._lasts[start:stop] = [last]

    def ranges(self, first: int, last: int) -> Iterator[tuple[int, int]]:
        """The ranges within first..last, in order; none where that is empty."""
        if first > last:
            return
        for place in range(bisect_left(self._lasts, first), bisect_right(self._firsts, last)):
            yield max(first, self._firsts[place]), min(last, self._lasts[place])

    def count(self, first: int, last: int) -> int:
        """How many numbers of first..last are in the set."""
        return sum(end - begin + 1 for begin, end in self.ranges(first, last))

    def holes(self, first: int, last: int) -> Iterator[tuple[int, int]]:
        """The ranges of first..last that are not in the set, in order."""
        for begin, end in self.ranges(first, last):
            if first < begin:
                yield first, begin - 1
            first = end + 1
        if first <= last:
            yield first, last


@dataclass(frozen=True, slots=True)
class WriterProof:
    """What was found of one writer, in numbers from `from_seq` to `committed_seq`.

    `rows` are stored numbers, `gaps` recorded losses by reason, `missing` neither; `twice` are
    stored again, or stored and in a gap. `holes` are the first ranges of what is missing.
    """

    writer_id: UUID
    from_seq: int
    committed_seq: int
    rows: int
    gaps: dict[str, int]
    missing: int
    twice: int
    holes: list[tuple[int, int]]

    @property
    def holds(self) -> bool:
        return not self.missing and not self.twice


class _Walk:
    """What one walk through all stored rows found."""

    def __init__(self, days: dict[str, list[date]]) -> None:
        self.stored: defaultdict[UUID, Numbers] = defaultdict(Numbers)
        # Of rows clear of the days that have been dropped.
        self.lowest: dict[UUID, int] = {}
        whole = max(map(_first_of_the_last_run, days.values()))
        self.start = _midnight(min(min(found) for found in days.values()))
        self.whole_from = _midnight(whole)
        self.clear_from = self.whole_from + _DISORDER


async def prove(
    database: Database, writer_id: UUID | None = None, *, slice_rows: int = SLICE_ROWS
) -> list[WriterProof]:
    """Compare every writer's numbers, or one's, with what is stored; oldest writer first.

    Every query is bounded: rows are read in slices of about `slice_rows`. What is stored meanwhile
    is not looked at. Raises UnprovableError, and NexusError when the database is unavailable.
    """
    for _ in range(_TRIES):
        async with database.read() as session:
            known = await writers(session, writer_id, limit_rows=MAX_WRITERS + 1)
        if len(known) > MAX_WRITERS:
            raise UnprovableError(f"There are more than {MAX_WRITERS:,} writers: check them singly")
        days = await _days(database)
        walk = _Walk(days)
        await _walk(database, walk, writer_id, slice_rows)
        # A day that left meanwhile was seen in part.
        if await _days(database) == days:
            async with database.read() as session:
                removed = await removed_through(session)
            return [
                await _proof(database, facts, walk, removed.get(facts.writer_id, 0))
                for facts in known
            ]
    raise UnprovableError("Days of the history came and went all the while. Try again later")


async def _days(database: Database) -> dict[str, list[date]]:
    days = {table: await attached_days(database, table) for table in TABLES}
    if not all(days.values()):
        raise UnprovableError("The history has no partitions: `nexuskv migrate` makes them")
    return days


async def _walk(database: Database, walk: _Walk, writer_id: UUID | None, slice_rows: int) -> None:
    start = walk.start
    while True:
        # A transaction for each: none of them is long.
        async with database.read() as session:
            stop = await slice_end(session, start, limit_rows=slice_rows)
            if stop is None:
                return
            if start < walk.clear_from <= stop:
                stop = walk.clear_from - _STEP
            for island in await islands(session, start, stop, writer_id):
                numbers = walk.stored[island.writer_id]
                numbers.add(island.first_seq, island.last_seq)
                numbers.repeated += island.rows - (island.last_seq - island.first_seq + 1)
                if start >= walk.clear_from:
                    lowest = walk.lowest.get(island.writer_id, island.first_seq)
                    walk.lowest[island.writer_id] = min(lowest, island.first_seq)
        if sum(map(len, walk.stored.values())) > MAX_RANGES:
            raise UnprovableError(
                f"What is stored falls into more than {MAX_RANGES:,} pieces: check writers singly"
            )
        start = stop + _STEP


async def _proof(
    database: Database, facts: WriterFacts, walk: _Walk, removed_seq: int
) -> WriterProof:
    first, last = removed_seq + 1, facts.committed_seq
    if _began(facts) < walk.whole_from:
        # It may have had rows in days that are gone.
        first = max(first, walk.lowest.get(facts.writer_id, last + 1))
    async with database.read() as session:
        gaps = await gaps_of(session, facts.writer_id, limit_rows=MAX_GAPS + 1)
    if len(gaps) > MAX_GAPS:
        raise UnprovableError(f"Writer {facts.writer_id} has more than {MAX_GAPS:,} gaps")
    stored = walk.stored[facts.writer_id]
    rows = stored.count(first, last)
    twice = stored.repeated
    lost = Numbers()
    by_reason: dict[str, int] = {}
    for gap in gaps:
        begin, end = max(gap.first_seq, first), min(gap.last_seq, last)
        if begin > end:
            continue
        by_reason[gap.reason] = by_reason.get(gap.reason, 0) + end - begin + 1
        twice += stored.count(begin, end)
        lost.add(begin, end)
    for begin, end in lost.ranges(first, last):
        stored.add(begin, end)
    holes = list(stored.holes(first, last))
    return WriterProof(
        writer_id=facts.writer_id,
        from_seq=first,
        committed_seq=last,
        rows=rows,
        gaps=by_reason,
        missing=sum(end - begin + 1 for begin, end in holes),
        twice=twice,
        holes=holes[:SHOWN_HOLES],
    )


def _began(facts: WriterFacts) -> datetime:
    """When it can have recorded its first row: by its id's time, if that is one, or before."""
    writer_id = UUID(int=facts.writer_id.int)
    if writer_id.version != 7:
        return facts.first_seen_at
    made_at = datetime(1970, 1, 1, tzinfo=UTC) + timedelta(milliseconds=writer_id.int >> 80)
    return min(made_at, facts.first_seen_at)


def _first_of_the_last_run(days: list[date]) -> date:
    """The first of the days that follow one another up to the newest: late rows may be before."""
    first = days[-1]
    for day in reversed(days[:-1]):
        if first - day > timedelta(days=1):
            break
        first = day
    return first


def _midnight(day: date) -> datetime:
    return datetime.combine(day, time(), UTC)
