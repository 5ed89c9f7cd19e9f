"""Bytes that are no HTTP request still get an answer in the shape of the wire they were sent to."""

from typing import Any, Final, Protocol

import structlog
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle

from app.bridge.endpoints import PREFIX
from app.bridge.errors import error_body
from app.bridge.one_write import Headers, OneWriteCycle, whole_response
from app.errors import ErrorCode, NexusError
from app.problem import ResponseParts, problem_response

_PREFIX: Final = PREFIX.encode()
_LOOKUP_URL: Final = _PREFIX + b"v1/lookup"
# Parsing a head costs more with every piece of it; nothing legitimate comes near this.
MAX_HEAD_BYTES: Final = 65_536
log = structlog.get_logger("nexuskv.http")


class AnswersLookups(Protocol):
    """The application behind the protocol, as far as it knows it."""

    def lookup_at_once(self, headers: Headers, body: bytes) -> ResponseParts | None:
        """The response, or None where the ASGI application must give it."""


class BridgeHttpProtocol(HttpToolsProtocol):
    """uvicorn's parser, with three things replaced.

    Its text/plain answer to a malformed request; the two writes of an answer that is whole; and,
    for a lookup that came in one piece on an idle connection, the task, the cycle and the messages
    of ASGI: those cost half of what the answer does. Every other request, and a lookup whose key
    has to be looked up, takes uvicorn's own way from its headers on.
    """

    _latest = b""
    _head_bytes = 0
    _in_head = False
    # The body of a request that may be answered at once, so far; None for any other.
    _held: bytes | None = None

    def _start_asgi_task(self, cycle: RequestResponseCycle, app: Any) -> None:
        # uvicorn makes the cycle deep inside its header callback and has no hook for its class.
        cycle.__class__ = OneWriteCycle
        super()._start_asgi_task(cycle, app)

    def data_received(self, data: bytes) -> None:
        self._latest = data
        super().data_received(data)
        if self._held is not None:
            self._take_uvicorns_way()
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
        self._in_head = True
        super().on_message_begin()

    def on_headers_complete(self) -> None:
        self._in_head = False
        if self.url == _LOOKUP_URL and self._is_plain():
            self._held = b""
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
            self._held = self._held + body if self._held else body

    def on_message_complete(self) -> None:
        if self._held is None:
            super().on_message_complete()
        elif self._answered_at_once(self._held):
            self._held = None
        else:
            self._take_uvicorns_way()
            super().on_message_complete()

    def _answered_at_once(self, body: bytes) -> bool:
        answers: AnswersLookups = self.app.bridge
        response = answers.lookup_at_once(self.headers, body)
        if response is None:
            return False
        whole = whole_response(self.server_state.default_headers, *response)
        assert whole is not None, "an answer of the bridge is plain"
        self.transport.write(whole)
        self.on_response_complete()
        return True

    def _take_uvicorns_way(self) -> None:
        body, self._held = self._held, None
        super().on_headers_complete()
        if body:
            super().on_body(body)

    def send_400_response(self, msg: str) -> None:
        lengths = b"content-length" in self._latest[:MAX_HEAD_BYTES].lower()
        code = ErrorCode.INVALID_CONTENT_LENGTH if lengths else ErrorCode.INVALID_BODY
        self._refuse(NexusError(code, f"{msg} Check its request line and headers."))

    def _refuse(self, error: NexusError) -> None:
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


_STATUS: Final = {400: b"400 Bad Request", 413: b"413 Content Too Large"}
