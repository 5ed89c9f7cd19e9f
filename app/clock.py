"""Time, randomness and ids: the only place that reads them; everything else is handed one."""

import os
import time
from datetime import UTC, datetime
from random import Random
from typing import Final, Protocol
from uuid import UUID

from asyncpg.pgproto.pgproto import UUID as FastUUID  # noqa: N811 - a class, not a constant


class Clock(Protocol):
    """What a step may know of time."""

    def now(self) -> datetime:
        """Wall time, aware, UTC."""

    def now_us(self) -> int:
        """Wall time in microseconds since the epoch."""

    def monotonic_us(self) -> int:
        """A monotonic reading in microseconds, for durations only."""


class SystemClock:
    """The machine's clocks."""

    def now(self) -> datetime:
        return datetime.now(UTC)

    def now_us(self) -> int:
        return time.time_ns() // 1000

    def monotonic_us(self) -> int:
        return time.monotonic_ns() // 1000


class IdSource(Protocol):
    """Makes time-ordered unique ids."""

    def uuid7(self) -> UUID:
        """A version 7 UUID (RFC 9562): 48 bits of milliseconds, 12 of their fraction, and 62 random
        ones. In the order in which they are made by one process, unless its clock steps back.
        """

    def random_bytes(self, count: int) -> bytes:
        """`count` cryptographically strong random bytes."""


_RANDOM_MASK: Final = (1 << 62) - 1
# Bits 76 to 79 are the version, 62 and 63 the variant; the fraction is in 64 to 75 (method 3 of
# section 6.2 of the RFC).
_VERSION_AND_VARIANT: Final = (0x7 << 76) | (0b10 << 62)
_FRACTIONS: Final = 1 << 12
_NS_PER_MS: Final = 1_000_000


class SystemIds:
    """uuidv7 whose randomness is drawn from the kernel in blocks, to spare a call per id.

    They are of the database driver's UUID class, a `uuid.UUID` implemented in C: making one and
    writing it out is ten times faster, and it is what reading a row gives anyway.
    """

    _POOL_BYTES = 4096
    _ID_BYTES = 8

    def __init__(self) -> None:
        self._pool = b""
        self._offset = self._POOL_BYTES
        # A forked child must not hand out the ids of its parent.
        os.register_at_fork(after_in_child=self._forget_pool)

    def _forget_pool(self) -> None:
        self._pool = b""

    def uuid7(self) -> UUID:
        offset = self._offset
        end = offset + self._ID_BYTES
        if end > len(self._pool):
            self._pool = os.urandom(self._POOL_BYTES)
            offset, end = 0, self._ID_BYTES
        self._offset = end
        random = int.from_bytes(self._pool[offset:end], "big") & _RANDOM_MASK
        ms, rest_ns = divmod(time.time_ns(), _NS_PER_MS)
        fraction = rest_ns * _FRACTIONS // _NS_PER_MS
        value = ms << 80 | fraction << 64 | _VERSION_AND_VARIANT | random
        made: UUID = FastUUID(value.to_bytes(16, "big"))
        return made

    def random_bytes(self, count: int) -> bytes:
        return os.urandom(count)


def seeded_random(seed: int) -> Random:
    """Numbers of a simulation: the same for the same seed, and nothing that must be a secret."""
    return Random(seed)  # noqa: S311
