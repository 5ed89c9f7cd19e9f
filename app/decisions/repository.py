"""The SQL of the history's lists. Every read names the tenants the caller may see.

`created_at` is the millisecond in the id of a decision, so that an id alone finds its partition;
what belongs to a chain lies within a limited time after its root.
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass, fields
from datetime import datetime, timedelta
from typing import Any, Final
from uuid import UUID

from sqlalchemy import (
    ARRAY,
    ColumnElement,
    Row,
    Text,
    Uuid,
    any_,
    cast,
    false,
    func,
    literal,
    or_,
    select,
    text,
    tuple_,
)
from sqlalchemy.types import UserDefinedType

from app.db.session import ReadSession
from app.decisions.cursor import Moment, Position
from app.decisions.models import DecisionOutcomeRow, DecisionRow
from app.decisions.record import made_at
from app.errors import ErrorCode, NexusError

# Handles live minutes, but a consumed option answers replays with its receipt for a week.
CHAIN_SPAN = timedelta(days=8)
# Another machine's clock may have made the report.
CLOCKS_DIFFER = timedelta(hours=1)
# A receipt can be asked for again and again; what is shown of a chain has an end.
MAX_CHAIN_ROWS: Final = 500
MAX_OUTCOME_ROWS: Final = 1_000

_UNSEEN = {"writer_id", "writer_seq", "xid"}
DETAIL_COLUMNS: Final = [c for c in DecisionRow.__table__.columns if c.name not in _UNSEEN]
LIST_COLUMNS: Final = [c for c in DETAIL_COLUMNS if c.name != "inputs"]
OUTCOME_COLUMNS: Final = [c for c in DecisionOutcomeRow.__table__.columns if c.name not in _UNSEEN]
_JSON_COLUMNS: Final = {"match", "compatibility", "excluded", "estimate", "inputs"}
# JSON columns as text: it goes out as it is stored, without being read in between.
EXPORT_COLUMNS: Final = [
    cast(c, Text).label(c.name) if c.name in _JSON_COLUMNS else c for c in DETAIL_COLUMNS
]
# Partial indexes are of use only to a plan that knows the values.
_PLAN_FOR_VALUES = text(
    "SELECT set_config('plan_cache_mode', 'force_custom_plan', true),"
    " CAST(pg_current_snapshot() AS text) AS moment"
)


class _PgSnapshot(UserDefinedType[str]):
    cache_ok = True

    def get_col_spec(self, **_: Any) -> str:
        return "pg_snapshot"


@dataclass(frozen=True, slots=True)
class DecisionFilter:
    """Which decisions a list shows. None leaves a dimension open.

    `tenants` are those that the caller may see, None for all; `tenant` is the one asked for, and
    shows nothing when it is not among them. `reason` is the `fallback_reason`. `created_from` is
    inclusive, `created_to` exclusive; both aware.
    """

    tenants: Collection[str] | None
    tenant: str | None = None
    namespace: str | None = None
    model: str | None = None
    kind: str | None = None
    outcome: str | None = None
    action: str | None = None
    backend: str | None = None
    tier: str | None = None
    reason: str | None = None
    policy_version: str | None = None
    trace_id: str | None = None
    created_from: datetime | None = None
    created_to: datetime | None = None

    def bound(self) -> dict[str, object]:
        """What a cursor is bound to: all that was asked for, and nothing of who asks."""
        named = {field.name: getattr(self, field.name) for field in fields(self)}
        return {
            name: value for name, value in named.items() if name != "tenants" and value is not None
        }


@dataclass(frozen=True, slots=True)
class DecisionHistory:
    """One decision, the chain it belongs to, and what came of that chain; oldest first.

    `cut` when the chain or its outcomes are longer than what is shown of them.
    """

    decision: Row[Any]
    chain: Sequence[Row[Any]]
    outcomes: Sequence[Row[Any]]
    cut: bool


class DecisionRepository:
    """Queries over one read session."""

    def __init__(self, session: ReadSession) -> None:
        self._session = session

    async def moment(self) -> Moment:
        """What has committed by now. Comes before every `page` of the session."""
        row = (await self._session.execute(_PLAN_FOR_VALUES)).one()
        return Moment.read(row.moment)

    async def page(
        self, chosen: DecisionFilter, moment: Moment, *, after: Position | None, limit_rows: int
    ) -> Sequence[Row[Any]]:
        """At most `limit_rows` decisions after a position, newest first, without `inputs`.

        They are those that had committed at `moment`.
        """
        return await self._page(LIST_COLUMNS, chosen, moment, after, limit_rows)

    async def export_page(
        self, chosen: DecisionFilter, moment: Moment, *, after: Position | None, limit_rows: int
    ) -> Sequence[Row[Any]]:
        """As `page`, with `inputs`, and JSON columns as text."""
        return await self._page(EXPORT_COLUMNS, chosen, moment, after, limit_rows)

    async def _page(
        self,
        columns: Sequence[Any],
        chosen: DecisionFilter,
        moment: Moment,
        after: Position | None,
        limit_rows: int,
    ) -> Sequence[Row[Any]]:
        statement = (
            select(*columns)
            .where(*conditions(chosen), _committed_at(moment))
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
        found = await self._one(DETAIL_COLUMNS, decision_id, tenants)
        if found is None:
            raise NexusError(ErrorCode.NOT_FOUND, "No such decision, or not yet stored")
        began_at = time_in(found.root_id) or found.created_at
        chain = await self._chain(found, began_at, tenants)
        shown = chain[:MAX_CHAIN_ROWS]
        outcomes = await self._outcomes(
            list({found.decision_id, *(link.decision_id for link in shown)}), began_at, tenants
        )
        cut = len(chain) > MAX_CHAIN_ROWS or len(outcomes) > MAX_OUTCOME_ROWS
        return DecisionHistory(found, shown, outcomes[:MAX_OUTCOME_ROWS], cut)

    async def _one(
        self, columns: Sequence[Any], decision_id: UUID, tenants: Collection[str] | None
    ) -> Row[Any] | None:
        created_at = time_in(decision_id)
        if created_at is None:
            return None
        statement = select(*columns).where(
            DecisionRow.created_at == created_at,
            DecisionRow.decision_id == decision_id,
            *visible(DecisionRow.tenant, tenants),
        )
        found: Row[Any] | None = (await self._session.execute(statement)).one_or_none()
        return found

    async def _chain(
        self, found: Row[Any], began_at: datetime, tenants: Collection[str] | None
    ) -> Sequence[Row[Any]]:
        """The root and what followed it, one row more than is shown when there are too many."""
        root = await self._one(LIST_COLUMNS, found.root_id, tenants)
        statement = (
            select(*LIST_COLUMNS)
            .where(
                DecisionRow.root_id == found.root_id,
                DecisionRow.root_id != DecisionRow.decision_id,
                DecisionRow.created_at.between(began_at - CLOCKS_DIFFER, began_at + CHAIN_SPAN),
                *visible(DecisionRow.tenant, tenants),
            )
            .order_by(DecisionRow.created_at, DecisionRow.decision_id)
            .limit(MAX_CHAIN_ROWS + 1)
        )
        followed: Sequence[Row[Any]] = (await self._session.execute(statement)).all()
        return [*([] if root is None else [root]), *followed]

    async def _outcomes(
        self, decision_ids: Sequence[UUID], began_at: datetime, tenants: Collection[str] | None
    ) -> Sequence[Row[Any]]:
        told_at = func.coalesce(DecisionOutcomeRow.reported_at, DecisionOutcomeRow.created_at)
        statement = (
            select(*OUTCOME_COLUMNS)
            .where(
                _any_of(DecisionOutcomeRow.decision_id, decision_ids),
                # No upper bound: a report may come at any time after.
                DecisionOutcomeRow.created_at >= began_at - CLOCKS_DIFFER,
                *visible(DecisionOutcomeRow.tenant, tenants),
            )
            .order_by(told_at, DecisionOutcomeRow.outcome_id)
            .limit(MAX_OUTCOME_ROWS + 1)
        )
        found: Sequence[Row[Any]] = (await self._session.execute(statement)).all()
        return found


def conditions(chosen: DecisionFilter) -> list[ColumnElement[bool]]:
    """What a row must satisfy to be among the chosen."""
    equal = {
        DecisionRow.tenant: chosen.tenant,
        DecisionRow.namespace: chosen.namespace,
        DecisionRow.model: chosen.model,
        DecisionRow.kind: chosen.kind,
        DecisionRow.outcome: chosen.outcome,
        DecisionRow.action: chosen.action,
        DecisionRow.backend: chosen.backend,
        DecisionRow.tier: chosen.tier,
        DecisionRow.fallback_reason: chosen.reason,
        DecisionRow.policy_version: chosen.policy_version,
        DecisionRow.trace_id: chosen.trace_id,
    }
    found = [column == value for column, value in equal.items() if value is not None]
    if chosen.tenant is None or chosen.tenants is None:
        found += visible(DecisionRow.tenant, chosen.tenants)
    elif chosen.tenant not in chosen.tenants:
        found.append(false())
    if chosen.created_from is not None:
        found.append(DecisionRow.created_at >= chosen.created_from)
    if chosen.created_to is not None:
        found.append(DecisionRow.created_at < chosen.created_to)
    return found


def visible(column: Any, tenants: Collection[str] | None) -> list[ColumnElement[bool]]:
    """That a row is of one of these tenants; of one, in the form that reads an index in order."""
    if tenants is None:
        return []
    if len(tenants) == 1:
        return [column == next(iter(tenants))]
    return [column.in_(sorted(tenants))]


def time_in(decision_id: UUID) -> datetime | None:
    """When a decision was made; None for an id that no decision can have."""
    try:
        return made_at(decision_id)
    except ValueError:
        return None


def _committed_at(moment: Moment) -> ColumnElement[bool]:
    """That a row's transaction had ended at `moment`, which is before this statement.

    A visible row of a transaction that has yet to begin was restored from another cluster: its
    number says nothing here, and hiding the row would hide a history that was restored.
    """
    then = cast(literal(str(moment), Text), _PgSnapshot())
    now = select(func.pg_snapshot_xmax(func.pg_current_snapshot())).scalar_subquery()
    return or_(
        DecisionRow.xid.is_(None),
        func.pg_visible_in_snapshot(DecisionRow.xid, then),
        DecisionRow.xid >= now,
    )


def _any_of(column: Any, ids: Sequence[UUID]) -> ColumnElement[bool]:
    """One array parameter, so that the statement is the same for any number of ids."""
    return column == any_(literal(ids, ARRAY(Uuid)))  # type: ignore[no-any-return]
