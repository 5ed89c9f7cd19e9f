"""What the service brought, how it does, and what needs somebody's attention.

History comes from the rollups alone, and one small page: the overview takes the same time however
long the history is. What stands in memory is shown also while Postgres is away.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import Any, Final, NamedTuple

from sqlalchemy import Row
from starlette.responses import Response

from app.api.engines import may_see, statuses_of
from app.console.filters import given
from app.console.reasons import said
from app.console.rendering import page
from app.console.visit import Visit
from app.control.keys import Scope
from app.db.session import ReadSession
from app.decisions.pages import decision_page
from app.decisions.record import Action
from app.decisions.repository import DecisionFilter
from app.decisions.summary import Cell, Summary, SummaryQuestion, SummaryStep, summarise
from app.engines.directory import EngineStatus
from app.engines.views import ViewState
from app.errors import ErrorCode, FieldError, NexusError

RECENT_ITEMS: Final = 8
MAX_REASONS: Final = 8
MAX_ENGINES: Final = 256


class Span(NamedTuple):
    """A time to look back, and how it is divided."""

    words: str
    length: timedelta
    step: SummaryStep
    step_length: timedelta


_HOUR: Final = timedelta(hours=1)
_DAY: Final = timedelta(days=1)
SPANS: Final[dict[str, Span]] = {
    "1h": Span("hour", _HOUR, SummaryStep.MINUTE, timedelta(minutes=1)),
    "24h": Span("24 hours", _DAY, SummaryStep.HOUR, _HOUR),
    "7d": Span("7 days", 7 * _DAY, SummaryStep.HOUR, _HOUR),
    "30d": Span("30 days", 30 * _DAY, SummaryStep.DAY, _DAY),
}
_USUAL: Final = "24h"
# Decisions of rejected requests have none.
ACTIONS: Final = (*(action.value for action in Action), None)
_ACTION_NAMES: Final = tuple(action or "none" for action in ACTIONS)
_ACTION_TONES: Final = ("good", "info", "plum", "warn", "flat", "bad")


class Concern(NamedTuple):
    """Something that needs attention: how much, what, and where to look."""

    severity: str
    what: str
    where: str | None


@dataclass(slots=True)
class History:
    """What the rollups say of a time. `series` has a cell for every step, also an empty one."""

    total: Cell
    series: Sequence[Cell]
    actions: Sequence[tuple[datetime, Sequence[int]]]
    reasons: Sequence[Cell]
    recent: Sequence[Row[Any]]


@dataclass(slots=True)
class Health:
    """What this process knows of those around it; None where the key may not see it."""

    engines: dict[str, int] | None = None
    workers: dict[str, int] | None = None
    concerns: list[Concern] = field(default_factory=list)


async def overview_page(visit: Visit) -> Response:
    """The page; 503 where the history cannot be read, with all that is known without it."""
    chosen = given(visit.request, ("span",))["span"] or _USUAL
    if chosen not in SPANS:
        detail = f"span has to be one of {', '.join(SPANS)}"
        finding = FieldError("/query/span", ErrorCode.INVALID_FIELD, detail)
        raise NexusError(ErrorCode.INVALID_FIELD, detail, errors=[finding])
    history, away = None, None
    if visit.allows(Scope.DECISIONS_READ):
        try:
            async with visit.services.database.read() as session:
                history = await _history(session, visit, SPANS[chosen])
        except NexusError as error:
            if not error.retryable:
                raise
            away = error
    series = history.series if history is not None else ()
    response = page(
        visit,
        "overview.html",
        status=200 if away is None else away.status,
        history=history,
        away=away,
        health=await _health(visit),
        spans=SPANS,
        chosen=chosen,
        gain_rows=[(cell.bucket, [cell.gain_us or 0]) for cell in series],
        latency_rows=[
            (cell.bucket, [cell.latency_p50_us, cell.latency_p95_us, cell.latency_p99_us])
            for cell in series
        ],
        action_columns=list(zip(_ACTION_NAMES, _ACTION_TONES, strict=True)),
        said=said,
    )
    if away is not None:
        response.headers["retry-after"] = "1"
    return response


async def _history(session: ReadSession, visit: Visit, span: Span) -> History:
    now = visit.services.clock.now()
    tenants = visit.principal.tenants

    whole = SummaryQuestion(tenants, now - span.length, now, span.step, with_total=True)
    by_time = await summarise(session, whole)
    counts_only = replace(whole, counts_only=True, with_total=False)
    by_action = await summarise(session, replace(counts_only, group_by=("action",)))
    by_reason = await summarise(
        session, replace(counts_only, step=SummaryStep.NONE, group_by=("reason",))
    )
    recent = await decision_page(
        session, DecisionFilter(tenants=tenants), cursor=None, page_items=RECENT_ITEMS
    )
    buckets = [*_buckets(by_time, span.step_length)]
    cells = {cell.bucket: cell for cell in by_time.cells}
    counts: dict[tuple[datetime | None, str | None], int] = {
        (cell.bucket, cell.group["action"]): cell.decisions for cell in by_action.cells
    }
    reasons = [cell for cell in by_reason.cells if cell.group["reason"] is not None]
    reasons.sort(key=lambda cell: -cell.decisions)
    return History(
        total=by_time.total,
        series=[cells.get(at) or Cell(at, {}) for at in buckets],
        actions=[(at, [counts.get((at, one), 0) for one in ACTIONS]) for at in buckets],
        reasons=[cell for cell in reasons if cell.decisions][:MAX_REASONS],
        recent=recent.rows,
    )


def _buckets(summary: Summary, length: timedelta) -> Iterator[datetime]:
    at = summary.created_from
    while at < summary.created_to:
        yield at
        at += length


async def _health(visit: Visit) -> Health:
    services, health = visit.services, Health()
    readiness = await services.probe.check()
    health.concerns += [
        Concern("error", f"{check.name}: {check.detail}", None)
        for check in readiness.checks
        if not check.ok
    ]
    fault = services.policy_provider.status().fault
    if fault is not None and visit.allows(Scope.POLICIES_READ):
        what = f"The activation of policy {fault.activation.number} is not in force: {fault.reason}"
        health.concerns.append(Concern("error", what, "/console/policies"))
    if visit.allows(Scope.WORKERS_READ):
        health.workers = services.workers.counts()
        if (silent := health.workers["unavailable"]) > 0:
            what = f"{silent} worker{'s are' if silent > 1 else ' is'} silent"
            health.concerns.append(Concern("error", what, "/console/workers"))
    if visit.allows(Scope.ENGINES_READ):
        await _add_engines(visit, health)
    return health


async def _add_engines(visit: Visit, health: Health) -> None:
    services = visit.services
    seen = [one for one in services.engines.engines() if may_see(visit.principal, one)]
    try:
        statuses = await statuses_of(services, visit.principal, seen[:MAX_ENGINES])
    except NexusError as error:
        if not error.retryable:
            raise
        health.concerns.append(Concern("error", error.message, "/console/engines"))
        return
    health.engines = dict.fromkeys((state.value for state in ViewState), 0)
    for status in statuses:
        health.engines[status.state.value] += 1
        if (concern := _of_engine(status)) is not None:
            health.concerns.append(concern)


def _of_engine(status: EngineStatus) -> Concern | None:
    where = f"/console/engines/{status.spec.instance_id}/{status.spec.dp_rank}"
    name = f"Engine {status.spec.instance_id}"
    if status.state is ViewState.STALE:
        return Concern("error", f"{name} was not heard for too long", where)
    if status.state is ViewState.UNKNOWN:
        return Concern("warning", f"{name}: frames are missing, what it holds is unknown", where)
    if status.source is not None and status.source.fault is not None:
        return Concern("error", f"{name}: {status.source.fault}", where)
    return None
