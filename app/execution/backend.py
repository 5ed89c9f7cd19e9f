"""What carries an order out. Fallback is a value: an order that was not executed says why."""

from typing import Final, Protocol

import msgspec

from app.contract.enums import ActionStatus, Disposition, FallbackReason, TierKind, TransferStatus
from app.contract.execution import BackendActionResult, TransferResult, TransferSession
from app.contract.payload import PayloadHandle, PayloadLocation
from app.execution.orders import TransferOrder

SINK_HANDLE_KIND: Final = "sink"
# In the place of a backend's name where none was asked.
NO_BACKEND: Final = "nexuskv.none"


class Carried(msgspec.Struct, frozen=True):
    """How an order ended. `transfer_us` is how long the bytes took, by the clock of the worker that
    verified them; None where none did.
    """

    result: BackendActionResult
    transfer_us: int | None = None


class Backend(Protocol):
    """One way to act on a payload. No method raises for what did not work: the result says it."""

    @property
    def name(self) -> str:
        """How evidence and decisions call it."""

    async def materialize(self, order: TransferOrder) -> Carried:
        """Bring the payload into a sink that the engine authorised."""

    async def prefetch(self, order: TransferOrder) -> Carried:
        """Bring a copy nearer, ahead of its use."""

    async def store(self, order: TransferOrder) -> Carried:
        """Put a copy where it outlives its source."""

    async def skip(self, order: TransferOrder, reason: FallbackReason) -> BackendActionResult:
        """Do nothing, for a reason."""

    async def recompute(self, order: TransferOrder, reason: FallbackReason) -> BackendActionResult:
        """Leave the state to be computed again, for a reason."""


class FallsBack:
    """The two actions that are the same for every backend: they move nothing."""

    name: str

    async def skip(self, order: TransferOrder, reason: FallbackReason) -> BackendActionResult:
        return fallen_back(order, self.name, Disposition.SKIP, reason)

    async def recompute(self, order: TransferOrder, reason: FallbackReason) -> BackendActionResult:
        return fallen_back(order, self.name, Disposition.RECOMPUTE, reason)


class ProtocolBackend(FallsBack):
    """Completes the protocol and moves nothing: for sinks whose bytes no worker of ours can reach.

    Its transfers end as `registered`, never as `completed`: an intent is not movement.
    """

    name = "nexuskv.protocol"

    async def materialize(self, order: TransferOrder) -> Carried:
        return Carried(self._registered(order))

    async def prefetch(self, order: TransferOrder) -> Carried:
        return Carried(await self.skip(order, FallbackReason.UNSUPPORTED_CAPABILITY))

    async def store(self, order: TransferOrder) -> Carried:
        return Carried(await self.skip(order, FallbackReason.UNSUPPORTED_CAPABILITY))

    def _registered(self, order: TransferOrder) -> BackendActionResult:
        return BackendActionResult(
            requested_kind=Disposition.MATERIALIZE,
            executed_kind=Disposition.MATERIALIZE,
            status=ActionStatus.SUCCEEDED,
            final_disposition=Disposition.MATERIALIZE,
            backend_name=self.name,
            source=order.source.location,
            target=order.target,
            degraded=False,
            payload_handle=order.source,
            transfer_session=TransferSession(
                order.session_id, order.request, TransferResult(TransferStatus.REGISTERED)
            ),
        )


def fallen_back(
    order: TransferOrder,
    backend_name: str,
    disposition: Disposition,
    reason: FallbackReason,
    *,
    transfer: TransferResult | None = None,
    detail: str | None = None,
) -> BackendActionResult:
    """The result of an order that was not executed; `disposition` is recompute or skip."""
    recomputed = disposition is Disposition.RECOMPUTE
    return BackendActionResult(
        requested_kind=order.request.action_kind,
        executed_kind=disposition,
        status=ActionStatus.RECOMPUTED if recomputed else ActionStatus.SKIPPED,
        final_disposition=disposition,
        backend_name=backend_name,
        source=order.source.location,
        target=order.target,
        degraded=order.request.degraded_from is not None,
        selected_backend=order.request.transfer_backend,
        fallback_reason=reason,
        payload_handle=order.source,
        transfer_session=TransferSession(
            order.session_id,
            order.request,
            transfer or TransferResult(TransferStatus.FALLBACK),
        ),
        detail=detail,
    )


def not_ordered(
    requested: Disposition,
    source: PayloadHandle,
    target: PayloadLocation,
    disposition: Disposition,
    reason: FallbackReason,
    *,
    detail: str,
) -> BackendActionResult:
    """The result where it came to no order: no backend was asked, nothing was begun."""
    recomputed = disposition is Disposition.RECOMPUTE
    return BackendActionResult(
        requested_kind=requested,
        executed_kind=disposition,
        status=ActionStatus.RECOMPUTED if recomputed else ActionStatus.SKIPPED,
        final_disposition=disposition,
        backend_name=NO_BACKEND,
        source=source.location,
        target=target,
        degraded=False,
        fallback_reason=reason,
        payload_handle=source,
        detail=detail,
    )


def settled(result: BackendActionResult, disposition: Disposition) -> BackendActionResult:
    """A result that fell back, ended as the policy decided: a backend does not know that."""
    recomputed = disposition is Disposition.RECOMPUTE
    return msgspec.structs.replace(
        result,
        executed_kind=disposition,
        status=ActionStatus.RECOMPUTED if recomputed else ActionStatus.SKIPPED,
        final_disposition=disposition,
    )


def sink_location(sink_namespace: str, sink_value: str) -> PayloadLocation:
    """The engine's own buffer: its tier is the device, its place only the engine knows."""
    return PayloadLocation(
        handle_kind=f"{SINK_HANDLE_KIND}:{sink_namespace}"[:512],
        tier=TierKind.DEVICE,
        locator=sink_value,
    )
