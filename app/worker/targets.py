"""Where a transfer ends: in a sink, or as a payload of this worker."""

from collections.abc import Callable
from typing import Protocol

from app.errors import NexusError
from app.transfer.wire import NewTransfer, TransferFailure
from app.worker.arena import Block
from app.worker.failure import TransferFailedError
from app.worker.payloads import Payloads
from app.worker.sinks import Sink, Sinks


class Target(Protocol):
    """`accept` once the length is known, then `complete` or `abandon`, exactly once."""

    # Whether `accept` changes nothing, so that any thread may call it.
    any_thread: bool

    def accept(self, payload_bytes: int) -> Block:
        """The memory to fill. Raises TransferFailedError."""

    def complete(self, checksum: str) -> None:
        """Its bytes are verified: make them visible. Raises TransferFailedError: they are not."""

    def abandon(self) -> None:
        """Leave everything as it was before."""


class SinkTarget:
    """A sink, claimed and its memory pinned from the order on."""

    any_thread = True

    def __init__(
        self, sinks: Sinks, tenant: str, order: NewTransfer, stop: Callable[[], None]
    ) -> None:
        """Raises TransferFailedError when the sink is not to be had."""
        assert order.target_sink_id is not None
        self._sinks = sinks
        self._sink: Sink = sinks.claim(
            tenant,
            order.target_sink_id,
            engine=(order.engine_id, order.engine_generation),
            session_id=order.session_id,
            decision_id=order.decision_id,
            stop=stop,
        )

    def accept(self, payload_bytes: int) -> Block:
        wanted = self._sink.spec.payload_bytes
        if payload_bytes != wanted:
            raise TransferFailedError(
                TransferFailure.SIZE_MISMATCH,
                f"the source has {payload_bytes} bytes, the sink takes {wanted}",
            )
        return self._sink.block

    def complete(self, checksum: str) -> None:
        self._sinks.settle(self._sink, checksum)

    def abandon(self) -> None:
        self._sinks.settle(self._sink, None)


class PayloadTarget:
    """A payload of the tenant, which nobody finds before it is complete."""

    # Making room may evict others.
    any_thread = False

    def __init__(self, payloads: Payloads, tenant: str, payload_id: str) -> None:
        self._payloads = payloads
        self._tenant = tenant
        self._payload_id = payload_id
        self._block: Block | None = None

    def accept(self, payload_bytes: int) -> Block:
        self._block = reserve(self._payloads, payload_bytes)
        return self._block

    def complete(self, checksum: str) -> None:
        assert self._block is not None
        try:
            self._payloads.keep(self._tenant, self._payload_id, self._block, checksum)
        except NexusError as error:
            self.abandon()
            raise TransferFailedError(TransferFailure.NO_SPACE, error.message) from None

    def abandon(self) -> None:
        if self._block is not None:
            self._payloads.arena.retire(self._block)


def reserve(payloads: Payloads, payload_bytes: int) -> Block:
    """Memory for a transfer. Raises TransferFailedError (no_space, size_mismatch)."""
    if payload_bytes < 1:
        raise TransferFailedError(TransferFailure.SIZE_MISMATCH, "a payload has at least one byte")
    try:
        return payloads.reserve(payload_bytes)
    except NexusError as error:
        raise TransferFailedError(TransferFailure.NO_SPACE, error.message) from None
