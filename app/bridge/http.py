"""Bytes that are no HTTP request still get an answer in the shape of the wire they were sent to."""

import math
from asyncio import TimerHandle
from typing import Any, Final, NamedTuple, Protocol

import structlog
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle

from app.bridge.endpoints import PREFIX
from app.bridge.errors import error_body
from app.bridge.one_write import Headers, OneWriteCycle, whole_response
from app.bridge.same_head import Head, head_of
from app.errors import ErrorCode, NexusError
from app.problem import ResponseParts, problem_response

_PREFIX: Final = PREFIX.encode()
# Parsing a head costs more with every piece of it; nothing legitimate comes near this.
MAX_HEAD_BYTES: Final = 65_536
# Of a body whose other pieces may be waited for here, and how long. What is larger or slower has
# its task, and with it all limits of `app.http_limits`.
MAX_HELD_BYTES: Final = 65_536
HELD_S: Final = 0.25
# Heads of a connection that are kept before one comes again; some clients have a new one each time.
TRIES: Final = 8
log = structlog.get_logger("nexuskv.http")


class AnswersAtOnce(Protocol):
    """Of one path. The response, or None where the ASGI application must give it."""

    def __call__(self, query: bytes, headers: Headers, body: bytes) -> ResponseParts | None: ...


class _Seen(NamedTuple):
    """A request that was answered at once, but for its body."""

    head: Head
    answers: AnswersAtOnce
    query: bytes
    headers: Headers


class BridgeHttpProtocol(HttpToolsProtocol):
    """uvicorn's parser, with four things replaced.

    Its text/plain answer to a malformed request; the two writes of an answer that is whole; and,
    for a lookup or a query on an idle connection that is here soon, the task, the cycle and the
    messages of ASGI: those cost half of what the answer does. Every other request, and one whose
    key has to be looked up, takes uvicorn's own way from its headers on. Of the next one with the
    same head not even that is read again.
    """

    _latest = b""
    _head_bytes = 0
    _in_head = False
    # From a request's first byte until its last one was parsed.
    _in_message = False
    # The body's pieces of a request that may be answered at once; None for any other.
    _held: list[bytes] | None = None
    _answers: AnswersAtOnce | None = None
    # One at a time for a connection, whatever its requests: see `_held_long_enough`.
    _hold_timer: TimerHandle | None = None
    # The last request that was answered at once, and how many more are kept in vain.
    _seen: _Seen | None = None
    _tries = TRIES
    # Whether what was received last began with a request.
    _from_its_first_byte = False
    # By the loop's clock.
    _answered_at_s = -math.inf

    def _start_asgi_task(self, cycle: RequestResponseCycle, app: Any) -> None:
        # uvicorn makes the cycle deep inside its header callback and has no hook for its class.
        cycle.__class__ = OneWriteCycle
        super()._start_asgi_task(cycle, app)

    def data_received(self, data: bytes) -> None:
        if self._seen is not None and self._answered_again(self._seen, data):
            return
        self._latest = data
        self._from_its_first_byte = not self._in_message
        super().data_received(data)
        if self._held is not None:
            self._wait_for_more()
        if not self._in_head:
            self._head_bytes = 0
            return
        self._head_bytes += len(data)
        if self._head_bytes > MAX_HEAD_BYTES and not self.transport.is_closing():
            self._refuse(
                NexusError(
                    ErrorCode.REQUEST_TOO_LARGE,
                    f"The request line and headers are larger than {MAX_HEAD_BYTES} bytes",
                )
            )

    def on_message_begin(self) -> None:
        self._in_head = self._in_message = True
        super().on_message_begin()

    def on_headers_complete(self) -> None:
        self._in_head = False
        path = self.url.partition(b"?")[0] if b"?" in self.url else self.url
        answers = self.app.at_once.get(path)
        if answers is not None and self._is_plain():
            self._held, self._answers = [], answers
        else:
            super().on_headers_complete()

    def _is_plain(self) -> bool:
        parser, cycle = self.parser, self.cycle
        return (
            (cycle is None or cycle.response_complete)
            and parser.get_method() == b"POST"
            and parser.get_http_version() == "1.1"
            and parser.should_keep_alive()
            and not parser.should_upgrade()
            and not self.expect_100_continue
            and not self.flow.write_paused
            and not self.transport.is_closing()
        )

    def on_body(self, body: bytes) -> None:
        if self._held is None:
            super().on_body(body)
        else:
            self._held.append(body)

    def on_message_complete(self) -> None:
        self._in_message = False
        if self._held is None:
            super().on_message_complete()
        elif self._answered_at_once(self._held):
            self._held = None
        else:
            self._take_uvicorns_way()
            super().on_message_complete()

    def _wait_for_more(self) -> None:
        """The rest of a body that is large comes in another read, as a rule the next one."""
        if not _is_short(self.headers):
            self._take_uvicorns_way()
        elif self._hold_timer is None:
            self._hold_timer = self.loop.call_later(HELD_S, self._held_long_enough)

    def _held_long_enough(self) -> None:
        """Or less: it may be a later request than the one that set the timer, and no harm done."""
        self._hold_timer = None
        if self._held is not None:
            self._take_uvicorns_way()

    def shutdown(self) -> None:
        if self._held is not None:
            self._take_uvicorns_way()
        super().shutdown()

    def connection_lost(self, exc: Exception | None) -> None:
        self._held = None
        if self._hold_timer is not None:
            self._hold_timer.cancel()
            self._hold_timer = None
        super().connection_lost(exc)

    def _answered_again(self, seen: _Seen, data: bytes) -> bool:
        """Whether data was a request with that head, and answered at once."""
        cycle = self.cycle
        if (
            self._in_message
            or not (cycle is None or cycle.response_complete)
            or self.flow.write_paused
            or self.transport.is_closing()
        ):
            return False
        body = seen.head.body_of(data)
        if body is None:
            return False
        response = seen.answers(seen.query, seen.headers, body)
        if response is None:
            return False
        self._write_whole(response)
        self._tries = TRIES
        self.server_state.total_requests += 1
        self._answered_at_s = self.loop.time()
        return True

    def timeout_keep_alive_handler(self) -> None:
        """A request that was answered again has left the timer of the one before as it was."""
        left_s = self._answered_at_s + self.timeout_keep_alive - self.loop.time()
        if left_s > 0:
            self.timeout_keep_alive_task = self.loop.call_later(
                left_s, self.timeout_keep_alive_handler
            )
        else:
            super().timeout_keep_alive_handler()

    def _answered_at_once(self, pieces: list[bytes]) -> bool:
        assert self._answers is not None
        query = self.url.partition(b"?")[2] if b"?" in self.url else b""
        body = pieces[0] if len(pieces) == 1 else b"".join(pieces)
        response = self._answers(query, self.headers, body)
        if response is None:
            return False
        self._write_whole(response)
        if self._tries and self._from_its_first_byte:
            self._tries -= 1
            head = head_of(self._latest, self.headers, len(body))
            self._seen = head and _Seen(head, self._answers, query, self.headers)
        self.on_response_complete()
        return True

    def _write_whole(self, response: ResponseParts) -> None:
        whole = whole_response(self.server_state.default_headers, *response)
        assert whole is not None, "an answer given at once is plain"
        self.transport.write(whole)

    def _take_uvicorns_way(self) -> None:
        pieces, self._held = self._held, None
        super().on_headers_complete()
        if pieces:
            super().on_body(b"".join(pieces))

    def send_400_response(self, msg: str) -> None:
        lengths = b"content-length" in self._latest[:MAX_HEAD_BYTES].lower()
        code = ErrorCode.INVALID_CONTENT_LENGTH if lengths else ErrorCode.INVALID_BODY
        self._refuse(NexusError(code, f"{msg} Check its request line and headers."))

    def _refuse(self, error: NexusError) -> None:
        self._held = None
        if getattr(self, "url", b"").startswith(_PREFIX):
            body, media_type = error_body(error), b"application/json"
        else:
            _, _, body = problem_response(error, "-")
            media_type = b"application/problem+json"
        log.warning("request_not_http", code=error.code.value)
        self.transport.write(
            b"HTTP/1.1 %b\r\ncontent-type: %b\r\ncontent-length: %d\r\n"
            b"connection: close\r\n\r\n%b" % (_STATUS[error.status], media_type, len(body), body)
        )
        self.transport.close()


def _is_short(headers: Headers) -> bool:
    """Whether the body's length is announced, and small."""
    for name, value in headers:
        if name == b"content-length":
            return len(value) < 6 and value.isdigit() and int(value) <= MAX_HELD_BYTES
    return False


_STATUS: Final = {400: b"400 Bad Request", 413: b"413 Content Too Large"}
