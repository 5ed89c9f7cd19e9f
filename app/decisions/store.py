"""Puts a batch of rows into Postgres exactly once, whatever goes wrong on the way.

A COPY whose connection breaks may have committed. It is sent again as it was: `created_at` and id
never change, so the primary key refuses it if the first one is stored, even if that one commits
only now. The rows found stored are then dropped, and the rest is sent. Rows that Postgres refuses
for what they contain are isolated by halving and given up one by one; everything else is a fault
of the environment, raised to the caller, who tries again with the rows still open.
"""

from collections.abc import Iterable, Sequence
from datetime import UTC, datetime, timedelta
from typing import Final, NamedTuple, TypeAlias
from uuid import UUID

import asyncpg
import structlog

from app.db import copy_text
from app.db.session import Database, NoPartitionError
from app.decisions.partitions import ensure_day
from app.decisions.record import (
    DECISION_COLUMNS,
    OUTCOME_COLUMNS,
    Decision,
    Outcome,
    PendingDecision,
)
from app.decisions.repository import DecisionRepository

log = structlog.get_logger(__name__)

# SQLSTATE classes that blame the row: data exception, integrity violation, program limit.
_ROW_FAULT_CLASSES = ("22", "23", "54")
# A flight of broken rows must not flood the log; the writer's loss line has the full count.
LOGGED_ROWS_PER_FLIGHT = 5
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND: Final = timedelta(microseconds=1)


# A row that waits: its number in the writer's sequence, its approximate bytes, and itself. A plain
# tuple, because making any other kind would be a third of what recording costs.
Waiting: TypeAlias = tuple[int, int, Decision | Outcome | PendingDecision]


class Table(NamedTuple):
    name: str
    columns: tuple[str, ...]


DECISIONS = Table("decision", DECISION_COLUMNS)
OUTCOMES = Table("decision_outcome", OUTCOME_COLUMNS)


class Line(NamedTuple):
    """A row as COPY takes it, and what finds it again should the COPY's end be unknown."""

    table: Table
    seq: int
    row_id: UUID
    created_us: int
    text: bytes

    @property
    def created_at(self) -> datetime:
        return _EPOCH + timedelta(microseconds=self.created_us)


class Flight:
    """The rows of one batch that are neither stored nor given up, by table."""

    def __init__(self, lines: Iterable[Line | None]) -> None:
        """None stands for a row that could not be made, and is given up."""
        self._open: dict[Table, list[Line]] = {DECISIONS: [], OUTCOMES: []}
        self.given_up = 0
        for line in lines:
            if line is None:
                self.given_up += 1
            else:
                self._open[line.table].append(line)
        self.rows = self.open_rows + self.given_up

    @property
    def open_rows(self) -> int:
        return sum(map(len, self._open.values()))

    def of_table(self, table: Table) -> list[Line]:
        return self._open[table]

    def settle(self, table: Table, lines: Sequence[Line]) -> None:
        """Take out `lines`, all of which are open."""
        before = self._open[table]
        settled = {line.seq for line in lines} if len(lines) < len(before) else None
        self._open[table] = (
            [] if settled is None else [line for line in before if line.seq not in settled]
        )


class BatchStore:
    """Stores flights under one writer id."""

    def __init__(self, database: Database, writer_id: UUID) -> None:
        self._database = database
        self._writer_id = writer_id

    def line(self, seq: int, row: Decision | Outcome | PendingDecision) -> Line:
        """The row's line. Raises for a value that no column takes."""
        if isinstance(row, (Decision, Outcome)):
            table = DECISIONS if isinstance(row, Decision) else OUTCOMES
            text = copy_text.line((*row, self._writer_id, seq))
            return Line(table, seq, row[0], (row.created_at - _EPOCH) // _MICROSECOND, text)
        text = f"{row.fields()}\t{self._writer_id}\t{seq}\n".encode()
        return Line(DECISIONS, seq, row.decision_id, row.created_us, text)

    async def store(self, flight: Flight) -> None:
        """Settle every open row of `flight`: stored once, or given up and logged.

        Raises what Postgres or the connection raised when neither is possible now; rows settled
        before that have left the flight, and the others may be stored without our knowing.
        """
        # Decisions first, so that an outcome is never visible before its decision.
        for table in (DECISIONS, OUTCOMES):
            if rows := flight.of_table(table):
                await self._put(flight, table, rows)

    async def _put(self, flight: Flight, table: Table, rows: Sequence[Line]) -> None:
        try:
            await self._copy(table, rows)
        except asyncpg.UniqueViolationError as error:
            absent = await self._without_stored(flight, table, rows)
            if len(absent) < len(rows):
                if absent:
                    await self._put(flight, table, absent)
                return
            await self._halve(flight, table, rows, error)
        except Exception as error:
            if not _blames_a_row(error):
                raise
            await self._halve(flight, table, rows, error)
        else:
            flight.settle(table, rows)

    async def _copy(self, table: Table, rows: Sequence[Line]) -> None:
        lines = [row.text for row in rows]
        try:
            await self._database.copy_lines(table.name, table.columns, lines)
        except NoPartitionError:
            for day in {row.created_at.date() for row in rows}:
                await ensure_day(self._database, day)
            await self._database.copy_lines(table.name, table.columns, lines)

    async def _halve(
        self, flight: Flight, table: Table, rows: Sequence[Line], error: Exception
    ) -> None:
        if len(rows) > 1:
            middle = len(rows) // 2
            await self._put(flight, table, rows[:middle])
            await self._put(flight, table, rows[middle:])
            return
        flight.settle(table, rows)
        flight.given_up += 1
        if flight.given_up > LOGGED_ROWS_PER_FLIGHT:
            return
        log.error(
            "decision_row_refused",
            table=table.name,
            row_id=str(rows[0].row_id),
            writer_seq=rows[0].seq,
            error=type(error).__name__,
        )

    async def _without_stored(
        self, flight: Flight, table: Table, rows: Sequence[Line]
    ) -> list[Line]:
        keys = [(row.row_id, row.created_at) for row in rows]
        async with self._database.read() as session:
            repository = DecisionRepository(session)
            if table is DECISIONS:
                stored = await repository.stored_decisions(keys)
            else:
                stored = await repository.stored_outcomes(keys)
        flight.settle(table, [row for row in rows if row.row_id in stored])
        return [row for row in rows if row.row_id not in stored]


def _blames_a_row(error: Exception) -> bool:
    return isinstance(error, asyncpg.PostgresError) and (
        (error.sqlstate or "")[:2] in _ROW_FAULT_CLASSES
    )
