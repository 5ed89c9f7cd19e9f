"""A response that is known whole leaves in one write.

uvicorn writes the head and the body of a response apart: two system calls, two packets and two
wake-ups of the client. ASGI asks a server to hold the start of a response until its first body
event anyway; so does this cycle, and where that event is also the last, it sends both at once.
Whatever is not that simple (streams, HEAD, chunked, closing, a client that does not read) takes
uvicorn's own way.
"""

from collections.abc import Sequence
from typing import Any, Final, TypeAlias

from uvicorn.protocols.http.httptools_impl import STATUS_LINE, RequestResponseCycle

Headers: TypeAlias = Sequence[tuple[bytes, bytes]]
_LEFT_TO_UVICORN: Final = (b"connection", b"transfer-encoding")


class OneWriteCycle(RequestResponseCycle):
    """One request and its response on a connection."""

    _start: Any = None

    async def send(self, message: Any) -> None:
        if message["type"] == "http.response.start" and not self.response_started:
            self._start = message
            return
        start, self._start = self._start, None
        if start is not None:
            if self._sent_whole(start, message):
                return
            await super().send(start)
        await super().send(message)

    def _sent_whole(self, start: dict[str, Any], event: dict[str, Any]) -> bool:
        """False when nothing was sent, because the simple way does not fit."""
        if event.get("more_body") or event["type"] != "http.response.body" or not self._is_plain():
            return False
        response = whole_response(
            self.default_headers, start["status"], start["headers"], event.get("body", b"")
        )
        if response is None:
            return False
        self.response_started = self.response_complete = True
        self.transport.write(response)
        self.message_event.set()
        self.on_response()
        return True

    def _is_plain(self) -> bool:
        return (
            self.keep_alive
            and not self.disconnected
            and not self.waiting_for_100_continue
            and not self.access_log
            and not self.flow.write_paused
            and self.scope["method"] != "HEAD"
        )


def whole_response(
    default_headers: Headers, status: int, headers: Headers, body: bytes
) -> bytes | None:
    """Head and body; None for what must be left to uvicorn."""
    parts = [STATUS_LINE[status]]
    length = None
    for name, value in (*default_headers, *headers):
        if name == b"content-length":
            length = value
        elif name in _LEFT_TO_UVICORN:
            return None
        parts += (name, b": ", value, b"\r\n")
    lines = len(parts) // 4 + 1
    parts.append(b"\r\n")
    head = b"".join(parts)
    # A line break inside a header would be one line more; uvicorn refuses it by name.
    if length != b"%d" % len(body) or not head.count(b"\n") == head.count(b"\r") == lines + 1:
        return None
    return head + body
