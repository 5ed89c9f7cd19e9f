"""`/v1/transfers`: bring a registered state's payload to another worker."""

from typing import Annotated, Any

import msgspec
from fastapi import APIRouter, Path, Query, Request, Response

from app.api.declared import errors_of
from app.api.transfer_schemas import TenantName, TransferRequestBody, TransferView
from app.contract.enums import Disposition
from app.control.auth import require_tenant
from app.decisions.record import DecisionKind
from app.dependencies import ServicesDep, TransfersWriter
from app.errors import ErrorCode, NexusError
from app.execution.sessions import RUNNING
from app.execution.transfers import StoredTransfer, TransferAsked
from app.lifecycle.caller import Caller
from app.request_context import trace_of
from app.transfer.faults import WorkerCallError

_ERRORS = (
    ErrorCode.MISSING_FIELD,
    ErrorCode.UNKNOWN_FIELD,
    ErrorCode.INVALID_JSON,
    ErrorCode.INVALID_BODY,
    ErrorCode.TENANT_FORBIDDEN,
    ErrorCode.NOT_FOUND,
    ErrorCode.TRANSFER_CONFLICT,
)

TransferPath = Annotated[str, Path(max_length=128, pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,127}$")]
TenantQuery = Annotated[TenantName, Query()]


def transfers_router() -> APIRouter:
    """Three routes, of keys with the scope `transfers:write`."""
    router = APIRouter(prefix="/v1/transfers", tags=["transfers"])
    running: dict[int | str, dict[str, Any]] = {
        202: {"model": TransferView, "description": "Another request carries it out."}
    }
    router.post(
        "",
        summary="Prefetch or store a state's payload",
        response_model=TransferView,
        responses=running | errors_of(*_ERRORS),
    )(begin_transfer)
    router.get("/{transfer_id}", summary="One transfer", responses=errors_of(*_ERRORS))(
        get_transfer
    )
    stopping: dict[int | str, dict[str, Any]] = {
        202: {"model": TransferView, "description": "It was told to stop and still runs."}
    }
    router.delete(
        "/{transfer_id}",
        summary="Cancel a running transfer",
        responses=stopping | errors_of(*_ERRORS),
    )(cancel_transfer)
    return router


async def begin_transfer(
    body: TransferRequestBody,
    request: Request,
    response: Response,
    principal: TransfersWriter,
    services: ServicesDep,
) -> TransferView:
    """Carry the transfer out and answer at its end. A transfer that fell back is an answer too:
    its status says so, and the same request may be sent again. One that completed before is carried
    out anew when its copy is gone from the target."""
    require_tenant(principal, body.tenant)
    trace = trace_of(request.scope["headers"])
    caller = Caller(principal, trace.trace_id if trace else None, services.clock.monotonic_us())
    asked = TransferAsked(
        tenant=body.tenant,
        transfer_id=body.transfer_id,
        action=Disposition(body.action),
        entry_id=body.entry_id,
        target_worker=body.target_worker,
        payload_id=body.payload_id,
        backend=body.backend,
    )
    kind = DecisionKind(asked.action.value)
    services.keeping.require_room(kind)
    lost = services.keeping.lost_rows
    moved = await services.move.run(asked, caller)
    kept = await services.keeping.kept(kind, moved.transfer.decision_id, lost_before=lost)
    if kept is not None:
        response.headers["x-nexuskv-durability"] = kept.value
    if moved.transfer.status in RUNNING:
        response.status_code = 202
    return transfer_view(moved.transfer, moved.copy_present)


async def get_transfer(
    transfer_id: TransferPath,
    tenant: TenantQuery,
    principal: TransfersWriter,
    services: ServicesDep,
) -> TransferView:
    """The transfer as it ended or stands; nobody asks its worker. Transfers are kept for a week
    after their last change."""
    require_tenant(principal, tenant)
    return transfer_view(await services.move.get(tenant, transfer_id))


async def cancel_transfer(
    transfer_id: TransferPath,
    tenant: TenantQuery,
    response: Response,
    principal: TransfersWriter,
    services: ServicesDep,
) -> TransferView:
    """Stop the transfer if it runs. One that ended is answered as it is."""
    require_tenant(principal, tenant)
    try:
        found = await services.move.cancel(tenant, transfer_id)
    except WorkerCallError as error:
        raise NexusError(
            ErrorCode.OVERLOADED,
            f"the worker could not be told to stop ({error.kind}); try again",
            internal=error.detail,
        ) from error
    if found.status in RUNNING:
        response.status_code = 202
    return transfer_view(found)


def transfer_view(found: StoredTransfer, copy_present: bool | None = None) -> TransferView:
    """A transfer as it is answered; `copy_present` None where nobody looked."""
    asked, end = found.asked, found.end
    result = end.result if end else None
    return TransferView(
        transfer_id=asked.transfer_id,
        tenant=asked.tenant,
        action=asked.action.value,
        entry_id=asked.entry_id,
        target_worker=asked.target_worker,
        status=found.status,
        decision_id=found.decision_id,
        created_at=found.created_at,
        updated_at=found.updated_at,
        locator=end.locator if end else None,
        copy_present=copy_present,
        bytes_transferred=end.bytes_transferred if end else 0,
        backend=result.backend_name if result else None,
        degraded=result.degraded if result else False,
        fallback_reason=end.fallback_reason if end else None,
        detail=end.detail if end else None,
        rejected=msgspec.to_builtins(end.rejected) if end else [],
        result=msgspec.to_builtins(result),
    )
