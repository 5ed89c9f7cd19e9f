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
log = structlog.get_logger("nexuskv.http")


class BridgeHttpProtocol(HttpToolsProtocol):
    """uvicorn's parser, with two things replaced.

    Its text/plain answer to a malformed request, and the two writes of an answer that is whole.
    """

    def _start_asgi_task(self, cycle: RequestResponseCycle, app: Any) -> None:
        # uvicorn makes the cycle deep inside its header callback and has no hook for its class.
        cycle.__class__ = OneWriteCycle
        super()._start_asgi_task(cycle, app)

    def send_400_response(self, msg: str) -> None:
        url: bytes = getattr(self, "url", b"")
        error = NexusError(_fault(getattr(self, "headers", [])), f"{msg} Check its headers.")
        if url.startswith(_PREFIX):
            body, media_type = error_body(error), b"application/json"
        else:
            _, _, body = problem_response(error, "-")
            media_type = b"application/problem+json"
        log.warning("request_not_http", code=error.code.value)
        self.transport.write(
            b"HTTP/1.1 400 Bad Request\r\ncontent-type: %b\r\ncontent-length: %d\r\n"
            b"connection: close\r\n\r\n%b" % (media_type, len(body), body)
        )
        self.transport.close()


def _fault(headers: list[tuple[bytes, bytes]]) -> ErrorCode:
    """The parser stops at the first fault and does not name it; a length is the usual one."""
    lengths = [value for name, value in headers if name == b"content-length"]
    if len(lengths) == 1 and lengths[0].isdigit():
        return ErrorCode.INVALID_BODY
    return ErrorCode.INVALID_CONTENT_LENGTH
