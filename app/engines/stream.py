"""The order of one publisher's frames: what is next, lost, said again, or of a new process.

Engines number their frames from 0 and say nothing of a restart, so a number that goes back is a
new one: a synthetic epoch begins, and what the old process held is gone.
"""

from collections import OrderedDict
from collections.abc import Hashable
from enum import Enum, auto
from typing import Final, NamedTuple

from xxhash import xxh3_64_intdigest

from app.engines.tallies import MAX_COUNT

MAX_SEQUENCE: Final = (1 << 64) - 2
# Of one publisher; the numbers of those that were silent longest are forgotten.
_MAX_STREAMS: Final = 4_096


class Order(Enum):
    """Where a frame stands to those before it."""

    NEXT = auto()
    GAP = auto()  # frames before it were lost
    AGAIN = auto()  # the very frame that was the last one
    NEW_EPOCH = auto()  # from a publisher that began anew


class Place(NamedTuple):
    """`lost` counts the frames that are missing right before this one, 2^63 - 1 at most."""

    order: Order
    lost: int = 0


class Taken(NamedTuple):
    """What became of a frame. `order` is None for one of another rank, which is left alone."""

    order: Order | None
    events: int = 0
    # Frames that are missing right before it.
    lost: int = 0
    # Why it was not read, in words for its sender.
    refused: str | None = None


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
        order = Order.GAP if lost and order is Order.NEXT else order
        return Place(order, min(lost, MAX_COUNT))


class EventNumbers:
    """Follows the numbers that events have of their own.

    A publisher numbers each of its streams by itself, or all its events in one go. Both are
    possible until one of them is refuted; what neither allows is a hole.
    """

    def __init__(self) -> None:
        self.by_stream = True
        self.over_all = True
        self._last: OrderedDict[Hashable, int] = OrderedDict()
        self._latest: int | None = None

    def forget(self, *, same_process: bool) -> None:
        """Whatever comes next is in order."""
        self._last.clear()
        self._latest = None
        if not same_process:
            self.by_stream = self.over_all = True

    def take(self, stream: Hashable, number: int) -> int:
        """Note the next event; how many are missing before it.

        The first one of a stream and the same one again are in order. A number that goes back is
        of a publisher that began anew: at least one was missed.
        """
        mine = _hole(self._last.get(stream), number) if self.by_stream else None
        all_ = _hole(self._latest, number) if self.over_all else None
        self._last[stream] = self._latest = number
        self._last.move_to_end(stream)
        if len(self._last) > _MAX_STREAMS:
            self._last.popitem(last=False)
        holes = [each for each in (mine, all_) if each is not None]
        if any(holes) and not all(holes):
            self.by_stream, self.over_all = mine == 0, all_ == 0
        return min(*holes, MAX_COUNT)


def _hole(last: int | None, number: int) -> int:
    if last is None or number == last:
        return 0
    return number - last - 1 if number > last else 1
