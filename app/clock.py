"""Time, randomness and ids: the only place that reads them; everything else is handed one."""

import os
import time
from datetime import UTC, datetime
from typing import Protocol
from uuid import UUID


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
        """A version 7 UUID (RFC 9562): 48 bits of milliseconds, then 74 random bits."""

    def random_bytes(self, count: int) -> bytes:
        """`count` cryptographically strong random bytes."""


class SystemIds:
    """uuidv7 whose randomness is drawn from the kernel in blocks, to spare a call per id."""

    _POOL_BYTES = 4096
    _ID_BYTES = 10

    def __init__(self) -> None:
        self._pool = b""
        self._offset = self._POOL_BYTES
        self._pid = os.getpid()

    def uuid7(self) -> UUID:
        offset = self._offset
        if offset + self._ID_BYTES > len(self._pool) or self._pid != os.getpid():
            self._pool = os.urandom(self._POOL_BYTES)
            self._pid = os.getpid()
            offset = 0
        self._offset = offset + self._ID_BYTES
        rand = int.from_bytes(self._pool[offset : offset + self._ID_BYTES], "big")
        ms = time.time_ns() // 1_000_000
        rand_a = (rand >> 62) & 0xFFF
        rand_b = rand & 0x3FFF_FFFF_FFFF_FFFF
        return UUID(int=(ms << 80) | (0x7 << 76) | (rand_a << 64) | (0b10 << 62) | rand_b)

    def random_bytes(self, count: int) -> bytes:
        return os.urandom(count)
