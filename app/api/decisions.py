"""`/v1/decisions`: the history, for callers whose key has `decisions:read`."""

from typing import Annotated
from uuid import UUID

from fastapi import APIRouter, Query

from app.api.declared import list_errors, one_errors
from app.control.auth import require_tenant
from app.control.keys import Principal
from app.decisions.cursor import Position, cursor_after, position_of
from app.decisions.repository import DecisionFilter, DecisionRepository
from app.decisions.schemas import (
    DecisionDetail,
    DecisionPage,
    DecisionQuery,
    DecisionView,
    OutcomeView,
)
from app.dependencies import DecisionsReader, ReadDb


async def list_decisions(
    query: Annotated[DecisionQuery, Query()], principal: DecisionsReader, session: ReadDb
) -> DecisionPage:
    """Decisions of the caller's tenants, newest first."""
    chosen = _chosen(query, principal)
    bound_to = query.filters()
    after = position_of(query.cursor, bound_to) if query.cursor is not None else None
    rows = await DecisionRepository(session).page(
        chosen, after=after, limit_rows=query.page_size + 1
    )
    items = [DecisionView.model_validate(row) for row in rows[: query.page_size]]
    next_cursor = None
    if len(rows) > query.page_size:
        last = items[-1]
        next_cursor = cursor_after(Position(last.created_at, last.decision_id), bound_to)
    return DecisionPage(items=items, next_cursor=next_cursor)


async def get_decision(
    decision_id: UUID, principal: DecisionsReader, session: ReadDb
) -> DecisionDetail:
    """One decision with its inputs, its chain and the outcomes of the chain."""
    found = await DecisionRepository(session).history(decision_id, tenants=principal.tenants)
    return DecisionDetail(
        **found.decision._asdict(),
        chain=[DecisionView.model_validate(row) for row in found.chain],
        outcomes=[OutcomeView.model_validate(row) for row in found.outcomes],
    )


def decisions_router() -> APIRouter:
    """The two routes of the history."""
    router = APIRouter(prefix="/v1/decisions", tags=["decisions"])
    router.get("", summary="List decisions", responses=list_errors())(list_decisions)
    router.get(
        "/{decision_id}",
        summary="One decision, its chain and outcomes",
        responses=one_errors(),
    )(get_decision)
    return router


def _chosen(query: DecisionQuery, principal: Principal) -> DecisionFilter:
    tenants = principal.tenants
    if query.tenant is not None:
        require_tenant(principal, query.tenant)
        tenants = frozenset({query.tenant})
    return DecisionFilter(
        tenants=tenants,
        namespace=query.namespace,
        model=query.model,
        kind=query.kind,
        outcome=query.outcome,
        created_from=query.created_from,
        created_to=query.created_to,
    )
