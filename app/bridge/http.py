"""Bytes that are no HTTP request still get an answer in the shape of the wire they were sent to."""

from typing import Any, Final

import structlog
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle

from app.bridge.endpoints import PREFIX
from app.bridge.errors import error_body
from app.bridge.one_write import OneWriteCycle
from app.errors import ErrorCode, NexusError
from app.problem import problem_response

_PREFIX: Final = PREFIX.encode()
# Parsing a head costs more with every piece of it; nothing legitimate comes near this.
MAX_HEAD_BYTES: Final = 65_536
log = structlog.get_logger("nexuskv.http")


class BridgeHttpProtocol(HttpToolsProtocol):
    """uvicorn's parser, with two things replaced.

    Its text/plain answer to a malformed request, and the two writes of an answer that is whole.
    """

    _latest = b""
    _head_bytes = 0

    def _start_asgi_task(self, cycle: RequestResponseCycle, app: Any) -> None:
        # uvicorn makes the cycle deep inside its header callback and has no hook for its class.
        cycle.__class__ = OneWriteCycle
        super()._start_asgi_task(cycle, app)

    def data_received(self, data: bytes) -> None:
        self._latest = data
        super().data_received(data)
        # uvicorn makes the scope with the first byte of a head, and its method with the last.
        scope: Any = self.scope
        if scope is None or "method" in scope:
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
