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
from app.transfer.wire import NewTransfer, TransferFailure
from app.worker.arena import Block
from app.worker.deadline import Deadline
from app.worker.failure import TransferFailedError
from app.worker.fetch import Stated, Stop, copy
from app.worker.payloads import Payloads
from app.worker.sources import Sources
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
    sources: Sources
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
                if isinstance(source, _There) and self._in_one_go(target):
                    stated, checksum = await source.all_into(target)
                else:
                    stated = self.checked(await source.open())
                    self.go_on()
                    block = target.accept(stated.payload_bytes)
                    checksum = await self._fill(source, stated, block, held)
                self.go_on()
            completing = True
            target.complete(checksum)
        except BaseException:
            if not completing:
                target.abandon()
            raise
        return stated

    def _in_one_go(self, target: Target) -> bool:
        """Whether one visit of a thread is enough: its memory is there before the length is."""
        return target.any_thread and self.order.backend is TransferBackend.BASELINE_TRANSPORT

    async def _fill(self, source: _Source, stated: Stated, block: Block, held: ExitStack) -> str:
        arena = self.payloads.arena
        if self.order.backend is not TransferBackend.STAGED_COPY:
            return _same(stated, await source.into(arena.view(block)))
        staging = reserve(self.payloads, stated.payload_bytes)
        held.callback(arena.retire, staging)
        _same(stated, await source.into(arena.view(staging)))
        self.go_on()
        return _same(stated, await self.copied(arena.view(staging), arena.view(block)))

    async def copied(self, source: memoryview, target: memoryview) -> str:
        """The checksum at the target of a copy inside the arena."""
        if len(source) <= _INLINE_BYTES:
            return copy(source, target, self.deadline, self.stop)
        return await self.in_thread(lambda: copy(source, target, self.deadline, self.stop))

    async def in_thread(self, work: Callable[[], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(self.threads, work)

    def checked(self, stated: Stated) -> Stated:
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

    def go_on(self) -> None:
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
        self._movement = movement
        self._fetch = movement.sources.fetch(
            movement.tenant, movement.order, movement.deadline, movement.stop
        )
        held.callback(self._fetch.close)

    async def open(self) -> Stated:
        return await self._movement.in_thread(self._fetch.open)

    async def all_into(self, target: Target) -> tuple[Stated, str]:
        """`open`, `accept` and `into` at once, for a target that any thread may ask."""
        return await self._movement.in_thread(lambda: self._pull(target))

    def _pull(self, target: Target) -> tuple[Stated, str]:
        movement = self._movement
        stated = movement.checked(self._fetch.open())
        movement.go_on()
        view = movement.payloads.arena.view(target.accept(stated.payload_bytes))
        return stated, _same(stated, self._fetch.receive(view))

    async def into(self, view: memoryview) -> str:
        return await self._movement.in_thread(lambda: self._fetch.receive(view))


def _same(stated: Stated, found: str) -> str:
    if found != stated.checksum:
        raise TransferFailedError(
            TransferFailure.CHECKSUM_MISMATCH,
            f"the bytes have the checksum {found}, the source states {stated.checksum}",
        )
    return found
