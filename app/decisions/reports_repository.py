"""The SQL of reports from outside: which decisions they are about, and what is stored of them."""

from collections.abc import Collection, Sequence
from datetime import datetime
from typing import Any, Final
from uuid import UUID

import asyncpg
from sqlalchemy import ARRAY, DateTime, Row, Uuid, exists, func, literal, select, text, tuple_

from app.db.session import NoPartitionError, ReadSession, WriteSession
from app.decisions.models import DecisionOutcomeRow, DecisionRow
from app.decisions.record import Outcome, OutcomeStatus
from app.decisions.repository import CLOCKS_DIFFER, OUTCOME_COLUMNS, time_in, visible

_ABOUT: Final = (
    DecisionRow.decision_id,
    DecisionRow.created_at,
    DecisionRow.tenant,
    DecisionRow.model,
    DecisionRow.kind,
    DecisionRow.outcome,
    DecisionRow.backend,
    DecisionRow.policy_version,
    DecisionRow.predicted_us,
    DecisionRow.recompute_us,
)
# As Postgres reads the arrays; JSON goes as its text.
_ARRAY_TYPES: Final = {
    "outcome_id": "uuid",
    "created_at": "timestamptz",
    "decision_id": "uuid",
    "tenant": "text",
    "status": "text",
    "fallback_reason": "text",
    "observed_us": "bigint",
    "bytes_transferred": "bigint",
    "physical": "boolean",
    "detail": "text",
    "model": "text",
    "kind": "text",
    "backend": "text",
    "policy_version": "text",
    "tokens": "bigint",
    "predicted_us": "bigint",
    "recompute_us": "bigint",
    "gain_us": "bigint",
    "transfer_us": "bigint",
}
_LOCK: Final = text("SELECT pg_advisory_xact_lock(CAST(:kind AS integer), CAST(:place AS integer))")
# "nkv" and a number: of all advisory locks in this database, those of reports.
_LOCK_KIND: Final = 0x6E6B7602
_LOCKS: Final = 64
_GIVEN: Final = ", ".join(f"CAST(:{name} AS {of}[])" for name, of in _ARRAY_TYPES.items())
_TAKEN: Final = ", ".join(
    "CAST(detail AS jsonb)" if name == "detail" else name for name in _ARRAY_TYPES
)
_INSERT: Final = text(
    f"INSERT INTO decision_outcome ({', '.join(_ARRAY_TYPES)}, reporter, reported_at)"  # noqa: S608 - names of our own
    f" SELECT {_TAKEN}, CAST(:reporter AS text), CAST(:reported_at AS timestamptz)"
    f" FROM unnest({_GIVEN}) WITH ORDINALITY AS given ({', '.join(_ARRAY_TYPES)}, place)"
    " ORDER BY place ON CONFLICT (created_at, outcome_id) DO NOTHING RETURNING outcome_id"
)


async def decisions_reported(
    session: ReadSession, decision_ids: Collection[UUID], tenants: Collection[str] | None
) -> dict[UUID, Row[Any]]:
    """What a report's row copies of its decision; those that are not there, or not visible, lack.

    An id tells the partition it is in, so each costs one look-up. `counted` is whether an outcome
    of it has a gain, `used` whether one tells of its use.
    """
    known = {found: time_in(found) for found in decision_ids}
    keys = [(made_at, found) for found, made_at in known.items() if made_at is not None]
    if not keys:
        return {}
    given = func.unnest(
        literal([made_at for made_at, _ in keys], ARRAY(DateTime(timezone=True))),
        literal([found for _, found in keys], ARRAY(Uuid)),
    )
    asked = given.table_valued("made_at", "decision_id").render_derived(name="asked")
    made_at = asked.c.made_at
    told = exists().where(
        DecisionOutcomeRow.decision_id == DecisionRow.decision_id,
        # What happened to a decision happened after it, whatever clock told the time.
        DecisionOutcomeRow.created_at >= DecisionRow.created_at - CLOCKS_DIFFER,
    )
    counted = told.where(DecisionOutcomeRow.gain_us.is_not(None))
    used = told.where(DecisionOutcomeRow.status == OutcomeStatus.CONSUMED)
    statement = (
        select(*_ABOUT, counted.label("counted"), used.label("used"))
        .join(
            asked,
            (DecisionRow.created_at == made_at) & (DecisionRow.decision_id == asked.c.decision_id),
        )
        .where(
            # Of a join, no partition could be left out.
            DecisionRow.created_at.between(min(keys)[0], max(keys)[0]),
            *visible(DecisionRow.tenant, tenants),
        )
    )
    found = (await session.execute(statement)).all()
    return {row.decision_id: row for row in found}


async def one_at_a_time(session: WriteSession, decision_ids: Collection[UUID]) -> None:
    """Wait for whoever else reports on these, until their transaction ends.

    Few locks for any number of decisions, taken in one order. What is read afterwards is what the
    others have left.
    """
    places = sorted({decision_id.int % _LOCKS for decision_id in decision_ids})
    for place in places:
        await session.execute(_LOCK, {"kind": _LOCK_KIND, "place": place})


async def reports_insert(
    session: WriteSession, rows: Sequence[Outcome], *, reporter: str, reported_at: datetime
) -> set[UUID]:
    """Store those that are not there yet; returns the `outcome_id` of each one stored now.

    In order of their keys, so that two callers with the same rows do not wait crosswise. Raises
    NoPartitionError where the day of a row has no partition.
    """
    if not rows:
        return set()
    ordered = sorted(rows, key=lambda row: (row.created_at, row.outcome_id))
    values: dict[str, Any] = {
        name: [getattr(row, name) for row in ordered] for name in _ARRAY_TYPES
    }
    try:
        stored = await session.scalars(
            _INSERT, values | {"reporter": reporter, "reported_at": reported_at}
        )
    except asyncpg.CheckViolationError as error:
        # A row without a partition violates no constraint that has a name.
        if error.constraint_name is None:
            raise NoPartitionError(str(error)) from error
        raise
    return set(stored)


async def reports_stored(
    session: ReadSession, keys: Sequence[tuple[datetime, UUID]]
) -> dict[UUID, Row[Any]]:
    """The outcomes of these (`created_at`, `outcome_id`)."""
    if not keys:
        return {}
    statement = select(*OUTCOME_COLUMNS).where(
        tuple_(DecisionOutcomeRow.created_at, DecisionOutcomeRow.outcome_id).in_(keys)
    )
    return {row.outcome_id: row for row in (await session.execute(statement)).all()}
