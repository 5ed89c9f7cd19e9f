"""The worker's memory: one memfd of a fixed length, handed out in page-aligned blocks.

A block is freed when it was retired and nobody has it pinned any more; until then its bytes stay
where they are. Finding room is best fit over the holes: a binary search, plus one move inside a
sorted list. Neighbouring holes are always one hole. Every method may be called from any thread.
"""

import mmap
import os
import threading
from bisect import bisect_left, insort
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

PAGE_BYTES: Final = mmap.PAGESIZE
# Linux 5.14; the module does not name it. Maps every page now, not at its first use.
_MADV_POPULATE_WRITE: Final = 23


class ArenaError(ValueError):
    """The machine cannot give this much memory; the message says so."""


@dataclass(slots=True, eq=False)
class Block:
    """Some of the arena: `payload_bytes` from `offset` on, of `reserved_bytes` whole pages."""

    offset: int
    payload_bytes: int
    reserved_bytes: int
    pins: int = 0
    retired: bool = False

    @property
    def end(self) -> int:
        return self.offset + self.reserved_bytes


def memory_available_bytes() -> int:
    """What this machine has left, or the container may have; raises OSError without /proc."""
    meminfo = Path("/proc/meminfo").read_text(encoding="ascii")
    lines = dict(line.split(":", 1) for line in meminfo.splitlines())
    available_bytes = int(lines["MemAvailable"].split()[0]) * 1024
    with suppress(OSError, ValueError):  # "max" is no number: no limit.
        limit = Path("/sys/fs/cgroup/memory.max").read_text(encoding="ascii")
        available_bytes = min(available_bytes, int(limit))
    return available_bytes


def check_memory(capacity_bytes: int) -> None:
    """Raises ArenaError when the machine has less than this left."""
    available_bytes = memory_available_bytes()
    if capacity_bytes > available_bytes:
        raise ArenaError(
            f"cannot take {capacity_bytes} bytes of memory: {available_bytes} are available"
        )


def whole_pages(payload_bytes: int) -> int:
    return -(-payload_bytes // PAGE_BYTES) * PAGE_BYTES


class Holes:
    """Which parts of a range are free: best fit, coalesced at once. Knows no memory."""

    def __init__(self, capacity_bytes: int) -> None:
        self._by_length: list[tuple[int, int]] = []
        self._length_at: dict[int, int] = {}
        self._start_of_end: dict[int, int] = {}
        self._add(0, capacity_bytes)

    def __iter__(self) -> Iterator[tuple[int, int]]:
        """(offset, bytes) of every hole, in no order."""
        return iter(self._length_at.items())

    @property
    def largest_bytes(self) -> int:
        return self._by_length[-1][0] if self._by_length else 0

    def take(self, wanted_bytes: int) -> int | None:
        """The offset of so many bytes, out of the smallest hole that has them; None without one."""
        place = bisect_left(self._by_length, (wanted_bytes, 0))
        if place == len(self._by_length):
            return None
        length, offset = self._by_length[place]
        self._remove(offset)
        if length > wanted_bytes:
            self._add(offset + wanted_bytes, length - wanted_bytes)
        return offset

    def give_back(self, offset: int, given_bytes: int) -> None:
        end = offset + given_bytes
        if end in self._length_at:
            end += self._remove(end)
        before = self._start_of_end.get(offset)
        if before is not None:
            self._remove(before)
            offset = before
        self._add(offset, end - offset)

    def around(self, offset: int, taken_bytes: int) -> int:
        """How long the hole would be if this taken range were given back."""
        before = self._start_of_end.get(offset, offset)
        return offset - before + taken_bytes + self._length_at.get(offset + taken_bytes, 0)

    def _add(self, offset: int, length: int) -> None:
        insort(self._by_length, (length, offset))
        self._length_at[offset] = length
        self._start_of_end[offset + length] = offset

    def _remove(self, offset: int) -> int:
        length = self._length_at.pop(offset)
        del self._start_of_end[offset + length]
        del self._by_length[bisect_left(self._by_length, (length, offset))]
        return length


class Arena:
    """The memory itself, and which blocks of it are out.

    All of it is taken at the start: a worker that promised memory which the machine then lacks
    would die of it in the middle of a transfer. Raises ArenaError when it is not to be had.
    """

    def __init__(self, capacity_bytes: int) -> None:
        if capacity_bytes < PAGE_BYTES:
            raise ArenaError(f"the arena needs at least one page of {PAGE_BYTES} bytes")
        # The kernel would not refuse: it would end whatever process it chose.
        check_memory(capacity_bytes)
        self.capacity_bytes = capacity_bytes // PAGE_BYTES * PAGE_BYTES
        self.lock = threading.RLock()
        self.fd = os.memfd_create("nexuskv-arena", os.MFD_CLOEXEC)
        try:
            os.ftruncate(self.fd, self.capacity_bytes)
            os.posix_fallocate(self.fd, 0, self.capacity_bytes)
            self._map = mmap.mmap(self.fd, self.capacity_bytes)
        except (OSError, OverflowError) as error:
            os.close(self.fd)
            reason = getattr(error, "strerror", None) or error
            raise ArenaError(f"cannot take {capacity_bytes} bytes of memory: {reason}") from None
        with suppress(OSError):
            self._map.madvise(_MADV_POPULATE_WRITE)
        self._view = memoryview(self._map)
        self.holes = Holes(self.capacity_bytes)
        self.used_bytes = 0
        self.pinned_bytes = 0
        self.pins = 0
        self.blocks = 0

    def allocate(self, payload_bytes: int) -> Block | None:
        """A block, with whatever bytes were there before; None when no hole is long enough."""
        reserved_bytes = whole_pages(payload_bytes)
        with self.lock:
            offset = self.holes.take(reserved_bytes)
            if offset is None:
                return None
            self.used_bytes += reserved_bytes
            self.blocks += 1
        return Block(offset, payload_bytes, reserved_bytes)

    def retire(self, block: Block) -> None:
        """Give a block up: free at once, or when the last pin goes. Once for each block."""
        with self.lock:
            assert not block.retired, "a block is given up once"
            block.retired = True
            if block.pins == 0:
                self._free(block)

    def pin(self, block: Block) -> None:
        with self.lock:
            assert block.pins or not block.retired, "the block is free"
            block.pins += 1
            self.pins += 1
            if block.pins == 1:
                self.pinned_bytes += block.reserved_bytes

    def unpin(self, block: Block) -> None:
        with self.lock:
            assert block.pins, "every unpin has its pin"
            block.pins -= 1
            self.pins -= 1
            if block.pins == 0:
                self.pinned_bytes -= block.reserved_bytes
                if block.retired:
                    self._free(block)

    @contextmanager
    def pinned(self, block: Block) -> Iterator[memoryview]:
        """The bytes of a block, which stay for as long as this lasts."""
        self.pin(block)
        try:
            yield self.view(block)
        finally:
            self.unpin(block)

    def view(self, block: Block) -> memoryview:
        return self._view[block.offset : block.offset + block.payload_bytes]

    def close(self) -> None:
        """Give the memory back; views that are still out keep it until they go."""
        with suppress(BufferError):
            self._view.release()
            self._map.close()
        os.close(self.fd)

    def _free(self, block: Block) -> None:
        self.used_bytes -= block.reserved_bytes
        self.blocks -= 1
        self.holes.give_back(block.offset, block.reserved_bytes)
