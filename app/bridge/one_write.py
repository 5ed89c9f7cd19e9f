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
_LEFT_TO_UVICORN: Final = (b"\nconnection:", b"\ntransfer-encoding:")


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
    lines = [b"%b: %b\r\n" % header for header in (*default_headers, *headers)]
    head = b"%b%b\r\n" % (STATUS_LINE[status], b"".join(lines))
    ends = len(lines) + 2
    if (
        (b"content-length", b"%d" % len(body)) not in headers
        or head.count(b"\ncontent-length:") != 1
        or any(name in head for name in _LEFT_TO_UVICORN)
        # A line break inside a header would be one line more; uvicorn refuses it by name.
        or not head.count(b"\n") == head.count(b"\r") == ends
    ):
        return None
    return head + body
