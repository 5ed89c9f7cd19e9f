"""Which payloads make room: the run of neighbours whose newest use lies furthest back."""

from collections import deque
from collections.abc import Sequence
from typing import Generic, NamedTuple, TypeVar

T = TypeVar("T")


class Span(NamedTuple, Generic[T]):
    """A hole (`owner` None, `touched` 0), or what may be evicted and when it was last used."""

    offset: int
    span_bytes: int
    touched: int
    owner: T | None


def cheapest_run(spans: Sequence[Span[T]], needed_bytes: int) -> list[T] | None:
    """The owners to evict for one hole of `needed_bytes`; None when no run is long enough.

    `spans` are sorted by offset; what is missing between two of them cannot be evicted. Of all
    shortest runs that are long enough, the one whose most recently used span is the oldest.
    O(spans).
    """
    best: tuple[int, int, int] | None = None
    first, length, previous_end = 0, 0, -1
    # Indices into the run, their spans ever less recent: the front one is the newest of the run.
    newest: deque[int] = deque()
    for last, span in enumerate(spans):
        if span.offset != previous_end:
            first, length = last, 0
            newest.clear()
        previous_end = span.offset + span.span_bytes
        length += span.span_bytes
        while newest and spans[newest[-1]].touched <= span.touched:
            newest.pop()
        newest.append(last)
        while length - spans[first].span_bytes >= needed_bytes:
            length -= spans[first].span_bytes
            if newest[0] == first:
                newest.popleft()
            first += 1
        if length >= needed_bytes:
            cost = spans[newest[0]].touched
            if best is None or cost < best[0]:
                best = (cost, first, last)
    if best is None:
        return None
    return [span.owner for span in spans[best[1] : best[2] + 1] if span.owner is not None]
