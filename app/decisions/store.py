"""Puts a batch of rows into Postgres exactly once, whatever goes wrong on the way.

A COPY whose connection breaks may have committed. The next attempt therefore first asks which
rows are stored, and the primary key (`created_at`, id), which a retry never changes, refuses those
whose commit becomes visible only later. Rows that Postgres refuses for what they contain are
isolated by halving and given up one by one; everything else is a fault of the environment, raised
to the caller, who tries again with the rows still open.
"""

from collections.abc import Iterable, Sequence
from datetime import UTC
from typing import Any, NamedTuple
from uuid import UUID

import asyncpg
import structlog

from app.db.session import Database, NoPartitionError
from app.decisions.partitions import ensure_day
from app.decisions.record import DECISION_COLUMNS, OUTCOME_COLUMNS, Decision, Outcome
from app.decisions.repository import DecisionRepository

log = structlog.get_logger(__name__)

# SQLSTATE classes that blame the row: data exception, integrity violation, program limit.
_ROW_FAULT_CLASSES = ("22", "23", "54")
# What encoding a row for COPY raises for a value of the wrong type, range or character.
_ENCODING_FAULTS = (TypeError, ValueError, OverflowError)
# A flight of broken rows must not flood the log; the writer's loss line has the full count.
_LOGGED_ROWS_PER_FLIGHT = 5


class Queued(NamedTuple):
    """A row on its way: its number in the writer's sequence and its approximate bytes."""

    seq: int
    row_bytes: int
    row: Decision | Outcome


class Table(NamedTuple):
    name: str
    columns: tuple[str, ...]
    row_type: type


# Decisions first, so that an outcome is never visible before its decision.
TABLES = (
    Table("decision", DECISION_COLUMNS, Decision),
    Table("decision_outcome", OUTCOME_COLUMNS, Outcome),
)


class Flight:
    """The rows of one batch that are neither stored nor given up."""

    def __init__(self, rows: Iterable[Queued]) -> None:
        self.open = {queued.seq: queued for queued in rows}
        self.rows = len(self.open)
        self.given_up = 0

    def settle(self, rows: Iterable[Queued]) -> None:
        for queued in rows:
            del self.open[queued.seq]

    def of_table(self, table: Table) -> list[Queued]:
        return [queued for queued in self.open.values() if type(queued.row) is table.row_type]


class BatchStore:
    """Stores flights under one writer id."""

    def __init__(self, database: Database, writer_id: UUID) -> None:
        self._database = database
        self._writer_id = writer_id

    async def store(self, flight: Flight, *, doubtful: bool) -> None:
        """Settle every open row of `flight`: stored once, or given up and logged.

        `doubtful` says that an earlier attempt may have committed some of them. Raises what
        Postgres or the connection raised when neither is possible now; rows settled before that
        have left the flight.
        """
        for table in TABLES:
            rows = flight.of_table(table)
            if doubtful and rows:
                rows = await self._without_stored(flight, table, rows)
            if rows:
                await self._put(flight, table, rows)

    async def _put(self, flight: Flight, table: Table, rows: Sequence[Queued]) -> None:
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
            flight.settle(rows)

    async def _copy(self, table: Table, rows: Sequence[Queued]) -> None:
        try:
            await self._database.copy_rows(table.name, table.columns, self._records(rows))
        except NoPartitionError:
            for day in {queued.row.created_at.astimezone(UTC).date() for queued in rows}:
                await ensure_day(self._database, day)
            await self._database.copy_rows(table.name, table.columns, self._records(rows))

    def _records(self, rows: Sequence[Queued]) -> list[tuple[Any, ...]]:
        writer_id = self._writer_id
        return [(*queued.row, writer_id, queued.seq) for queued in rows]

    async def _halve(
        self, flight: Flight, table: Table, rows: Sequence[Queued], error: Exception
    ) -> None:
        if len(rows) > 1:
            middle = len(rows) // 2
            await self._put(flight, table, rows[:middle])
            await self._put(flight, table, rows[middle:])
            return
        flight.settle(rows)
        flight.given_up += 1
        if flight.given_up > _LOGGED_ROWS_PER_FLIGHT:
            return
        log.error(
            "decision_row_refused",
            table=table.name,
            row_id=str(rows[0].row[0]),
            writer_seq=rows[0].seq,
            error=type(error).__name__,
        )

    async def _without_stored(
        self, flight: Flight, table: Table, rows: Sequence[Queued]
    ) -> list[Queued]:
        keys = [(queued.row[0], queued.row.created_at) for queued in rows]
        async with self._database.read() as session:
            repository = DecisionRepository(session)
            if table.row_type is Decision:
                stored = await repository.stored_decisions(keys)
            else:
                stored = await repository.stored_outcomes(keys)
        flight.settle([queued for queued in rows if queued.row[0] in stored])
        return [queued for queued in rows if queued.row[0] not in stored]


def _blames_a_row(error: Exception) -> bool:
    if isinstance(error, asyncpg.PostgresError):
        return (error.sqlstate or "")[:2] in _ROW_FAULT_CLASSES
    return isinstance(error, _ENCODING_FAULTS)
