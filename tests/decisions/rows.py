"""Rows as the pipeline makes them, and what is stored of them."""

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

from sqlalchemy import select

from app.clock import SystemIds
from app.db.copy_text import line
from app.db.session import Database, WriteSession
from app.decisions.copier.repository import add_rollups, copy_rows
from app.decisions.models import DecisionOutcomeRow, DecisionRow
from app.decisions.record import (
    Decision,
    DecisionKind,
    DecisionOutcome,
    Outcome,
    OutcomeStatus,
)
from app.decisions.rollups import fold

IDS = SystemIds()
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def id_at(created_at: datetime, number: int) -> UUID:
    """A uuidv7 of that time; `number` orders ids of one millisecond."""
    ms = (created_at - _EPOCH) // timedelta(milliseconds=1)
    return UUID(int=(ms << 80) | (0x7 << 76) | (0b10 << 62) | number)


def a_decision(**changes: Any) -> Decision:
    decision_id = changes.get("decision_id") or IDS.uuid7()
    row = Decision(
        decision_id=decision_id,
        created_at=_EPOCH + timedelta(milliseconds=decision_id.int >> 80),
        tenant="acme",
        namespace="default",
        model="m-7b",
        kind=DecisionKind.LOOKUP,
        outcome=DecisionOutcome.HIT,
        fallback_reason=None,
        identity_hash=bytes(range(16)),
        parent_id=None,
        root_id=decision_id,
        key_id="0123456789ab",
        trace_id="4bf92f3577b34da6a3ce929d0e0e4736",
        policy_version="default@1",
        entry_id="entry-1",
        state_id=IDS.uuid7(),
        match='{"classification":"prefix","units":128}',
        compatibility='{"reusable":true}',
        excluded='[{"entry_id":"entry-2","reason":"evidence_mismatch","field":"adapter"}]',
        estimate=None,
        selected_path=None,
        path=["described", "matched", "validated"],
        index_revision=42,
        latency_us=310,
        inputs='{"version":1,"candidates":[1,2,3]}',
    )
    return row._replace(**changes)


def an_outcome(decision: Decision, **changes: Any) -> Outcome:
    row = Outcome(
        outcome_id=IDS.uuid7(),
        created_at=decision.created_at,
        decision_id=decision.decision_id,
        tenant=decision.tenant,
        status=OutcomeStatus.COMPLETED,
        fallback_reason=None,
        observed_us=1200,
        bytes_transferred=4096,
        physical=False,
        detail='{"backend":"baseline"}',
    )
    return row._replace(**changes)


async def stored_decisions(database: Database) -> list[UUID]:
    """Every stored decision's id, in the order of the writer's sequence."""
    return await _stored(database, DecisionRow.decision_id, DecisionRow.writer_seq)


async def stored_outcomes(database: Database) -> list[UUID]:
    return await _stored(database, DecisionOutcomeRow.outcome_id, DecisionOutcomeRow.writer_seq)


async def stored_numbers(database: Database) -> list[int]:
    """The writers' sequence numbers of both tables, ascending."""
    return sorted(
        await _stored(database, DecisionRow.writer_seq, DecisionRow.writer_seq)
        + await _stored(database, DecisionOutcomeRow.writer_seq, DecisionOutcomeRow.writer_seq)
    )


async def store(
    database: Database, decisions: Sequence[Decision], outcomes: Sequence[Outcome] = ()
) -> None:
    """Put rows into the database without a writer, with what they add to the sums."""
    async with database.write() as session:
        await store_in(session, decisions, outcomes)


async def store_in(
    session: WriteSession,
    decisions: Sequence[Decision],
    outcomes: Sequence[Outcome] = (),
    *,
    sums: bool = True,
) -> None:
    """`store` in a transaction of the caller's. Without sums, several such can be open at once."""
    writer_id = IDS.uuid7()
    made = [line((*row, writer_id, seq)) for seq, row in enumerate(decisions, 1)]
    told = [line((*row, writer_id, seq)) for seq, row in enumerate(outcomes, 1 + len(decisions))]
    await copy_rows(session, made, told)
    if sums:
        await add_rollups(session, fold(decisions, outcomes))


async def _stored(database: Database, column: Any, order: Any) -> list[Any]:
    async with database.read() as session:
        return list((await session.execute(select(column).order_by(order))).scalars())
