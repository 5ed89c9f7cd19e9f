"""Asking an engine for frames that it published before: the client of its replay socket.

The request is `[b"", first number, 8 bytes big endian]`. Replies are `[b"", number, payload]`, or
with the topic before the number, and end with the number 2^64 - 1.
"""

import asyncio
from collections.abc import AsyncGenerator, Awaitable
from typing import Any, Final, NamedTuple

import zmq

from app.engines.stream import MAX_SEQUENCE
from app.engines.transport import Transport, names_ipv6

# Between two replies; the engine's thread that answers also publishes.
IDLE_S: Final = 5.0
# Of one replay as a whole.
WHOLE_S: Final = 120.0
MAX_REPLAY_FRAMES: Final = 1_000_000
SEQUENCE_BYTES: Final = 8
_END: Final = MAX_SEQUENCE + 1


class ReplayError(Exception):
    """A replay that did not come to its end; its text says why."""


class Replayed(NamedTuple):
    """One frame. `topic` is None from engines that do not say it."""

    number: int
    payload: bytes
    topic: bytes | None


async def replayed(
    transport: Transport, endpoint: str, first: int, *, idle_s: float = IDLE_S
) -> AsyncGenerator[Replayed]:
    """The frames from `first` on that the engine still has, in its order; they may begin later.

    Raises ReplayError. To be closed by whoever does not read it to its end.
    """
    socket = transport.dealer(ipv6=names_ipv6(endpoint))
    until_s = asyncio.get_running_loop().time() + WHOLE_S
    try:
        socket.connect(endpoint)
        await _received(socket.send_multipart([b"", first.to_bytes(SEQUENCE_BYTES, "big")]), idle_s)
        for _ in range(MAX_REPLAY_FRAMES):
            # No limit of time spans a `yield`: it would end what the reader does meanwhile.
            if asyncio.get_running_loop().time() > until_s:
                raise ReplayError(f"no end of the replay within {WHOLE_S:g} s")
            parts: list[bytes] = await _received(socket.recv_multipart(), idle_s)
            one = _frame(parts)
            if one is None:
                raise ReplayError(f"a reply of {len(parts)} parts is no frame")
            if one.number == _END:
                return
            yield one
        raise ReplayError(f"more than {MAX_REPLAY_FRAMES} frames in one replay")
    except zmq.ZMQError as error:
        raise ReplayError(f"{endpoint}: {error}") from error
    finally:
        socket.close(linger=0)


async def _received(done: Awaitable[Any], idle_s: float) -> Any:
    try:
        async with asyncio.timeout(idle_s):
            return await done
    except TimeoutError:
        raise ReplayError(f"the replay endpoint said nothing for {idle_s:g} s") from None


def _frame(parts: list[bytes]) -> Replayed | None:
    match parts:
        case [b"", topic, number, payload] if len(number) == SEQUENCE_BYTES:
            return Replayed(int.from_bytes(number, "big"), payload, topic)
        case [b"", number, payload] if len(number) == SEQUENCE_BYTES:
            return Replayed(int.from_bytes(number, "big"), payload, None)
        case _:
            return None
