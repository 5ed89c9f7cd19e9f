"""What carries an order out. Fallback is a value: an order that was not executed says why."""

from typing import Final, Protocol

from app.contract.enums import (
    ActionStatus,
    Disposition,
    TierKind,
    TransferStatus,
)
from app.contract.execution import (
    BackendActionResult,
    TransferRequest,
    TransferResult,
    TransferSession,
)
from app.contract.payload import PayloadHandle, PayloadLocation

SINK_HANDLE_KIND: Final = "sink"


class Backend(Protocol):
    """One way to materialize a payload into a sink that the engine authorised."""

    @property
    def name(self) -> str:
        """How evidence and decisions call it."""

    async def materialize(
        self, session_id: str, source: PayloadHandle, sink: PayloadLocation
    ) -> BackendActionResult:
        """The result says what was executed; it does not raise for a transfer that failed."""


class ProtocolBackend:
    """Completes the protocol and moves nothing: for sinks whose bytes no worker of ours can reach.

    Its transfers end as `registered`, never as `completed`: an intent is not movement.
    """

    name = "nexuskv.protocol"

    async def materialize(
        self, session_id: str, source: PayloadHandle, sink: PayloadLocation
    ) -> BackendActionResult:
        request = TransferRequest(
            action_kind=Disposition.MATERIALIZE, desired_target=sink, source_handle=source
        )
        return BackendActionResult(
            requested_kind=Disposition.MATERIALIZE,
            executed_kind=Disposition.MATERIALIZE,
            status=ActionStatus.SUCCEEDED,
            final_disposition=Disposition.MATERIALIZE,
            backend_name=self.name,
            source=source.location,
            target=sink,
            degraded=False,
            payload_handle=source,
            transfer_session=TransferSession(
                session_id, request, TransferResult(TransferStatus.REGISTERED)
            ),
        )


def sink_location(sink_namespace: str, sink_value: str) -> PayloadLocation:
    """The engine's own buffer: its tier is the device, its place only the engine knows."""
    return PayloadLocation(
        handle_kind=f"{SINK_HANDLE_KIND}:{sink_namespace}"[:512],
        tier=TierKind.DEVICE,
        locator=sink_value,
    )
