"""The source's side of the data port: pinned bytes, from the memfd to the socket by `sendfile`.

One thread accepts; each connection has a thread of its own, up to a limit. Beyond it a connection
that rests between two fetches makes room, and where none does the answer is `busy`. A payload stays
pinned until the destination confirmed, or the connection is dropped together with what it had
queued.
"""

import os
import socket
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Final

import structlog

from app.clock import Clock
from app.errors import ErrorCode, NexusError
from app.transfer.frames import (
    CONFIRMATION,
    FetchAnswer,
    FetchRequest,
    FetchStatus,
    FrameError,
    frame,
    trailer,
)
from app.transfer.tokens import TokenKeys, require_fetch
from app.worker.deadline import Deadline
from app.worker.failure import TransferFailedError
from app.worker.payloads import Payloads, PinnedPayload
from app.worker.sockets import (
    bound_steps,
    drop,
    prepare,
    receive_exactly,
    receive_header,
    send_all,
    shut,
    wait_for_more,
)

MAX_CONNECTIONS: Final = 64
# A peer has this long to say what it wants, and for each later step.
REQUEST_S: Final = 5.0
# A connection may rest so long before its next request.
REST_S: Final = 15.0
STEP_S: Final = 10.0
# No payload is pinned by one fetch for longer.
SEND_S: Final = 600.0
# How much more is read of somebody who was refused.
_REFUSED_BYTES: Final = 64 * 1024
_SLICE_BYTES: Final = 8 * 1024 * 1024
# The accepting thread looks this often whether it should end.
_ACCEPT_S: Final = 0.2

_log = structlog.get_logger("nexuskv.worker.data_port")


class DataPort:
    """Serves fetches on a listening socket until it is closed."""

    def __init__(
        self,
        listening: socket.socket,
        payloads: Payloads,
        keys: TokenKeys,
        clock: Clock,
        *,
        node: str,
        max_connections: int = MAX_CONNECTIONS,
    ) -> None:
        self._listening = listening
        self._payloads = payloads
        self._keys = keys
        self._clock = clock
        self._node = node
        self._max_connections = max_connections
        # Told whenever a connection ends.
        self._lock = threading.Condition()
        self._open: set[socket.socket] = set()
        # Of these, the ones that rest: the longest first.
        self._resting: dict[socket.socket, None] = {}
        self._closing = False
        self._threads = ThreadPoolExecutor(max_connections, "data-port")
        self._accepting = threading.Thread(target=self._accept, name="data-port-accept")
        self.sent_bytes = 0
        self.fetches = dict.fromkeys(FetchStatus, 0)
        self.broken = 0

    @property
    def connections(self) -> int:
        return len(self._open)

    def start(self) -> None:
        self._listening.settimeout(_ACCEPT_S)
        self._accepting.start()

    def close(self, grace_s: float) -> None:
        """Take no more, let fetches end for so long, cut those that do not; blocks until then."""
        self._closing = True
        if self._accepting.ident is not None:
            self._accepting.join()
        with self._lock:
            for connection in self._resting:
                shut(connection)
            self._lock.wait_for(lambda: not self._open, grace_s)
            for connection in self._open:
                shut(connection)
        self._threads.shutdown()
        self._listening.close()

    def _accept(self) -> None:
        while not self._closing:
            try:
                connection, _ = self._listening.accept()
            except TimeoutError:
                continue
            except OSError as error:
                # Out of descriptors, say: the next one may find some.
                _log.warning("accept_failed", reason=str(error))
                continue
            with self._lock:
                if len(self._open) >= self._max_connections and self._resting:
                    resting = next(iter(self._resting))
                    del self._resting[resting]
                    self._open.discard(resting)
                    # Its thread sees the end, and is free for this connection.
                    shut(resting)
                full = len(self._open) >= self._max_connections
                if not full:
                    self._open.add(connection)
            if full:
                self._refuse_busy(connection)
            else:
                self._threads.submit(self._serve, connection)

    def _refuse_busy(self, connection: socket.socket) -> None:
        self._count(FetchStatus.BUSY)
        with connection, suppress(OSError):
            connection.setblocking(False)
            connection.send(frame(FetchAnswer(FetchStatus.BUSY, detail="too many connections")))

    def _serve(self, connection: socket.socket) -> None:
        try:
            prepare(connection)
            bound_steps(connection, REQUEST_S)
            while self._answer(connection) and self._rested(connection):
                pass
        except (OSError, TransferFailedError) as error:
            with self._lock:
                self.broken += 1
            _log.info("fetch_broken", reason=str(error))
        except Exception:  # noqa: BLE001 - the port outlives a bug in one fetch
            _log.exception("fetch_failed")
        finally:
            with self._lock:
                self._open.discard(connection)
                self._lock.notify_all()
            connection.close()

    def _rested(self, connection: socket.socket) -> bool:
        """Wait for the next request; whether one has begun, and is to be answered."""
        with self._lock:
            if self._closing:
                return False
            self._resting[connection] = None
        came = wait_for_more(connection, REST_S)
        with self._lock:
            # It may have had to make room meanwhile; who asked then asks again elsewhere.
            wanted = connection in self._resting
            self._resting.pop(connection, None)
        return came and wanted

    def _answer(self, connection: socket.socket) -> bool:
        """Serve one fetch; whether another may follow on this connection."""
        try:
            left_s = Deadline(self._clock, REQUEST_S).left_s
            request = receive_header(connection, FetchRequest, left_s)
            grant = self._keys.verify(
                request.token, worker=self._node, now_s=self._clock.now_us() // 1_000_000
            )
            require_fetch(
                grant,
                payload_id=request.payload_id,
                target_worker=request.target_worker,
                sink_id=request.sink_id or "",
                target_payload_id=request.target_payload_id or "",
            )
            with self._payloads.pin(grant.tenant, request.payload_id) as pinned:
                refusal = _refusal(request, pinned)
                if refusal is None:
                    self._count(FetchStatus.OK)
                    return self._send(connection, pinned)
        except FrameError as error:
            refusal = FetchAnswer(FetchStatus.BAD_REQUEST, detail=str(error))
        except NexusError as error:
            missing = error.code is ErrorCode.NOT_FOUND
            status = FetchStatus.MISSING if missing else FetchStatus.UNAUTHORIZED
            refusal = FetchAnswer(status, detail=error.message)
        self._count(refusal.status)
        bound_steps(connection, REQUEST_S)
        send_all(connection, frame(refusal))
        # Closing on bytes that nobody read would reset the connection, and the answer with it.
        connection.shutdown(socket.SHUT_WR)
        receive_exactly(connection, _REFUSED_BYTES)
        return False

    def _send(self, connection: socket.socket, pinned: PinnedPayload) -> bool:
        """Whether the destination confirmed."""
        facts = pinned.facts
        deadline = Deadline(self._clock, SEND_S)
        bound_steps(connection, STEP_S)
        answer = FetchAnswer(FetchStatus.OK, facts.payload_bytes, facts.checksum)
        try:
            send_all(connection, frame(answer))
            place, end = pinned.offset, pinned.offset + facts.payload_bytes
            fd, memory = connection.fileno(), self._payloads.arena.fd
            while place < end:
                deadline.left_s()
                sent = os.sendfile(fd, memory, place, min(_SLICE_BYTES, end - place))
                place += sent
            send_all(connection, trailer(facts.checksum))
            # The kernel may still be reading our pages; the destination says when it is not.
            bound_steps(connection, min(deadline.left_s(), 6 * STEP_S))
            confirmed = receive_exactly(connection, len(CONFIRMATION)) == CONFIRMATION
        except BaseException:
            drop(connection)
            raise
        if not confirmed:
            drop(connection)
        with self._lock:
            self.sent_bytes += facts.payload_bytes
            self.broken += not confirmed
        return confirmed

    def _count(self, status: FetchStatus) -> None:
        with self._lock:
            self.fetches[status] += 1


def _refusal(request: FetchRequest, pinned: PinnedPayload) -> FetchAnswer | None:
    facts = pinned.facts
    if request.payload_bytes not in (None, facts.payload_bytes):
        return FetchAnswer(
            FetchStatus.SIZE_MISMATCH,
            facts.payload_bytes,
            facts.checksum,
            f"the payload has {facts.payload_bytes} bytes, not {request.payload_bytes}",
        )
    if request.checksum not in (None, facts.checksum):
        return FetchAnswer(
            FetchStatus.CHECKSUM_MISMATCH,
            facts.payload_bytes,
            facts.checksum,
            f"the payload's checksum is {facts.checksum}, not {request.checksum}",
        )
    return None
