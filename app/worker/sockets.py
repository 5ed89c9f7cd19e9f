"""Blocking sockets with a bound on every step, as the data port uses them from its threads.

The bounds are the kernel's own (SO_RCVTIMEO, SO_SNDTIMEO): Python's would make the socket
non-blocking, and `sendfile` and `recv_into` would then need a poll before every call.
"""

import socket
import struct
from collections.abc import Callable
from contextlib import suppress
from typing import TypeVar

from app.transfer.frames import (
    PREFIX_BYTES,
    FetchAnswer,
    FetchRequest,
    NoFrameError,
    header_bytes,
    parse_header,
)

T = TypeVar("T", FetchRequest, FetchAnswer)


class StepTimeoutError(OSError):
    """The peer did nothing for as long as one step may take."""


def prepare(connection: socket.socket) -> None:
    """Blocking, without delay.

    Buffers are the kernel's choice: it lets them grow to several MiB, while a length that we set
    would be cut to `net.core.rmem_max`, which is often far less, and would not grow any more.
    """
    connection.setblocking(True)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)


def bound_steps(connection: socket.socket, step_s: float) -> None:
    """No single send or receive takes longer than this, and a close does not wait."""
    timeval = _timeval(step_s)
    for option in (socket.SO_RCVTIMEO, socket.SO_SNDTIMEO):
        connection.setsockopt(socket.SOL_SOCKET, option, timeval)


def bound_receives(connection: socket.socket, step_s: float) -> None:
    """No single receive takes longer than this."""
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, _timeval(step_s))


def _timeval(step_s: float) -> bytes:
    seconds = int(step_s)
    micros = max(int((step_s - seconds) * 1_000_000), 1)
    return struct.pack("@ll", seconds, micros)


def receive_some(connection: socket.socket, view: memoryview) -> int:
    """How many bytes came, 0 at the end of the connection. Raises OSError, StepTimeoutError."""
    try:
        return connection.recv_into(view)
    except BlockingIOError:
        raise StepTimeoutError("nothing arrived in time") from None


def receive_exactly(
    connection: socket.socket, count: int, left_s: Callable[[], float] | None = None
) -> bytes:
    """`count` bytes, fewer only at the end of the connection. Raises OSError.

    `left_s` bounds them all together: who sends a byte now and then holds no thread for long.
    """
    found = bytearray(count)
    place = 0
    with memoryview(found) as view:
        while place < count:
            if left_s is not None:
                bound_receives(connection, left_s())
            came = receive_some(connection, view[place:])
            if came == 0:
                break
            place += came
    return bytes(found[:place])


def receive_header(
    connection: socket.socket, kind: type[T], left_s: Callable[[], float] | None = None
) -> T:
    """The next frame's header. Raises FrameError, OSError, and whatever `left_s` raises."""
    prefix = receive_exactly(connection, PREFIX_BYTES, left_s)
    if not prefix:
        raise NoFrameError("the connection ended before a frame")
    length = header_bytes(prefix)
    return parse_header(receive_exactly(connection, length, left_s), kind)


def wait_for_more(connection: socket.socket, wait_s: float) -> bool:
    """Whether a byte came in time; it stays where it is. False at the end of the connection."""
    bound_receives(connection, wait_s)
    with suppress(OSError):
        return bool(connection.recv(1, socket.MSG_PEEK))
    return False


def is_quiet(connection: socket.socket) -> bool:
    """Whether the peer has neither closed the connection nor said anything that nobody read."""
    try:
        connection.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT)
    except BlockingIOError:
        return True
    except OSError:
        return False
    return False


def send_all(connection: socket.socket, data: bytes) -> None:
    """Raises OSError, StepTimeoutError."""
    try:
        connection.sendall(data)
    except BlockingIOError:
        raise StepTimeoutError("the peer takes nothing") from None


def shut(connection: socket.socket) -> None:
    """Ends whatever another thread is doing with it; that thread closes it."""
    with suppress(OSError):
        connection.shutdown(socket.SHUT_RDWR)


def drop(connection: socket.socket) -> None:
    """Close, and throw away what is still queued: its pages are about to be used for else."""
    with suppress(OSError):
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    connection.close()


def parse_address(address: str) -> tuple[str, int]:
    """Host and port of `host:port`, the host perhaps in brackets. Raises ValueError."""
    host, _, port = address.rpartition(":")
    host = host.removeprefix("[").removesuffix("]")
    number = int(port)
    if not host or not 0 < number < 65_536:
        raise ValueError("an address is HOST:PORT")
    return host, number
