"""Puts a batch of rows into Postgres exactly once, whatever goes wrong on the way.

A COPY whose connection breaks may have committed. It is sent again as it was: `created_at` and id
never change, so the primary key refuses it if the first one is stored, even if that one commits
only now. The rows found stored are then dropped, and the rest is sent. Rows that Postgres refuses
for what they contain are isolated by halving and given up one by one; everything else is a fault
of the environment, raised to the caller, who tries again with the rows still open.
"""

from collections.abc import Iterable, Sequence
from datetime import UTC
from typing import Any, NamedTuple, TypeAlias
from uuid import UUID

import asyncpg
import structlog

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
# What encoding a row for COPY raises for a value of the wrong type, range or character.
_ENCODING_FAULTS = (TypeError, ValueError, OverflowError)
# A flight of broken rows must not flood the log; the writer's loss line has the full count.
_LOGGED_ROWS_PER_FLIGHT = 5


# A row on its way: its number in the writer's sequence, its approximate bytes, and itself. A plain
# tuple, because making any other kind would be a third of what recording costs.
Waiting: TypeAlias = tuple[int, int, Decision | Outcome | PendingDecision]
Queued: TypeAlias = tuple[int, int, Decision | Outcome | None]
Row: TypeAlias = tuple[int, int, Decision | Outcome]


class Table(NamedTuple):
    name: str
    columns: tuple[str, ...]


DECISIONS = Table("decision", DECISION_COLUMNS)
OUTCOMES = Table("decision_outcome", OUTCOME_COLUMNS)


class Flight:
    """The rows of one batch that are neither stored nor given up, by table."""

    def __init__(self, rows: Iterable[Queued]) -> None:
        decisions: list[Row] = []
        outcomes: list[Row] = []
        self.given_up = 0
        for seq, row_bytes, row in rows:
            if row is None:
                self.given_up += 1
            else:
                table = decisions if type(row) is Decision else outcomes
                table.append((seq, row_bytes, row))
        self._open = {DECISIONS: decisions, OUTCOMES: outcomes}
        self.rows = self.open_rows + self.given_up

    @property
    def open_rows(self) -> int:
        return sum(map(len, self._open.values()))

    def of_table(self, table: Table) -> list[Row]:
        return self._open[table]

    def settle(self, table: Table, rows: Sequence[Row]) -> None:
        """Take out `rows`, all of which are open."""
        before = self._open[table]
        settled = {seq for seq, _, _ in rows} if len(rows) < len(before) else None
        self._open[table] = [] if settled is None else [q for q in before if q[0] not in settled]


class BatchStore:
    """Stores flights under one writer id."""

    def __init__(self, database: Database, writer_id: UUID) -> None:
        self._database = database
        self._writer_id = writer_id

    async def store(self, flight: Flight) -> None:
        """Settle every open row of `flight`: stored once, or given up and logged.

        Raises what Postgres or the connection raised when neither is possible now; rows settled
        before that have left the flight, and the others may be stored without our knowing.
        """
        # Decisions first, so that an outcome is never visible before its decision.
        for table in (DECISIONS, OUTCOMES):
            if rows := flight.of_table(table):
                await self._put(flight, table, rows)

    async def _put(self, flight: Flight, table: Table, rows: Sequence[Row]) -> None:
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

    async def _copy(self, table: Table, rows: Sequence[Row]) -> None:
        try:
            await self._database.copy_rows(table.name, table.columns, self._records(rows))
        except NoPartitionError:
            for day in {row.created_at.astimezone(UTC).date() for _, _, row in rows}:
                await ensure_day(self._database, day)
            await self._database.copy_rows(table.name, table.columns, self._records(rows))

    def _records(self, rows: Sequence[Row]) -> list[tuple[Any, ...]]:
        writer_id = self._writer_id
        return [(*row, writer_id, seq) for seq, _, row in rows]

    async def _halve(
        self, flight: Flight, table: Table, rows: Sequence[Row], error: Exception
    ) -> None:
        if len(rows) > 1:
            middle = len(rows) // 2
            await self._put(flight, table, rows[:middle])
            await self._put(flight, table, rows[middle:])
            return
        flight.settle(table, rows)
        flight.given_up += 1
        if flight.given_up > _LOGGED_ROWS_PER_FLIGHT:
            return
        log.error(
            "decision_row_refused",
            table=table.name,
            row_id=str(rows[0][2][0]),
            writer_seq=rows[0][0],
            error=type(error).__name__,
        )

    async def _without_stored(self, flight: Flight, table: Table, rows: Sequence[Row]) -> list[Row]:
        keys = [(row[0], row.created_at) for _, _, row in rows]
        async with self._database.read() as session:
            repository = DecisionRepository(session)
            if table is DECISIONS:
                stored = await repository.stored_decisions(keys)
            else:
                stored = await repository.stored_outcomes(keys)
        flight.settle(table, [queued for queued in rows if queued[2][0] in stored])
        return [queued for queued in rows if queued[2][0] not in stored]


def _blames_a_row(error: Exception) -> bool:
    if isinstance(error, asyncpg.PostgresError):
        return (error.sqlstate or "")[:2] in _ROW_FAULT_CLASSES
    return isinstance(error, _ENCODING_FAULTS)
