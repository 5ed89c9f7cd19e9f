"""`/v1/prefetches`: state is brought before its use, where that is worth it and within budget."""

from typing import Any

from fastapi import APIRouter, Request, Response

from app.api.declared import errors_of
from app.api.prefetch_schemas import PrefetchFigures, PrefetchRequestBody, PrefetchView
from app.api.transfers import transfer_view
from app.contract.enums import Disposition
from app.control.auth import require_tenant
from app.decisions.record import DecisionKind
from app.dependencies import ServicesDep, TransfersWriter
from app.errors import ErrorCode
from app.execution.transfers import TransferAsked
from app.lifecycle.caller import Caller
from app.lifecycle.prefetch import PrefetchAsked, Prefetched, PrefetchStatus
from app.request_context import trace_of

_ERRORS = (
    ErrorCode.MISSING_FIELD,
    ErrorCode.UNKNOWN_FIELD,
    ErrorCode.INVALID_JSON,
    ErrorCode.INVALID_BODY,
    ErrorCode.TENANT_FORBIDDEN,
    ErrorCode.NOT_FOUND,
    ErrorCode.TRANSFER_CONFLICT,
)


def prefetches_router() -> APIRouter:
    """One route, of keys with the scope `transfers:write`; a prefetch is a transfer, and is read
    and cancelled as one."""
    router = APIRouter(prefix="/v1/prefetches", tags=["transfers"])
    running: dict[int | str, dict[str, Any]] = {
        202: {"model": PrefetchView, "description": "It is late, and goes on; or another has it."}
    }
    router.post(
        "",
        summary="Bring state before its use, if that is worth it",
        response_model=PrefetchView,
        responses=running | errors_of(*_ERRORS),
    )(begin_prefetch)
    return router


async def begin_prefetch(
    body: PrefetchRequestBody,
    request: Request,
    response: Response,
    principal: TransfersWriter,
    services: ServicesDep,
) -> PrefetchView:
    """Judge it, carry it out, and answer at its end, or when it is late: then it is cancelled or
    demoted, and the caller computes. What is refused is an answer too, with every figure. The
    transfer has the prefetch's id: `GET` and `DELETE /v1/transfers/{id}` show and stop it.
    """
    require_tenant(principal, body.tenant)
    trace = trace_of(request.scope["headers"])
    caller = Caller(principal, trace.trace_id if trace else None, services.clock.monotonic_us())
    services.keeping.require_room(DecisionKind.PREFETCH)
    lost = services.keeping.lost_rows
    found = await services.prefetching.run(_asked(body), caller)
    kept = await services.keeping.kept(DecisionKind.PREFETCH, found.decision_id, lost_before=lost)
    if kept is not None:
        response.headers["x-nexuskv-durability"] = kept.value
    if found.status in {PrefetchStatus.RUNNING, PrefetchStatus.DEMOTED}:
        response.status_code = 202
    return _view(body.prefetch_id, found)


def _asked(body: PrefetchRequestBody) -> PrefetchAsked:
    transfer = TransferAsked(
        tenant=body.tenant,
        transfer_id=body.prefetch_id,
        action=Disposition.PREFETCH,
        entry_id=body.entry_id,
        target_worker=body.target_worker,
        payload_id=body.payload_id,
        backend=body.backend,
    )
    return PrefetchAsked(
        transfer,
        body.use_within_us,
        body.use_probability,
        body.engine_id,
        body.pollution_us,
        body.interference_us,
        body.abandon,
    )


def _view(prefetch_id: str, found: Prefetched) -> PrefetchView:
    return PrefetchView(
        prefetch_id=prefetch_id,
        status=found.status,
        refusal=None if found.verdict is None else found.verdict.refusal,
        late=found.late,
        use=found.status is PrefetchStatus.COMPLETED and not found.late,
        decision_id=found.decision_id,
        figures=_figures(found),
        transfer=None if found.transfer is None else transfer_view(found.transfer),
    )


def _figures(found: Prefetched) -> PrefetchFigures | None:
    case, budget, verdict = found.case, found.budget, found.verdict
    if case is None or budget is None or verdict is None:
        return None
    return PrefetchFigures(
        expected_us=round(verdict.expected_us),
        gain_us=round(case.gain_us),
        transfer_us=round(case.transfer_us),
        moved_bytes=case.moved_bytes,
        max_bytes_in_flight=budget.max_bytes,
        taken_bytes_in_flight=budget.taken_bytes,
        max_bytes_per_us=budget.max_bytes_per_us,
        taken_bytes_per_us=budget.taken_bytes_per_us,
        tier_bytes=budget.tier_bytes,
        max_tier_share=budget.max_tier_share,
        taken_tier_bytes=budget.taken_tier_bytes,
        max_tier_transfers=budget.max_tier_transfers,
        taken_tier_transfers=budget.taken_tier_transfers,
        min_use_probability=budget.min_use_probability,
    )
