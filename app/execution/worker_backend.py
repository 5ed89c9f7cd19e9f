"""Carries orders out on workers: the target worker pulls the bytes and verifies them."""

from typing import Final, Protocol

from app.contract.enums import (
    ActionStatus,
    Disposition,
    FallbackReason,
    PayloadOwnership,
    TransferBackend,
    TransferStatus,
)
from app.contract.execution import BackendActionResult, TransferResult, TransferSession
from app.contract.payload import PayloadHandle
from app.execution.backend import Carried, FallsBack, fallen_back
from app.execution.orders import TransferOrder
from app.transfer.faults import WorkerCallError
from app.transfer.wire import NewTransfer, TransferFacts, TransferFailure, TransferSource

# Whoever asked waits for it; a worker that hangs ends the transfer by its own deadline.
_CANCEL_S: Final = 0.5
_F, _R = TransferFailure, FallbackReason

# What a failure at the worker means to whoever wanted the state.
FALLBACK_REASONS: Final[dict[TransferFailure, FallbackReason]] = {
    _F.SOURCE_UNREACHABLE: _R.PREFERRED_BACKEND_UNAVAILABLE,
    _F.SOURCE_REFUSED: _R.PREFERRED_BACKEND_UNAVAILABLE,
    # Bytes that are gone, or not the ones that were registered, are no state.
    _F.PAYLOAD_MISSING: _R.CACHE_MISS,
    _F.SIZE_MISMATCH: _R.CACHE_MISS,
    _F.CHECKSUM_MISMATCH: _R.CACHE_MISS,
    # The runtime's own decision: it took its sink back, or has moved on.
    _F.SINK_MISSING: _R.ENGINE_POLICY,
    _F.SINK_NOT_OPEN: _R.ENGINE_POLICY,
    _F.STALE_GENERATION: _R.ENGINE_POLICY,
    _F.NO_SPACE: _R.PREFERRED_BACKEND_UNAVAILABLE,
    _F.BACKEND_UNSUPPORTED: _R.UNSUPPORTED_CAPABILITY,
    _F.DEADLINE: _R.PREFERRED_BACKEND_UNAVAILABLE,
    _F.CANCELLED: _R.PREFERRED_BACKEND_UNAVAILABLE,
    _F.INTERNAL: _R.PREFERRED_BACKEND_UNAVAILABLE,
}


class CallsWorkers(Protocol):
    """The client, as far as execution uses it."""

    async def transfer(
        self, worker: str, order: NewTransfer, *, tenant: str, deadline_s: float
    ) -> TransferFacts:
        """Raises WorkerCallError when the worker cannot be asked."""

    async def cancel(
        self, worker: str, order: NewTransfer, *, tenant: str, deadline_s: float
    ) -> None:
        """Best effort, and harmless to repeat. Raises WorkerCallError."""


class WorkerBackend(FallsBack):
    """One transfer backend (`baseline_transport`, `staged_copy`, ...) of the workers."""

    def __init__(self, backend: TransferBackend, client: CallsWorkers) -> None:
        self.backend = backend
        self.name = f"nexuskv.worker.{backend}"
        self._client = client

    async def materialize(self, order: TransferOrder) -> Carried:
        return await self._move(order)

    async def prefetch(self, order: TransferOrder) -> Carried:
        return await self._move(order)

    async def store(self, order: TransferOrder) -> Carried:
        return await self._move(order)

    async def cancel(self, order: TransferOrder) -> None:
        """Undo: stop the transfer if it still runs; a completed one stays.

        Raises WorkerCallError when the worker does not say soon that it stopped.
        """
        await self._client.cancel(
            order.target_worker, self._wire(order), tenant=order.tenant, deadline_s=_CANCEL_S
        )

    async def _move(self, order: TransferOrder) -> Carried:
        try:
            facts = await self._client.transfer(
                order.target_worker,
                self._wire(order),
                tenant=order.tenant,
                deadline_s=order.deadline_s,
            )
        except WorkerCallError as error:
            return self._not_moved(
                order,
                FallbackReason.PREFERRED_BACKEND_UNAVAILABLE,
                TransferResult(TransferStatus.FAILED, detail=str(error)[:2048]),
                f"the worker {order.target_worker} did not answer: {error.kind}",
            )
        if obstacle := _unproven(order, facts):
            reason, detail = obstacle
            ended = TransferResult(_ended(facts), detail=facts.detail)
            return self._not_moved(order, reason, ended, detail)
        return Carried(self._moved(order, facts), facts.transfer_us)

    def _not_moved(
        self, order: TransferOrder, reason: FallbackReason, transfer: TransferResult, detail: str
    ) -> Carried:
        result = fallen_back(
            order, self.name, Disposition.RECOMPUTE, reason, transfer=transfer, detail=detail
        )
        return Carried(result)

    def _moved(self, order: TransferOrder, facts: TransferFacts) -> BackendActionResult:
        moved = PayloadHandle(
            handle_id=order.sink_id or order.target_payload_id or "",
            location=order.target,
            descriptor=order.source.descriptor,
            ownership=PayloadOwnership.OWNED if order.sink_id else PayloadOwnership.CACHED,
            opaque_ref=f"xxh3-128:{facts.checksum}",
        )
        kind = order.request.action_kind
        return BackendActionResult(
            requested_kind=kind,
            executed_kind=kind,
            status=ActionStatus.SUCCEEDED,
            final_disposition=kind,
            backend_name=self.name,
            source=order.source.location,
            target=order.target,
            degraded=order.request.degraded_from is not None,
            selected_backend=self.backend,
            payload_handle=moved,
            transfer_session=TransferSession(
                order.session_id,
                order.request,
                TransferResult(TransferStatus.COMPLETED, result_handle=moved),
            ),
            detail=f"{facts.bytes_transferred} bytes in {facts.transfer_us} us",
        )

    def _wire(self, order: TransferOrder) -> NewTransfer:
        return NewTransfer(
            session_id=order.session_id,
            source=TransferSource(
                worker=order.source_worker,
                payload_id=order.payload_id,
                checksum=order.checksum,
                payload_bytes=order.payload_bytes,
            ),
            backend=self.backend,
            target_sink_id=order.sink_id,
            target_payload_id=order.target_payload_id,
            engine_id=order.engine_id,
            engine_generation=order.engine_generation,
            decision_id=str(order.decision_id),
            wait_s=order.deadline_s,
            deadline_s=order.deadline_s,
        )


def _unproven(order: TransferOrder, facts: TransferFacts) -> tuple[FallbackReason, str] | None:
    """Why these facts are not evidence of a movement; None when they are."""
    if facts.status is not TransferStatus.COMPLETED:
        # It was asked to wait for longer than it may run.
        late = facts.status is TransferStatus.IN_FLIGHT
        failure = facts.failure or (_F.DEADLINE if late else _F.INTERNAL)
        return FALLBACK_REASONS[failure], f"{failure}: {facts.detail or 'no detail'}"[:2048]
    target = (facts.target_sink_id, facts.target_payload_id)
    if facts.session_id != order.session_id or target != (order.sink_id, order.target_payload_id):
        return FallbackReason.CACHE_MISS, "the worker answered for another transfer"
    if facts.bytes_transferred != order.payload_bytes or facts.checksum is None:
        told = f"{facts.bytes_transferred} of {order.payload_bytes} bytes"
        return FallbackReason.CACHE_MISS, f"the worker verified {told}"
    if order.checksum is not None and facts.checksum != order.checksum:
        return FallbackReason.CACHE_MISS, "the worker verified other bytes than were ordered"
    return None


def _ended(facts: TransferFacts) -> TransferStatus:
    if facts.failure is TransferFailure.PAYLOAD_MISSING:
        return TransferStatus.MISSING
    if facts.status is TransferStatus.CANCELLED:
        return TransferStatus.CANCELLED
    return TransferStatus.FAILED
