"""The order of one publisher's frames: what is next, lost, said again, or of a new process.

Engines number their frames from 0 and say nothing of a restart, so a number that goes back is a
new one: a synthetic epoch begins, and what the old process held is gone.
"""

from enum import Enum, auto
from typing import Final, NamedTuple

from xxhash import xxh3_64_intdigest

MAX_SEQUENCE: Final = (1 << 64) - 2


class Order(Enum):
    """Where a frame stands to those before it."""

    NEXT = auto()
    GAP = auto()  # frames before it were lost
    AGAIN = auto()  # the very frame that was the last one
    NEW_EPOCH = auto()  # from a publisher that began anew


class Place(NamedTuple):
    """`lost` counts the frames that are missing right before this one."""

    order: Order
    lost: int = 0


class Sequence:
    """Follows one stream. `last` is the number seen last, None before the first frame."""

    def __init__(self) -> None:
        self.last: int | None = None
        self.epoch = 0
        self.gaps = 0
        self._digest = 0

    @property
    def tail(self) -> tuple[int, int] | None:
        """Number and digest of the last frame."""
        return None if self.last is None else (self.last, self._digest)

    def resume(self, epoch: int, number: int, digest: int) -> None:
        """Go on behind this frame."""
        self.epoch, self.last, self._digest = epoch, number, digest

    def take(self, number: int, payload: bytes) -> Place:
        """Note a frame that arrived. The first one is a gap, unless it is number 0."""
        digest = xxh3_64_intdigest(payload)
        last, self.last = self.last, number
        before, self._digest = self._digest, digest
        if last is None:
            self.epoch = 1
            return self._placed(Order.NEXT, number)
        if number > last:
            return self._placed(Order.NEXT, number - last - 1)
        if number == last and digest == before:
            return Place(Order.AGAIN)
        self.epoch += 1
        return self._placed(Order.NEW_EPOCH, number)

    def _placed(self, order: Order, lost: int) -> Place:
        self.gaps += bool(lost)
        return Place(Order.GAP if lost and order is Order.NEXT else order, lost)
