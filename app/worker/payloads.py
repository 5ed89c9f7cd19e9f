"""What a worker holds: whole, verified payloads by tenant and id, least recently used out first.

Nothing is found before `keep` was given its bytes and their checksum. What is replaced, evicted or
deleted is not found any more, while those who have it pinned read on undisturbed; its memory is
free after the last of them. Reading may come from any thread, changes from the event loop's.
"""

from collections import OrderedDict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import islice
from typing import Final

from app.errors import ErrorCode, NexusError
from app.transfer.wire import PayloadFacts
from app.worker.arena import Arena, Block, whole_pages
from app.worker.eviction import Span, cheapest_run

MAX_PAYLOADS: Final = 16_384
# Before all payloads are compared, the oldest few: one of them is often enough.
_OLDEST: Final = 16

Key = tuple[str, str]


@dataclass(slots=True, eq=False)
class _Payload:
    key: Key
    block: Block
    checksum: str
    touched: int

    def facts(self) -> PayloadFacts:
        tenant, payload_id = self.key
        return PayloadFacts(
            payload_id=payload_id,
            tenant=tenant,
            payload_bytes=self.block.payload_bytes,
            checksum=self.checksum,
            pins=self.block.pins,
        )


@dataclass(frozen=True, slots=True)
class PinnedPayload:
    """A payload that stays where it is: its bytes, and where they are in the memfd."""

    facts: PayloadFacts
    view: memoryview
    offset: int


class Payloads:
    """The payloads of one arena.

    `on_gone` is told tenant and id of each that was evicted or deleted, `on_kept` of each that is
    there (again).
    """

    def __init__(
        self,
        arena: Arena,
        *,
        on_gone: Callable[[str, str], None],
        on_kept: Callable[[str, str], None],
        max_payloads: int = MAX_PAYLOADS,
    ) -> None:
        self.arena = arena
        self.evictions = 0
        self._on_gone = on_gone
        self._on_kept = on_kept
        self._max_payloads = max_payloads
        # Least recently used first.
        self._held: OrderedDict[Key, _Payload] = OrderedDict()
        self._touches = 0

    def __len__(self) -> int:
        return len(self._held)

    def reserve(self, payload_bytes: int) -> Block:
        """Memory for anything that will be in the arena, of evicted payloads if it must be.

        Raises REQUEST_TOO_LARGE when it would never fit, WORKER_FULL when it does not now.
        """
        if payload_bytes > self.arena.capacity_bytes:
            raise NexusError(
                ErrorCode.REQUEST_TOO_LARGE,
                f"{payload_bytes} bytes; this worker has {self.arena.capacity_bytes} in all",
            )
        with self.arena.lock:
            block = self.arena.allocate(payload_bytes)
            if block is None:
                for victim in self._victims(whole_pages(payload_bytes)):
                    self._evict(victim)
                block = self.arena.allocate(payload_bytes)
                assert block is not None, "the victims made room"
            return block

    def keep(self, tenant: str, payload_id: str, block: Block, checksum: str) -> bool:
        """Make a block with verified bytes a payload; whether the id was new to the tenant.

        Takes the block over. The same content again changes nothing; other content replaces it.
        Raises WORKER_FULL, with the block still the caller's, when all the others are pinned.
        """
        key = (tenant, payload_id)
        with self.arena.lock:
            found = self._held.get(key)
            if found is not None and found.checksum == checksum:
                self._touch(found)
                self.arena.retire(block)
                return False
            if found is None and len(self._held) >= self._max_payloads:
                self._evict(self._oldest_unpinned())
            if found is not None:
                self._drop(found)
            self._touches += 1
            self._held[key] = _Payload(key, block, checksum, self._touches)
        self._on_kept(tenant, payload_id)
        return found is None

    def facts(self, tenant: str, payload_id: str) -> PayloadFacts:
        """Raises NOT_FOUND, also for what another tenant has."""
        with self.arena.lock:
            return self._find(tenant, payload_id).facts()

    @contextmanager
    def pin(self, tenant: str, payload_id: str) -> Iterator[PinnedPayload]:
        """The payload as it is now, for as long as this lasts. Raises NOT_FOUND."""
        with self.arena.lock:
            found = self._find(tenant, payload_id)
            self._touch(found)
            self.arena.pin(found.block)
            facts = found.facts()
        try:
            yield PinnedPayload(facts, self.arena.view(found.block), found.block.offset)
        finally:
            self.arena.unpin(found.block)

    def delete(self, tenant: str, payload_id: str) -> PayloadFacts:
        """What was deleted. Raises NOT_FOUND."""
        with self.arena.lock:
            found = self._find(tenant, payload_id)
            facts = found.facts()
            self._drop(found)
        self._on_gone(tenant, payload_id)
        return facts

    def _find(self, tenant: str, payload_id: str) -> _Payload:
        found = self._held.get((tenant, payload_id))
        if found is None:
            raise NexusError(ErrorCode.NOT_FOUND, "this worker has no such payload")
        return found

    def _touch(self, payload: _Payload) -> None:
        self._touches += 1
        payload.touched = self._touches
        self._held.move_to_end(payload.key)

    def _drop(self, payload: _Payload) -> None:
        del self._held[payload.key]
        self.arena.retire(payload.block)

    def _evict(self, payload: _Payload) -> None:
        self.evictions += 1
        self._drop(payload)
        self._on_gone(*payload.key)

    def _oldest_unpinned(self) -> _Payload:
        for payload in self._held.values():
            if not payload.block.pins:
                return payload
        raise _full(f"it holds its {self._max_payloads} payloads and all are in use")

    def _victims(self, needed_bytes: int) -> list[_Payload]:
        holes = self.arena.holes
        for payload in islice(self._held.values(), _OLDEST):
            block = payload.block
            if not block.pins and holes.around(block.offset, block.reserved_bytes) >= needed_bytes:
                return [payload]
        spans: list[Span[_Payload]] = [Span(at, length, 0, None) for at, length in holes]
        spans += [
            Span(payload.block.offset, payload.block.reserved_bytes, payload.touched, payload)
            for payload in self._held.values()
            if not payload.block.pins
        ]
        spans.sort(key=lambda span: span.offset)
        found = cheapest_run(spans, needed_bytes)
        if found is None:
            raise _full(f"there is no room for {needed_bytes} bytes beside what is in use")
        return found


def _full(why: str) -> NexusError:
    return NexusError(ErrorCode.WORKER_FULL, f"the worker is full: {why}; try again later")
