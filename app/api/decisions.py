"""`/v1/decisions`: the history, for callers whose key has `decisions:read`; reports on it need
`decisions:write`.
"""

from typing import Annotated
from uuid import UUID

from fastapi import APIRouter, Query, Response

from app.api.decisions_export import ExportRoute, export_responses
from app.api.decisions_reports import (
    batch_errors,
    report_errors,
    report_outcome,
    report_outcomes,
)
from app.api.decisions_rerun import rerun_decision, rerun_errors
from app.api.decisions_stream import StreamRoute, stream_responses
from app.api.declared import errors_of, list_errors, one_errors
from app.decisions.candidates import candidates
from app.decisions.pages import decision_page
from app.decisions.repository import DecisionRepository
from app.decisions.schemas import (
    CandidateView,
    DecisionDetail,
    DecisionPage,
    DecisionQuery,
    DecisionView,
    OutcomeView,
)
from app.decisions.summary import summarise
from app.decisions.summary_schemas import SummaryQuery, SummaryView
from app.dependencies import DecisionsReader, ReadDb, ServicesDep
from app.errors import ErrorCode


async def list_decisions(
    query: Annotated[DecisionQuery, Query()], principal: DecisionsReader, session: ReadDb
) -> DecisionPage:
    """Decisions of the caller's tenants, newest first. Following the cursor shows those that were
    stored when the first page was read, each once, whatever is stored meanwhile.
    """
    found = await decision_page(
        session, query.chosen(principal), cursor=query.cursor, page_items=query.page_size
    )
    items = [DecisionView.model_validate(row) for row in found.rows]
    return DecisionPage(items=items, next_cursor=found.next_cursor)


async def get_decision(
    decision_id: UUID, principal: DecisionsReader, session: ReadDb
) -> DecisionDetail:
    """One decision with its inputs, its chain and the outcomes of the chain."""
    found = await DecisionRepository(session).history(decision_id, tenants=principal.tenants)
    return DecisionDetail(
        **found.decision._asdict(),
        candidates=[CandidateView.model_validate(one) for one in candidates(found.decision)],
        chain=[DecisionView.model_validate(row) for row in found.chain],
        outcomes=[OutcomeView.model_validate(row) for row in found.outcomes],
        cut=found.cut,
    )


async def get_summary(
    query: Annotated[SummaryQuery, Query()],
    principal: DecisionsReader,
    session: ReadDb,
    services: ServicesDep,
) -> SummaryView:
    """Counts, rates, gain, latency and the quality of predictions, by time and group. Sums are kept
    when the decisions themselves are gone.
    """
    question = query.question(principal, services.clock.now())
    return SummaryView.of(await summarise(session, question), query.step)


def decisions_router() -> APIRouter:
    """The routes of the history."""
    router = APIRouter(prefix="/v1/decisions", tags=["decisions"])
    router.get("", summary="List decisions", responses=list_errors())(list_decisions)
    router.get(
        "/summary",
        summary="Counts, rates and gain over time",
        responses=errors_of(ErrorCode.UNKNOWN_FIELD, ErrorCode.TENANT_FORBIDDEN),
    )(get_summary)
    router.add_api_route(
        "/stream",
        StreamRoute().serve,
        methods=["GET"],
        response_class=Response,
        summary="Decisions as they are stored",
        responses=stream_responses(),
    )
    router.add_api_route(
        "/export",
        ExportRoute().serve,
        methods=["GET"],
        response_class=Response,
        summary="Decisions as one file",
        responses=export_responses(),
    )
    router.post("/outcomes", summary="Report many outcomes", responses=batch_errors())(
        report_outcomes
    )
    # Of ids alone, so that another method on one of the paths above is not taken for one.
    router.get(
        "/{decision_id:uuid}",
        summary="One decision, its chain and outcomes",
        responses=one_errors(),
    )(get_decision)
    router.get(
        "/{decision_id:uuid}/rerun",
        summary="Make a decision again from its record",
        responses=rerun_errors(),
    )(rerun_decision)
    router.post(
        "/{decision_id:uuid}/outcome", summary="Report an outcome", responses=report_errors()
    )(report_outcome)
    return router
