"""The SQL of the history's lists. Every read names the tenants the caller may see.

`created_at` is the millisecond in the id of a decision, so that an id alone finds its partition;
what belongs to a chain lies within a limited time after its root.
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass, fields
from datetime import datetime, timedelta
from functools import cache, lru_cache
from typing import Any, Final, Literal
from uuid import UUID

from sqlalchemy import (
    ARRAY,
    BigInteger,
    ColumnElement,
    DateTime,
    Text,
    Uuid,
    and_,
    any_,
    bindparam,
    cast,
    func,
    or_,
    select,
    text,
    tuple_,
)
from sqlalchemy.types import UserDefinedType

from app.db.native import Kept
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
# One decision is found by its id whatever that is: planning for each would take most of the time.
_PLAN_ONCE = text("SELECT set_config('plan_cache_mode', 'force_generic_plan', true)")


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

    decision: Any
    chain: Sequence[Any]
    outcomes: Sequence[Any]
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
    ) -> Sequence[Any]:
        """At most `limit_rows` decisions after a position, newest first, without `inputs`.

        They are those that had committed at `moment`.
        """
        return await self._page("list", chosen, moment, after, limit_rows)

    async def export_page(
        self, chosen: DecisionFilter, moment: Moment, *, after: Position | None, limit_rows: int
    ) -> Sequence[Any]:
        """As `page`, with `inputs`, and JSON columns as text."""
        return await self._page("export", chosen, moment, after, limit_rows)

    async def _page(
        self,
        of: Literal["list", "export"],
        chosen: DecisionFilter,
        moment: Moment,
        after: Position | None,
        limit_rows: int,
    ) -> Sequence[Any]:
        values = named(chosen)
        if after is not None:
            values |= {"after_at": after.created_at, "after_id": after.decision_id}
        statement = _page_statement(of, frozenset(values))
        values |= {"moment": str(moment), "limit_rows": limit_rows}
        found: Sequence[Any] = (await self._session.execute(statement, values)).all()
        return found

    async def history(
        self, decision_id: UUID, *, tenants: Collection[str] | None
    ) -> DecisionHistory:
        """One decision with its chain. Raises NOT_FOUND also for one of another tenant."""
        await self._session.execute(_PLAN_ONCE)
        found = await self._one("detail", decision_id, tenants)
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
        self, of: Literal["list", "detail"], decision_id: UUID, tenants: Collection[str] | None
    ) -> Any:
        """None where there is none."""
        created_at = time_in(decision_id)
        if created_at is None:
            return None
        values = {"created_at": created_at, "decision_id": decision_id} | _seen_by(tenants)
        statement = _one_statement(of, everyone=tenants is None)
        return (await self._session.execute(statement, values)).one_or_none()

    async def _chain(
        self, found: Any, began_at: datetime, tenants: Collection[str] | None
    ) -> Sequence[Any]:
        """The root and what followed it, one row more than is shown when there are too many."""
        root = found
        if found.root_id != found.decision_id:
            root = await self._one("list", found.root_id, tenants)
        values = {
            "root_id": found.root_id,
            "first_at": began_at - CLOCKS_DIFFER,
            "last_at": began_at + CHAIN_SPAN,
        }
        statement = _chain_statement(everyone=tenants is None)
        followed = await self._session.execute(statement, values | _seen_by(tenants))
        return [*([] if root is None else [root]), *followed.all()]

    async def _outcomes(
        self, decision_ids: Sequence[UUID], began_at: datetime, tenants: Collection[str] | None
    ) -> Sequence[Any]:
        values = {"decision_ids": decision_ids, "first_at": began_at - CLOCKS_DIFFER}
        statement = _outcomes_statement(everyone=tenants is None)
        found = await self._session.execute(statement, values | _seen_by(tenants))
        return found.all()  # type: ignore[no-any-return]


def _seen_by(tenants: Collection[str] | None) -> dict[str, Any]:
    return {} if tenants is None else {"tenants": sorted(tenants)}


def _of_tenants(column: Any) -> ColumnElement[bool]:
    return column == any_(bindparam("tenants", type_=ARRAY(Text)))  # type: ignore[no-any-return]


@cache
def _one_statement(of: Literal["list", "detail"], *, everyone: bool) -> Kept:
    statement = select(*(LIST_COLUMNS if of == "list" else DETAIL_COLUMNS)).where(
        DecisionRow.created_at == bindparam("created_at"),
        DecisionRow.decision_id == bindparam("decision_id"),
    )
    return Kept(statement if everyone else statement.where(_of_tenants(DecisionRow.tenant)))


@cache
def _chain_statement(*, everyone: bool) -> Kept:
    statement = (
        select(*LIST_COLUMNS)
        .where(
            DecisionRow.root_id == bindparam("root_id"),
            DecisionRow.root_id != DecisionRow.decision_id,
            DecisionRow.created_at.between(bindparam("first_at"), bindparam("last_at")),
        )
        .order_by(DecisionRow.created_at, DecisionRow.decision_id)
        .limit(MAX_CHAIN_ROWS + 1)
    )
    return Kept(statement if everyone else statement.where(_of_tenants(DecisionRow.tenant)))


@cache
def _outcomes_statement(*, everyone: bool) -> Kept:
    told_at = func.coalesce(DecisionOutcomeRow.reported_at, DecisionOutcomeRow.created_at)
    statement = (
        select(*OUTCOME_COLUMNS)
        .where(
            DecisionOutcomeRow.decision_id == any_(bindparam("decision_ids", type_=ARRAY(Uuid))),
            # No upper bound: a report may come at any time after.
            DecisionOutcomeRow.created_at >= bindparam("first_at"),
        )
        .order_by(told_at, DecisionOutcomeRow.outcome_id)
        .limit(MAX_OUTCOME_ROWS + 1)
    )
    return Kept(statement if everyone else statement.where(_of_tenants(DecisionOutcomeRow.tenant)))


# By the name of the value that each compares with.
_EQUAL: Final[dict[str, Any]] = {
    "tenant": DecisionRow.tenant,
    "namespace": DecisionRow.namespace,
    "model": DecisionRow.model,
    "kind": DecisionRow.kind,
    "outcome": DecisionRow.outcome,
    "action": DecisionRow.action,
    "backend": DecisionRow.backend,
    "tier": DecisionRow.tier,
    "reason": DecisionRow.fallback_reason,
    "policy_version": DecisionRow.policy_version,
    "trace_id": DecisionRow.trace_id,
}
_CONDITIONS: Final[dict[str, ColumnElement[bool]]] = {
    **{name: column == bindparam(name) for name, column in _EQUAL.items()},
    # A request without a trace was answered with one that begins with its decision.
    "traced": or_(
        DecisionRow.trace_id == bindparam("traced"),
        and_(
            DecisionRow.created_at == bindparam("began_at"),
            DecisionRow.decision_id == bindparam("began_id"),
        ),
    ),
    "tenants": _of_tenants(DecisionRow.tenant),
    "created_from": DecisionRow.created_at >= bindparam("created_from"),
    "created_to": DecisionRow.created_at < bindparam("created_to"),
    "after_id": tuple_(DecisionRow.created_at, DecisionRow.decision_id)
    < tuple_(
        bindparam("after_at", type_=DateTime(timezone=True)), bindparam("after_id", type_=Uuid())
    ),
    # Implied by the one before, but only a plain comparison prunes partitions.
    "after_at": DecisionRow.created_at <= bindparam("after_at"),
}


def named(chosen: DecisionFilter) -> dict[str, Any]:
    """The values that `conditions` compares with, by their names."""
    values = chosen.bound()
    if (began := _began_with(chosen.trace_id)) is not None:
        values["traced"] = values.pop("trace_id")
        values |= {"began_at": time_in(began), "began_id": began}
    if chosen.tenants is None:
        return values
    if chosen.tenant is None and len(chosen.tenants) == 1:
        # In the form that reads an index in order.
        return values | {"tenant": next(iter(chosen.tenants))}
    if chosen.tenant is None or chosen.tenant not in chosen.tenants:
        return values | {"tenants": sorted(chosen.tenants)}
    return values


def _began_with(trace_id: str | None) -> UUID | None:
    """The decision that a trace began with, where its id can be one."""
    try:
        began = UUID(trace_id or "")
    except ValueError:
        return None
    return began if time_in(began) is not None else None


def conditions(names: Collection[str]) -> list[ColumnElement[bool]]:
    """What a row must satisfy, as parameters of these names."""
    return [_CONDITIONS[name] for name in sorted(names) if name in _CONDITIONS]


@lru_cache(maxsize=1_024)
def _page_statement(of: Literal["list", "export"], names: frozenset[str]) -> Kept:
    return Kept(
        select(*(LIST_COLUMNS if of == "list" else EXPORT_COLUMNS))
        .where(*conditions(names), _COMMITTED)
        .order_by(DecisionRow.created_at.desc(), DecisionRow.decision_id.desc())
        .limit(bindparam("limit_rows", type_=BigInteger()))
    )


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


def _committed() -> ColumnElement[bool]:
    """That a row's transaction had ended at `moment`, which is before this statement.

    A visible row of a transaction that has yet to begin was restored from another cluster: its
    number says nothing here, and hiding the row would hide a history that was restored.
    """
    then = cast(bindparam("moment", type_=Text()), _PgSnapshot())
    now = select(func.pg_snapshot_xmax(func.pg_current_snapshot())).scalar_subquery()
    return or_(
        DecisionRow.xid.is_(None),
        func.pg_visible_in_snapshot(DecisionRow.xid, then),
        DecisionRow.xid >= now,
    )


_COMMITTED: Final = _committed()
