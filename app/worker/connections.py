"""Connections to data ports that rest between two fetches, newest first out."""

import socket
import threading
from collections import OrderedDict
from typing import Final, NamedTuple

from app.clock import Clock
from app.worker.sockets import is_quiet

# In all, and to one address.
MAX_RESTING: Final = 64
MAX_TO_ONE: Final = 8
# Shorter than a source waits for the next request: mostly it is the puller who closes.
REST_S: Final = 8.0


class _Resting(NamedTuple):
    connection: socket.socket
    since_us: int


class Connections:
    """What may be asked again. Every method may be called from any thread."""

    def __init__(
        self,
        clock: Clock,
        *,
        max_resting: int = MAX_RESTING,
        max_to_one: int = MAX_TO_ONE,
        rest_s: float = REST_S,
    ) -> None:
        self._clock = clock
        self._max_resting = max_resting
        self._max_to_one = max_to_one
        self._rest_us = int(rest_s * 1_000_000)
        self._lock = threading.Lock()
        # Addresses by their last use, the longest unused first; of each, the newest last.
        self._resting: OrderedDict[str, list[_Resting]] = OrderedDict()
        self._count = 0
        self._closed = False

    def __len__(self) -> int:
        return self._count

    def take(self, address: str) -> socket.socket | None:
        """One that nobody else has, and that the source had not closed a moment ago; else None."""
        oldest_us = self._clock.monotonic_us() - self._rest_us
        while (found := self._pop(address)) is not None:
            if found.since_us > oldest_us and is_quiet(found.connection):
                return found.connection
            found.connection.close()
        return None

    def give(self, address: str, connection: socket.socket) -> None:
        """Keep it for the next fetch, or close it where there are enough."""
        surplus: list[socket.socket] = []
        with self._lock:
            resting = self._resting.setdefault(address, [])
            self._resting.move_to_end(address)
            resting.append(_Resting(connection, self._clock.monotonic_us()))
            self._count += 1
            if self._closed or len(resting) > self._max_to_one:
                surplus.append(self._pop_oldest(address))
            elif self._count > self._max_resting:
                surplus.append(self._pop_oldest(next(iter(self._resting))))
        for one in surplus:
            one.close()

    def sweep(self) -> None:
        """Close what has rested for too long."""
        oldest_us = self._clock.monotonic_us() - self._rest_us
        late: list[socket.socket] = []
        with self._lock:
            for address in list(self._resting):
                while (held := self._resting.get(address)) and held[0].since_us <= oldest_us:
                    late.append(self._pop_oldest(address))
        for one in late:
            one.close()

    def close(self) -> None:
        """Close all of them, and from now on whatever is given."""
        with self._lock:
            self._closed = True
            every = [one.connection for held in self._resting.values() for one in held]
            self._resting.clear()
            self._count = 0
        for connection in every:
            connection.close()

    def _pop(self, address: str) -> _Resting | None:
        with self._lock:
            held = self._resting.get(address)
            return None if held is None else self._removed(address, held, -1)

    def _pop_oldest(self, address: str) -> socket.socket:
        return self._removed(address, self._resting[address], 0).connection

    def _removed(self, address: str, held: list[_Resting], place: int) -> _Resting:
        found = held.pop(place)
        self._count -= 1
        if not held:
            del self._resting[address]
        return found
