"""One transfer, from a claimed target to verified bytes in it.

`baseline_transport` puts the bytes where they belong as they arrive; `staged_copy` receives them
into memory of its own, verifies them there, and copies then. In both the checksum is computed over
the bytes at their destination. Changes of state happen on the event loop, only the moving of bytes
in a thread, and a thread is always waited for: it writes into memory that must not be freed.
"""

import asyncio
from collections.abc import Callable, Iterator
from concurrent.futures import Executor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Final, Protocol, TypeVar

from app.contract.enums import TransferBackend
from app.errors import NexusError
from app.transfer.frames import FetchRequest
from app.transfer.wire import NewTransfer, TransferFailure
from app.worker.arena import Block
from app.worker.deadline import Deadline
from app.worker.failure import TransferFailedError
from app.worker.fetch import Fetch, Stated, Stop, copy
from app.worker.payloads import Payloads
from app.worker.targets import Target, reserve

BACKENDS: Final = (TransferBackend.BASELINE_TRANSPORT, TransferBackend.STAGED_COPY)
# A copy this short is done before a thread would have begun.
_INLINE_BYTES: Final = 256 * 1024

T = TypeVar("T")


class _Source(Protocol):
    async def open(self) -> Stated: ...
    async def into(self, view: memoryview) -> str: ...


@dataclass(frozen=True, slots=True)
class Movement:
    """What moves the bytes of one order."""

    node: str
    payloads: Payloads
    threads: Executor
    tenant: str
    order: NewTransfer
    deadline: Deadline
    stop: Stop

    async def run(self, target: Target) -> Stated:
        """What is in the target now, verified and visible.

        Raises TransferFailedError, with the target as it was before.
        """
        completing = False
        try:
            with ExitStack() as held:
                source = held.enter_context(self._source())
                stated = self._checked(await source.open())
                self._go_on()
                block = target.accept(stated.payload_bytes)
                checksum = await self._fill(source, stated, block, held)
                self._go_on()
            completing = True
            target.complete(checksum)
        except BaseException:
            if not completing:
                target.abandon()
            raise
        return stated

    async def _fill(self, source: _Source, stated: Stated, block: Block, held: ExitStack) -> str:
        arena = self.payloads.arena
        if self.order.backend is not TransferBackend.STAGED_COPY:
            return _same(stated, await source.into(arena.view(block)))
        staging = reserve(self.payloads, stated.payload_bytes)
        held.callback(arena.retire, staging)
        _same(stated, await source.into(arena.view(staging)))
        self._go_on()
        return _same(stated, await self.copied(arena.view(staging), arena.view(block)))

    async def copied(self, source: memoryview, target: memoryview) -> str:
        """The checksum at the target of a copy inside the arena."""
        if len(source) <= _INLINE_BYTES:
            return copy(source, target, self.deadline, self.stop)
        return await self.in_thread(lambda: copy(source, target, self.deadline, self.stop))

    async def in_thread(self, work: Callable[[], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(self.threads, work)

    def _checked(self, stated: Stated) -> Stated:
        """What the order knows of the payload is what the source has."""
        source = self.order.source
        if source.payload_bytes not in (None, stated.payload_bytes):
            raise TransferFailedError(
                TransferFailure.SIZE_MISMATCH,
                f"the source has {stated.payload_bytes} bytes, not {source.payload_bytes}",
            )
        if source.checksum not in (None, stated.checksum):
            raise TransferFailedError(
                TransferFailure.CHECKSUM_MISMATCH, "the source has other bytes than were ordered"
            )
        return stated

    def _go_on(self) -> None:
        self.stop.check()
        self.deadline.left_s()

    @contextmanager
    def _source(self) -> Iterator[_Source]:
        with ExitStack() as held:
            if self.order.source.worker == self.node:
                yield _Here(self, held)
            else:
                yield _There(self, held)


class _Here:
    """A payload of this worker, pinned while it is copied."""

    def __init__(self, movement: Movement, held: ExitStack) -> None:
        self._movement = movement
        self._held = held
        self._view: memoryview | None = None

    async def open(self) -> Stated:
        movement = self._movement
        try:
            pinned = self._held.enter_context(
                movement.payloads.pin(movement.tenant, movement.order.source.payload_id)
            )
        except NexusError as error:
            raise TransferFailedError(TransferFailure.PAYLOAD_MISSING, error.message) from None
        self._view = pinned.view
        return Stated(pinned.facts.payload_bytes, pinned.facts.checksum)

    async def into(self, view: memoryview) -> str:
        assert self._view is not None
        return await self._movement.copied(self._view, view)


class _There:
    """A payload of another worker, over its data port."""

    def __init__(self, movement: Movement, held: ExitStack) -> None:
        source = movement.order.source
        if source.data_address is None or source.token is None:
            raise TransferFailedError(
                TransferFailure.SOURCE_UNREACHABLE,
                "another worker's payload needs that worker's data_address and a token",
            )
        request = FetchRequest(
            source.token, source.payload_id, source.payload_bytes, source.checksum
        )
        self._movement = movement
        self._fetch = Fetch(source.data_address, request, movement.deadline, movement.stop)
        held.callback(self._fetch.close)

    async def open(self) -> Stated:
        return await self._movement.in_thread(self._fetch.open)

    async def into(self, view: memoryview) -> str:
        return await self._movement.in_thread(lambda: self._fetch.receive(view))


def _same(stated: Stated, found: str) -> str:
    if found != stated.checksum:
        raise TransferFailedError(
            TransferFailure.CHECKSUM_MISMATCH,
            f"the bytes have the checksum {found}, the source states {stated.checksum}",
        )
    return found
