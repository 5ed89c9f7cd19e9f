"""The history as a list: filters that stand in the address, pages by keyset, results as one types.

A relative time (`last=24h`) is turned into a fixed one for the next page: a cursor belongs to
exactly the filters of its first page.
"""

from datetime import UTC, datetime, timedelta
from typing import Any, Final
from uuid import UUID

from starlette.responses import Response

from app.console.filters import Chosen, given, link
from app.console.reasons import said
from app.console.rendering import go, page
from app.console.visit import Visit
from app.contract.enums import TierKind, TransferBackend
from app.control.auth import require_tenant
from app.decisions.pages import decision_page
from app.decisions.record import DecisionKind, DecisionOutcome
from app.decisions.repository import DecisionFilter
from app.errors import ErrorCode, FieldError, NexusError

PAGE_ITEMS: Final = 50
LIST: Final = "/console/decisions"
LAST: Final = {
    "15m": ("15 minutes", timedelta(minutes=15)),
    "1h": ("hour", timedelta(hours=1)),
    "24h": ("24 hours", timedelta(days=1)),
    "7d": ("7 days", timedelta(days=7)),
    "30d": ("30 days", timedelta(days=30)),
}
_TEXTS: Final = (
    "tenant", "namespace", "model", "action", "backend", "tier", "reason", "policy_version",
    "trace_id",
)  # fmt: skip
_CLOSED: Final = {
    "kind": [one.value for one in DecisionKind],
    "outcome": [one.value for one in DecisionOutcome],
    "tier": [one.value for one in TierKind],
    "backend": [one.value for one in TransferBackend],
}
_FILTERS: Final = (*_TEXTS, "kind", "outcome", "last", "from", "to", "live")
_TRACE_CHARS: Final = 32


async def decisions_page(visit: Visit) -> Response:
    """A page of decisions that fit, newest first; the rows alone where htmx asks."""
    chosen = given(visit.request, _FILTERS)
    cursor = visit.request.query_params.get("cursor") or None
    now = visit.services.clock.now()
    wanted = _filter(visit, chosen, now)
    async with visit.services.database.read() as session:
        found = await decision_page(session, wanted, cursor=cursor, page_items=PAGE_ITEMS)
    fixed = {name: value for name, value in chosen.items() if name not in ("last", "live")}
    if wanted.created_from is not None:
        fixed["from"] = wanted.created_from.isoformat()
    more = link(LIST, {**fixed, "cursor": found.next_cursor}) if found.next_cursor else None
    return page(
        visit,
        "decisions_results.html" if visit.is_fragment else "decisions.html",
        chosen=chosen,
        rows=found.rows,
        more=more,
        newest=link(LIST, {name: value for name, value in chosen.items() if name != "from"})
        if cursor
        else None,
        live="live" in chosen and cursor is None,
        again=link(LIST, chosen),
        choices=_CLOSED,
        last=LAST,
        said=said,
    )


async def found_decision(visit: Visit) -> Response:
    """Where a decision id or a trace id leads."""
    text = given(visit.request, ("id",)).get("id", "")
    if len(text.replace("-", "")) == _TRACE_CHARS:
        try:
            wanted = UUID(text)
        except ValueError:
            wanted = None
        # A decision id is a uuidv7, and written with dashes everywhere; a trace id never is.
        if wanted is not None and "-" in text:
            return go(f"{LIST}/{wanted}")
        if wanted is not None:
            return go(link(LIST, {"trace_id": text.lower()}))
    detail = (
        "That is neither a decision id (as in 0198c2f0-…, with dashes) nor a trace id of 32"
        " hexadecimal digits. Both are in the answers' headers and in the log"
    )
    finding = FieldError("/query/id", ErrorCode.INVALID_FIELD, detail)
    raise NexusError(ErrorCode.INVALID_FIELD, detail, errors=[finding])


def _filter(visit: Visit, chosen: Chosen, now: datetime) -> DecisionFilter:
    """Raises INVALID_FIELD for a value that no decision has, TENANT_FORBIDDEN."""
    for name in ("kind", "outcome", "tier", "backend"):
        if chosen.get(name, _CLOSED[name][0]) not in _CLOSED[name]:
            raise _invalid(name, f"one of {', '.join(_CLOSED[name])}")
    if "tenant" in chosen:
        require_tenant(visit.principal, chosen["tenant"])
    created_from = _instant(chosen, "from")
    if (last := chosen.get("last")) is not None and created_from is None:
        if last not in LAST:
            raise _invalid("last", f"one of {', '.join(LAST)}")
        created_from = now - LAST[last][1]
    texts: dict[str, Any] = {name: chosen.get(name) for name in _TEXTS}
    return DecisionFilter(
        tenants=visit.principal.tenants,
        kind=chosen.get("kind"),
        outcome=chosen.get("outcome"),
        created_from=created_from,
        created_to=_instant(chosen, "to"),
        **texts,
    )


def _instant(chosen: Chosen, name: str) -> datetime | None:
    """A time as browsers send it, which has no zone and is taken as UTC, or with one."""
    if (text := chosen.get(name)) is None:
        return None
    try:
        found = datetime.fromisoformat(text.replace(" ", "+"))
        return found.replace(tzinfo=UTC) if found.tzinfo is None else found.astimezone(UTC)
    except (ValueError, OverflowError):
        raise _invalid(name, "a time in UTC such as 2026-08-01T12:00") from None


def _invalid(name: str, right: str) -> NexusError:
    detail = f"The filter {name} has to be {right}"
    finding = FieldError(f"/query/{name}", ErrorCode.INVALID_FIELD, detail)
    return NexusError(ErrorCode.INVALID_FIELD, detail, errors=[finding])
