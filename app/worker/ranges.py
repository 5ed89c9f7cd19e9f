"""Bytes of the arena as an HTTP answer: whole or one range, copied out slice by slice."""

import asyncio
import re
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Final, NamedTuple

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from app.errors import ErrorCode, NexusError
from app.http_limits import send_response
from app.problem import problem_response, request_id_in
from app.transfer.wire import CHECKSUM_HEADER

# However slowly somebody reads: no longer than this is anything pinned for it.
READ_S: Final = 600.0
_SLICE_BYTES: Final = 256 * 1024
_RANGE: Final = re.compile(rb"bytes=([0-9]{0,18})-([0-9]{0,18})")


class Content(NamedTuple):
    """Bytes that stay for as long as the context that gave them."""

    view: memoryview
    checksum: str


class Part(NamedTuple):
    """From `start` up to, not including, `end`."""

    start: int
    end: int


def part_of(header: bytes | None, total_bytes: int) -> Part | None:
    """The one range that was asked for; None means everything.

    What is no single byte range is ignored, as HTTP allows. Raises RANGE_NOT_SATISFIABLE.
    """
    found = _RANGE.fullmatch(header.strip()) if header is not None else None
    if found is None or found.groups() == (b"", b""):
        return None
    first, last = found.groups()
    if not first:
        start, end = max(total_bytes - int(last), 0), total_bytes
    else:
        start = int(first)
        end = min(int(last) + 1, total_bytes) if last else total_bytes
        if last and int(last) < start:
            return None
    if start >= total_bytes or start == end:
        raise NexusError(
            ErrorCode.RANGE_NOT_SATISFIABLE, f"there are {total_bytes} bytes; ask for some of them"
        )
    return Part(start, end)


class ContentResponse(Response):
    """`hold` gives the bytes, pinned; it is entered when the answer begins."""

    def __init__(self, hold: Callable[[], AbstractContextManager[Content]]) -> None:
        super().__init__()
        self._hold = hold

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:  # noqa: ARG002
        asked = [value for name, value in scope["headers"] if name == b"range"]
        with self._hold() as content:
            total_bytes = len(content.view)
            try:
                part = part_of(asked[0] if len(asked) == 1 else None, total_bytes)
            except NexusError as error:
                await send_response(
                    send,
                    problem_response(
                        error,
                        request_id_in(scope),
                        instance=scope["path"],
                        extra_headers={"content-range": f"bytes */{total_bytes}"},
                    ),
                )
                return
            async with asyncio.timeout(READ_S):
                await _send(scope, send, content, part)


async def _send(scope: Scope, send: Send, content: Content, part: Part | None) -> None:
    total_bytes = len(content.view)
    start, end = part or Part(0, total_bytes)
    headers = [
        (b"content-type", b"application/octet-stream"),
        (b"content-length", str(end - start).encode()),
        (b"accept-ranges", b"bytes"),
        # Of all bytes, also where only some are sent.
        (CHECKSUM_HEADER.encode(), content.checksum.encode()),
    ]
    if part is not None:
        headers.append((b"content-range", f"bytes {start}-{end - 1}/{total_bytes}".encode()))
    status = 200 if part is None else 206
    await send({"type": "http.response.start", "status": status, "headers": headers})
    if scope["method"] == "HEAD":
        await send({"type": "http.response.body", "body": b""})
        return
    for place in range(start, end, _SLICE_BYTES):
        body = bytes(content.view[place : min(place + _SLICE_BYTES, end)])
        more = place + len(body) < end
        await send({"type": "http.response.body", "body": body, "more_body": more})
