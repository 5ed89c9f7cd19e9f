"""The SQL of the history. Every read names the tenants the caller may see.

Reads bound `created_at`, so that they touch few of the day partitions: an id made as uuidv7 tells
its time, and a chain has a limited length in time.
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

from sqlalchemy import ARRAY, ColumnElement, Row, Uuid, any_, literal, select, tuple_

from app.db.session import ReadSession
from app.decisions.cursor import Position
from app.decisions.models import DecisionOutcomeRow, DecisionRow
from app.decisions.record import Decision, Outcome
from app.errors import ErrorCode, NexusError

# `created_at` and the time in the id are two readings of one clock, taken around one request.
ID_TIME_TOLERANCE = timedelta(hours=1)
# Handles live minutes, but a consumed option answers replays with its receipt for a week.
CHAIN_SPAN = timedelta(days=8)

_DETAIL_COLUMNS = [getattr(DecisionRow, name) for name in Decision._fields]
_LIST_COLUMNS = [getattr(DecisionRow, name) for name in Decision._fields if name != "inputs"]
_OUTCOME_COLUMNS = [getattr(DecisionOutcomeRow, name) for name in Outcome._fields]
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
# Year 9986: adding `CHAIN_SPAN` stays within what datetime can hold.
_LAST_ID_MS = 253_000_000_000_000


@dataclass(frozen=True, slots=True)
class DecisionFilter:
    """Which decisions a list shows. None leaves a dimension open; so does `tenants=None`.

    `created_from` is inclusive, `created_to` exclusive; both aware.
    """

    tenants: Collection[str] | None
    namespace: str | None = None
    model: str | None = None
    kind: str | None = None
    outcome: str | None = None
    created_from: datetime | None = None
    created_to: datetime | None = None


@dataclass(frozen=True, slots=True)
class DecisionHistory:
    """One decision, the chain it belongs to, and what came of that chain; oldest first."""

    decision: Row[Any]
    chain: Sequence[Row[Any]]
    outcomes: Sequence[Row[Any]]


class DecisionRepository:
    """Queries over one read session."""

    def __init__(self, session: ReadSession) -> None:
        self._session = session

    async def page(
        self, chosen: DecisionFilter, *, after: Position | None, limit_rows: int
    ) -> Sequence[Row[Any]]:
        """At most `limit_rows` decisions after a position, newest first, without `inputs`."""
        statement = (
            select(*_LIST_COLUMNS)
            .where(*_conditions(chosen))
            .order_by(DecisionRow.created_at.desc(), DecisionRow.decision_id.desc())
            .limit(limit_rows)
        )
        if after is not None:
            statement = statement.where(
                tuple_(DecisionRow.created_at, DecisionRow.decision_id)
                < tuple_(after.created_at, after.decision_id),
                # Implied by the above, but only a plain comparison prunes partitions.
                DecisionRow.created_at <= after.created_at,
            )
        found: Sequence[Row[Any]] = (await self._session.execute(statement)).all()
        return found

    async def history(
        self, decision_id: UUID, *, tenants: Collection[str] | None
    ) -> DecisionHistory:
        """One decision with its chain. Raises NOT_FOUND also for one of another tenant."""
        made_at = _time_in(decision_id)
        found = None
        if made_at is not None:
            found = (
                await self._session.execute(
                    select(*_DETAIL_COLUMNS).where(
                        DecisionRow.decision_id == decision_id,
                        DecisionRow.created_at.between(
                            made_at - ID_TIME_TOLERANCE, made_at + ID_TIME_TOLERANCE
                        ),
                        *_visible(DecisionRow.tenant, tenants),
                    )
                )
            ).one_or_none()
        if found is None:
            raise NexusError(ErrorCode.NOT_FOUND, "No such decision, or not yet stored")
        began_at = _time_in(found.root_id) or found.created_at
        chain = await self._chain(found.root_id, began_at, tenants)
        outcomes = await self._outcomes([link.decision_id for link in chain], began_at, tenants)
        return DecisionHistory(found, chain, outcomes)

    async def _chain(
        self, root_id: UUID, began_at: datetime, tenants: Collection[str] | None
    ) -> Sequence[Row[Any]]:
        statement = (
            select(*_LIST_COLUMNS)
            .where(
                DecisionRow.root_id == root_id,
                DecisionRow.created_at.between(began_at - ID_TIME_TOLERANCE, began_at + CHAIN_SPAN),
                *_visible(DecisionRow.tenant, tenants),
            )
            .order_by(DecisionRow.created_at, DecisionRow.decision_id)
        )
        found: Sequence[Row[Any]] = (await self._session.execute(statement)).all()
        return found

    async def _outcomes(
        self, decision_ids: Sequence[UUID], began_at: datetime, tenants: Collection[str] | None
    ) -> Sequence[Row[Any]]:
        statement = (
            select(*_OUTCOME_COLUMNS)
            .where(
                _any_of(DecisionOutcomeRow.decision_id, decision_ids),
                # No upper bound: a report may come at any time after.
                DecisionOutcomeRow.created_at >= began_at - ID_TIME_TOLERANCE,
                *_visible(DecisionOutcomeRow.tenant, tenants),
            )
            .order_by(DecisionOutcomeRow.created_at, DecisionOutcomeRow.outcome_id)
        )
        found: Sequence[Row[Any]] = (await self._session.execute(statement)).all()
        return found

    async def stored_decisions(self, rows: Sequence[tuple[UUID, datetime]]) -> set[UUID]:
        """Which of these (`decision_id`, `created_at`) are stored; at least one is given."""
        return await self._stored(DecisionRow.decision_id, DecisionRow.created_at, rows)

    async def stored_outcomes(self, rows: Sequence[tuple[UUID, datetime]]) -> set[UUID]:
        """Which of these (`outcome_id`, `created_at`) are stored; at least one is given."""
        return await self._stored(
            DecisionOutcomeRow.outcome_id, DecisionOutcomeRow.created_at, rows
        )

    async def _stored(
        self, id_column: Any, created_at: Any, rows: Sequence[tuple[UUID, datetime]]
    ) -> set[UUID]:
        times = [time for _, time in rows]
        statement = select(id_column).where(
            _any_of(id_column, [row_id for row_id, _ in rows]),
            created_at.between(min(times), max(times)),
        )
        return set((await self._session.execute(statement)).scalars())


def _conditions(chosen: DecisionFilter) -> list[ColumnElement[bool]]:
    conditions = _visible(DecisionRow.tenant, chosen.tenants)
    equal = {
        DecisionRow.namespace: chosen.namespace,
        DecisionRow.model: chosen.model,
        DecisionRow.kind: chosen.kind,
        DecisionRow.outcome: chosen.outcome,
    }
    conditions += [column == value for column, value in equal.items() if value is not None]
    if chosen.created_from is not None:
        conditions.append(DecisionRow.created_at >= chosen.created_from)
    if chosen.created_to is not None:
        conditions.append(DecisionRow.created_at < chosen.created_to)
    return conditions


def _visible(column: Any, tenants: Collection[str] | None) -> list[ColumnElement[bool]]:
    return [] if tenants is None else [column.in_(sorted(tenants))]


def _any_of(column: Any, ids: Sequence[UUID]) -> ColumnElement[bool]:
    """One array parameter, so that the statement is the same for any number of ids."""
    return column == any_(literal(ids, ARRAY(Uuid)))  # type: ignore[no-any-return]


def _time_in(decision_id: UUID) -> datetime | None:
    """The time in a uuidv7; None for any other id, or a time no row of ours can have."""
    id_ms = decision_id.int >> 80
    if decision_id.version != 7 or id_ms > _LAST_ID_MS:
        return None
    return _EPOCH + timedelta(milliseconds=id_ms)
