"""How many bytes states have, as a line over their tokens: what descriptors say, kept. Pure."""

from typing import Final, NamedTuple

from app.contract.descriptor import AttentionStateDescriptor
from app.contract.sizes import payload_bytes

_SIZES: Final = 4_096
# Enough for every rounding to blocks and pages to be even.
_SIZED_TOKENS: Final = 1 << 16


class Line(NamedTuple):
    """Bytes of a state: so many whatever its length, and so many a token."""

    fixed_bytes: float
    bytes_per_token: float


class Sizes:
    """What descriptors say of bytes; kept, since a fleet has few."""

    def __init__(self) -> None:
        self._known: dict[int, tuple[AttentionStateDescriptor, Line | None]] = {}

    def of(self, descriptor: AttentionStateDescriptor) -> Line | None:
        """None where it does not say."""
        found = self._known.get(id(descriptor))
        if found is None:
            if len(self._known) >= _SIZES:
                self._known.clear()
            # The descriptor is kept with it, so that its id stays its own.
            found = self._known[id(descriptor)] = descriptor, _line(descriptor)
        return found[1]


def _line(descriptor: AttentionStateDescriptor) -> Line | None:
    once = payload_bytes(descriptor, _SIZED_TOKENS)
    twice = payload_bytes(descriptor, 2 * _SIZED_TOKENS)
    if once is None or twice is None:
        return None
    each = (twice - once) / _SIZED_TOKENS
    return Line(max(0.0, once - each * _SIZED_TOKENS), each)
