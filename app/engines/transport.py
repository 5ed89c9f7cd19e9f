"""The ZeroMQ sockets of engines' events: one context a process, and what every socket is set to."""

import asyncio
from typing import Final

import zmq
import zmq.asyncio

from app.engines.registration import MAX_ENGINES
from app.engines.wire import MAX_FRAME_BYTES

MAX_REPLAYS_AT_ONCE: Final = 8
# Frames that wait here for us; beyond them the publisher drops, and the gap shows.
_QUEUED_FRAMES: Final = 10_000
# A replay is as long as the engine's buffer, which is 10,000 frames unless told otherwise.
_QUEUED_REPLAY_FRAMES: Final = 65_536
# An engine has its event socket, that one's monitor (two ends), and a replay now and then.
_MAX_SOCKETS: Final = 4 * MAX_ENGINES + 64
_RECONNECT_MS: Final = 100
_RECONNECT_MOST_MS: Final = 5_000
# A peer that went away without a word is noticed within so long.
_HEARTBEAT_MS: Final = 2_000
_HEARTBEAT_MOST_MS: Final = 6_000

REPLAY_RESULTS: Final = ("complete", "restarted", "partial", "empty", "failed")


class Transport:
    """Makes sockets. `results` counts replays by how they ended."""

    def __init__(self) -> None:
        self.replaying = asyncio.Semaphore(MAX_REPLAYS_AT_ONCE)
        self.results: dict[str, int] = dict.fromkeys(REPLAY_RESULTS, 0)
        self._context: zmq.asyncio.Context | None = None

    def subscriber(self, topic: str, *, ipv6: bool) -> zmq.asyncio.Socket:
        """A SUB socket, not attached yet: limits hold for connections made after they are set."""
        made = self._made(zmq.SUB, _QUEUED_FRAMES, ipv6=ipv6)
        made.setsockopt(zmq.SUBSCRIBE, topic.encode())
        return made

    def dealer(self, *, ipv6: bool) -> zmq.asyncio.Socket:
        """A DEALER socket, for a replay."""
        return self._made(zmq.DEALER, _QUEUED_REPLAY_FRAMES, ipv6=ipv6)

    def close(self) -> None:
        """Closes every socket, at once."""
        if self._context is not None:
            self._context.destroy(linger=0)
            self._context = None

    def _made(self, kind: int, queued: int, *, ipv6: bool) -> zmq.asyncio.Socket:
        if self._context is None:
            self._context = zmq.asyncio.Context()
            self._context.set(zmq.MAX_SOCKETS, _MAX_SOCKETS)
        made = self._context.socket(kind)
        for option, value in (
            (zmq.LINGER, 0),
            (zmq.RCVHWM, queued),
            (zmq.MAXMSGSIZE, MAX_FRAME_BYTES),
            (zmq.RECONNECT_IVL, _RECONNECT_MS),
            (zmq.RECONNECT_IVL_MAX, _RECONNECT_MOST_MS),
            (zmq.HEARTBEAT_IVL, _HEARTBEAT_MS),
            (zmq.HEARTBEAT_TIMEOUT, _HEARTBEAT_MOST_MS),
            (zmq.IPV6, int(ipv6)),
        ):
            made.setsockopt(option, value)
        return made


def names_ipv6(endpoint: str) -> bool:
    """Whether an endpoint has an IPv6 address in it."""
    return "://[" in endpoint
