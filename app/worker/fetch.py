"""The destination's side of the data port, and of a copy inside the arena: bytes into a view.

Both compute the checksum over the bytes at their new place while they arrive, and say what it is;
whether that is the right one is for the caller to compare. They block: they run in a thread.
"""

import socket
import threading
from typing import Final, NamedTuple

from xxhash import xxh3_128

from app.transfer.frames import (
    CONFIRMATION,
    TRAILER_BYTES,
    FetchAnswer,
    FetchRequest,
    FetchStatus,
    FrameError,
    NoFrameError,
    frame,
    parse_trailer,
)
from app.transfer.wire import TransferFailure
from app.worker.connections import Connections
from app.worker.deadline import Deadline
from app.worker.failure import TransferFailedError
from app.worker.sockets import (
    StepTimeoutError,
    bound_steps,
    parse_address,
    prepare,
    receive_exactly,
    receive_header,
    receive_some,
    send_all,
    shut,
)

CONNECT_S: Final = 5.0
# A source that sends nothing for so long is taken for dead.
STEP_S: Final = 10.0
_RECEIVE_BYTES: Final = 1024 * 1024
# What was just copied is hashed while the second-level cache has it.
_COPY_BYTES: Final = 64 * 1024

_FAILURES: Final = {
    FetchStatus.MISSING: TransferFailure.PAYLOAD_MISSING,
    FetchStatus.SIZE_MISMATCH: TransferFailure.SIZE_MISMATCH,
    FetchStatus.CHECKSUM_MISMATCH: TransferFailure.CHECKSUM_MISMATCH,
}


class Stated(NamedTuple):
    """What a source says of its payload, before anyone checked."""

    payload_bytes: int
    checksum: str


class Stop:
    """Ends a running fetch or copy from the outside, at any of its steps."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._connection: socket.socket | None = None
        self.is_set = False

    def set(self) -> None:
        with self._lock:
            self.is_set = True
            if self._connection is not None:
                shut(self._connection)

    def check(self) -> None:
        """Raises TransferFailedError (cancelled) once it was set."""
        if self.is_set:
            raise TransferFailedError(TransferFailure.CANCELLED, "the transfer was cancelled")

    def watch(self, connection: socket.socket) -> None:
        """`set` will shut this socket down. Raises as `check` does."""
        with self._lock:
            self._connection = connection
        self.check()

    def forget(self) -> None:
        """The socket is about to be closed; its number may be another's then."""
        with self._lock:
            self._connection = None


class Fetch:
    """One payload of another worker: `open`, then `receive`, and `close` in any case.

    Each raises TransferFailedError with the failure that the transfer reports.
    """

    def __init__(
        self,
        address: str,
        request: FetchRequest,
        deadline: Deadline,
        stop: Stop,
        connections: Connections,
    ) -> None:
        self._address = address
        self._request = request
        self._deadline = deadline
        self._stop = stop
        self._connections = connections
        self._connection: socket.socket | None = None
        self._stated: Stated | None = None
        # Every byte of the answer was read, and the source waits for the next request.
        self._done = False

    def open(self) -> Stated:
        """Connect, ask, and return what the source states."""
        try:
            answer = self._ask()
        except FrameError as error:
            raise self._failed(
                TransferFailure.SOURCE_REFUSED, f"no valid answer: {error}"
            ) from None
        except (OSError, ValueError) as error:
            raise self._failed(TransferFailure.SOURCE_UNREACHABLE, _reason(error)) from None
        if answer.status is not FetchStatus.OK:
            failure = _FAILURES.get(answer.status, TransferFailure.SOURCE_REFUSED)
            raise self._failed(failure, f"{answer.status}: {answer.detail or 'no detail'}")
        if answer.checksum is None:
            raise self._failed(TransferFailure.SOURCE_REFUSED, "the source states no checksum")
        self._stated = Stated(answer.payload_bytes, answer.checksum)
        return self._stated

    def receive(self, view: memoryview) -> str:
        """Fill the view, which is as long as the source stated; the checksum of what is in it."""
        connection, stated = self._connection, self._stated
        assert connection is not None
        assert stated is not None
        digest = xxh3_128()
        place, end = 0, len(view)
        try:
            while place < end:
                self._bound()
                part = view[place : place + _RECEIVE_BYTES]
                came = receive_some(connection, part)
                if came == 0:
                    raise self._failed(
                        TransferFailure.SOURCE_UNREACHABLE,
                        f"the connection ended after {place} of {end} bytes",
                    )
                digest.update(part[:came])
                place += came
            self._bound()
            found = receive_exactly(connection, TRAILER_BYTES)
            if len(found) < TRAILER_BYTES:
                raise self._failed(
                    TransferFailure.SOURCE_UNREACHABLE, "the connection ended before its last frame"
                )
            repeated = parse_trailer(found)
            if repeated is None:
                raise self._failed(
                    TransferFailure.SIZE_MISMATCH, f"what follows the {end} bytes is not the end"
                )
            if repeated != stated.checksum:
                raise self._failed(
                    TransferFailure.CHECKSUM_MISMATCH, "the source states two checksums"
                )
            send_all(connection, CONFIRMATION)
            self._done = True
        except OSError as error:
            raise self._failed(
                TransferFailure.SOURCE_UNREACHABLE,
                f"after {place} of {end} bytes: {_reason(error)}",
            ) from None
        return digest.hexdigest()

    def close(self) -> None:
        """Leave the connection to the next fetch where this one is whole, else close it."""
        connection, self._connection = self._connection, None
        if connection is None:
            return
        self._stop.forget()
        if self._done and not self._stop.is_set:
            self._connections.give(self._address, connection)
        else:
            connection.close()

    def _ask(self) -> FetchAnswer:
        self._stop.check()
        resting = self._connections.take(self._address)
        if resting is not None:
            try:
                return self._asked(resting)
            except (NoFrameError, ConnectionError):
                # It was closed as we asked, before the first byte of an answer.
                self.close()
        self._stop.check()
        address = parse_address(self._address)
        connection = socket.create_connection(address, min(CONNECT_S, self._deadline.left_s()))
        prepare(connection)
        return self._asked(connection)

    def _asked(self, connection: socket.socket) -> FetchAnswer:
        self._connection = connection
        self._stop.watch(connection)
        self._bound()
        send_all(connection, frame(self._request))
        return receive_header(connection, FetchAnswer)

    def _bound(self) -> None:
        self._stop.check()
        assert self._connection is not None
        bound_steps(self._connection, min(STEP_S, self._deadline.left_s()))

    def _failed(self, failure: TransferFailure, detail: str) -> TransferFailedError:
        """The failure, or the reason behind it: that we were told to stop, or had no time left."""
        try:
            self._stop.check()
            self._deadline.left_s()
        except TransferFailedError as behind:
            return behind
        return TransferFailedError(failure, detail)


def copy(source: memoryview, target: memoryview, deadline: Deadline, stop: Stop) -> str:
    """Copy between two places of the arena; the checksum of what is at the target then."""
    digest = xxh3_128()
    for place in range(0, len(source), _COPY_BYTES):
        stop.check()
        deadline.left_s()
        part = target[place : place + _COPY_BYTES]
        part[:] = source[place : place + _COPY_BYTES]
        digest.update(part)
    return digest.hexdigest()


def _reason(error: Exception) -> str:
    if isinstance(error, StepTimeoutError | TimeoutError):
        return "the source did not answer in time"
    return str(getattr(error, "strerror", None) or error)
