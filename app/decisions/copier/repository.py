"""The SQL of storing: batches of rows, how far a writer's rows are stored, gaps, and rollups."""

from collections.abc import Sequence
from dataclasses import fields
from datetime import datetime
from typing import Any, Final, NamedTuple
from uuid import UUID

from sqlalchemy import TextClause, text

from app.db.session import WriteSession
from app.decisions.record import DECISION_COLUMNS, OUTCOME_COLUMNS
from app.decisions.rollups import (
    DecisionGroup,
    DecisionSums,
    Increments,
    OutcomeGroup,
    OutcomeSums,
)

# What is stored is removed from the spool: also where a deployment has chosen to wait for less.
_DURABLE = text(
    "SELECT set_config('synchronous_commit', 'on', true)"
    " WHERE current_setting('synchronous_commit') = 'off'"
)
_COMMITTED = text("SELECT committed_seq FROM decision_writer WHERE writer_id = :writer_id")
_BEGIN = text(
    "INSERT INTO decision_writer (writer_id, committed_seq, first_seen_at, committed_at)"
    " VALUES (:writer_id, 0, :now, :now) ON CONFLICT (writer_id) DO NOTHING"
)
# Only from where it was read: another copier that went on meanwhile is not overtaken.
_ADVANCE = text(
    "UPDATE decision_writer SET committed_seq = :through, committed_at = :now"
    " WHERE writer_id = :writer_id AND committed_seq = :before RETURNING committed_seq"
)
_GAP = text(
    "INSERT INTO decision_gap (writer_id, first_seq, last_seq, reason, recorded_at)"
    " VALUES (:writer_id, :first_seq, :last_seq, :reason, :now)"
)


class Gap(NamedTuple):
    """Numbers, both ends included, whose rows are not stored, and why."""

    first_seq: int
    last_seq: int
    reason: str


async def committed_through(session: Any, writer_id: UUID) -> int:
    """Through which number a writer's rows are stored; 0 for one that is not known."""
    found = await session.scalar(_COMMITTED, {"writer_id": writer_id})
    return int(found or 0)


async def advance(
    session: WriteSession, writer_id: UUID, before: int, through: int, now: datetime
) -> bool:
    """Say how far the rows are stored that this transaction stores. False where `before` is not
    how far they were: then nothing of it may be stored.
    """
    await session.execute(_DURABLE)
    if before == 0:
        await session.execute(_BEGIN, {"writer_id": writer_id, "now": now})
    values = {"writer_id": writer_id, "before": before, "through": through, "now": now}
    return await session.scalar(_ADVANCE, values) is not None


async def copy_rows(
    session: WriteSession, decisions: Sequence[bytes], outcomes: Sequence[bytes]
) -> None:
    """Rows as lines of COPY. Raises NoPartitionError, and asyncpg's errors for what no column
    takes.
    """
    if decisions:
        await session.copy_lines("decision", DECISION_COLUMNS, decisions)
    if outcomes:
        await session.copy_lines("decision_outcome", OUTCOME_COLUMNS, outcomes)


async def add_gaps(
    session: WriteSession, writer_id: UUID, gaps: Sequence[Gap], now: datetime
) -> None:
    for gap in gaps:
        await session.execute(_GAP, {"writer_id": writer_id, "now": now, **gap._asdict()})


async def add_rollups(session: WriteSession, increments: Increments) -> None:
    """Let the sums grow. In one order, so that two who do it at once do not wait crosswise."""
    for statement, groups in (
        (_ADD_DECISIONS, increments.decisions),
        (_ADD_OUTCOMES, increments.outcomes),
    ):
        ordered: list[tuple[Any, Any]] = sorted(groups.items(), key=_group)
        if ordered:
            values = [{**group._asdict(), **_sums(sums)} for group, sums in ordered]
            await session.execute_many(statement, values)


def _sums(sums: DecisionSums | OutcomeSums) -> dict[str, Any]:
    values = {name: getattr(sums, name) for name in sums.__slots__}
    return values | {name: min(values[name], _MOST) for name in _SATURATING & values.keys()}


def _group(one: tuple[Any, object]) -> Any:
    return one[0]


def _adding(table: str, group: Any, sums: Any) -> TextClause:
    keys = group._fields
    names = [each.name for each in fields(sums)]
    columns = ", ".join((*keys, *names))
    given = ", ".join(f":{name}" for name in (*keys, *names))
    grown = ", ".join(f"{name} = {_grown(table, name)}" for name in names)
    return text(
        f"INSERT INTO {table} ({columns}) VALUES ({given})"  # noqa: S608 - names of our own
        f" ON CONFLICT ({', '.join(keys)}) DO UPDATE SET {grown}"
    )


def _grown(table: str, name: str) -> str:
    if name.endswith("_counts"):
        return f"sum_of_counts({table}.{name}, EXCLUDED.{name})"
    if name in _SATURATING:
        total = f"CAST({table}.{name} AS numeric) + EXCLUDED.{name}"
        return f"CAST(least({total}, {_MOST}) AS bigint)"
    return f"{table}.{name} + EXCLUDED.{name}"


# What callers tell: a sum of it stays at the most that its column holds, and never fails.
_SATURATING: Final = frozenset({"tokens", "bytes", "query_tokens", "matched_tokens"})
_MOST: Final = 2**63 - 1
_ADD_DECISIONS: Final = _adding("decision_rollup", DecisionGroup, DecisionSums)
_ADD_OUTCOMES: Final = _adding("outcome_rollup", OutcomeGroup, OutcomeSums)
