"""Bodies: a byte limit with or without Content-Length, and a refusal that the client gets to see.

A server that answers 413 and closes while the client still sends makes the kernel reset the
connection, and the reset can overtake the answer. So the answer goes out at once and in full, what
the client still sends is then read and dropped, up to a bound, and only then is the connection
closed.
"""

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Iterable
from typing import Any, TypeVar

from starlette.requests import ClientDisconnect
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from app.errors import ErrorCode, NexusError
from app.problem import ResponseParts, problem_for
from app.settings import MAX_BODY_BYTES

T = TypeVar("T")

DRAIN_BYTES = 64 * 1024 * 1024
DRAIN_S = 10.0
# Once its first bytes are here, a body has this long to be complete.
BODY_S = 30.0
# More digits than any length that fits a signed 64-bit integer: too large, whatever it says.
_MAX_LENGTH_DIGITS = 18


class ClientDisconnectedError(ClientDisconnect):
    """The client went away before its body was complete; there is nobody to answer."""


def announced_bytes(headers: Iterable[tuple[bytes, bytes]]) -> int | None:
    """The Content-Length of a request, None without one. Raises INVALID_CONTENT_LENGTH."""
    announced: int | None = None
    for name, value in headers:
        if name == b"content-length":
            if not value.isdigit() or announced is not None:
                raise NexusError(
                    ErrorCode.INVALID_CONTENT_LENGTH,
                    "Content-Length must be one decimal number of bytes",
                )
            digits = value.lstrip(b"0")[: _MAX_LENGTH_DIGITS + 1]
            announced = int(digits or b"0")
    return announced


async def read_body(scope: Scope, receive: Receive, limit_bytes: int = MAX_BODY_BYTES) -> bytes:
    """Return the whole body; one that came in a single message is returned without a copy.

    Raises REQUEST_TOO_LARGE (before reading anything when the length is announced; answer it with
    `refuse_body`), INVALID_CONTENT_LENGTH, or ClientDisconnectedError.
    """
    announced = announced_bytes(scope["headers"])
    if announced is not None and announced > limit_bytes:
        raise _too_large(limit_bytes)
    message = await receive()
    body: bytes = _body_of(message)
    if len(body) > limit_bytes:
        raise _too_large(limit_bytes)
    if not message.get("more_body", False):
        return body
    try:
        async with asyncio.timeout(BODY_S):
            return await _rest_of_body(receive, bytearray(body), limit_bytes)
    except TimeoutError:
        raise NexusError(
            ErrorCode.INVALID_BODY, f"The body did not arrive within {BODY_S:g} s"
        ) from None


async def _rest_of_body(receive: Receive, collected: bytearray, limit_bytes: int) -> bytes:
    while True:
        message = await receive()
        collected += _body_of(message)
        if len(collected) > limit_bytes:
            raise _too_large(limit_bytes)
        if not message.get("more_body", False):
            return bytes(collected)


async def while_connected(receive: Receive, work: Coroutine[Any, Any, T]) -> T:
    """The result of `work`, which is cancelled when the client goes away: nobody waits for it.

    The body must have been read. Raises ClientDisconnectedError then, and whatever `work` raises.
    """
    task = asyncio.create_task(work)
    watch = asyncio.create_task(_client_gone(receive))
    try:
        await asyncio.wait((task, watch), return_when=asyncio.FIRST_COMPLETED)
        if not task.done():
            task.cancel()
            await asyncio.wait((task,))
            raise ClientDisconnectedError
        return task.result()
    finally:
        watch.cancel()
        task.cancel()


async def _client_gone(receive: Receive) -> None:
    message = await receive()
    if message["type"] != "http.disconnect":
        # A server that has more to say of a body that is complete says nothing of its client.
        await asyncio.Event().wait()


async def send_response(send: Send, response: ResponseParts) -> None:
    """Send a complete response."""
    status, headers, body = response
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})


async def refuse_body(scope: Scope, receive: Receive, send: Send, response: ResponseParts) -> None:
    """Send `response` to a client that may still be sending its body, and close politely.

    At most 64 MiB and 10 s of what it still sends are read; a client that goes on is cut off.
    """
    status, headers, body = response
    closing = [*headers, (b"connection", b"close")]
    await send({"type": "http.response.start", "status": status, "headers": closing})
    # Content-Length lets the client take the answer for complete while we keep the socket open.
    await send({"type": "http.response.body", "body": body, "more_body": True})
    # Who waits for "100 Continue" has sent nothing yet and reads the answer instead.
    if not _waits_for_continue(scope):
        await _drain(receive)
    await send({"type": "http.response.body", "body": b"", "more_body": False})


class BodyLimitMiddleware:
    """Reads every body before the application sees the request; too large a one ends here.

    Routes buffer their bodies anyway, so holding it here costs nothing, and a refusal does not
    depend on what the application makes of an error in the middle of its read.
    """

    def __init__(
        self,
        app: ASGIApp,
        *,
        authorise: Callable[[Scope], Awaitable[object]] | None = None,
        limit_bytes: int = MAX_BODY_BYTES,
    ) -> None:
        """`authorise` raises NexusError for a caller whose body is not even to be read."""
        self._app = app
        self._authorise = authorise
        self._limit_bytes = limit_bytes

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or not _has_body(scope):
            await self._app(scope, receive, send)
            return
        try:
            if self._authorise is not None:
                await self._authorise(scope)
            body = await read_body(scope, receive, self._limit_bytes)
        except NexusError as error:
            await refuse_body(scope, receive, send, problem_for(error, scope))
        except ClientDisconnectedError:
            return
        else:
            await self._app(scope, _Replay(body, receive), send)


class _Replay:
    """A `receive` that gives the body once, then whatever the server says (a disconnect)."""

    def __init__(self, body: bytes, receive: Receive) -> None:
        self._body: bytes | None = body
        self._receive = receive

    async def __call__(self) -> Message:
        if self._body is None:
            return await self._receive()
        body, self._body = self._body, None
        return {"type": "http.request", "body": body, "more_body": False}


async def _drain(receive: Receive) -> None:
    left_bytes = DRAIN_BYTES
    try:
        async with asyncio.timeout(DRAIN_S):
            while left_bytes > 0:
                message = await receive()
                if message["type"] != "http.request" or not message.get("more_body", False):
                    return
                left_bytes -= len(message.get("body", b""))
    except TimeoutError:
        return


def _body_of(message: Message) -> bytes:
    if message["type"] != "http.request":
        raise ClientDisconnectedError
    body: bytes = message.get("body", b"")
    return body


def _has_body(scope: Scope) -> bool:
    return any(name in (b"content-length", b"transfer-encoding") for name, _ in scope["headers"])


def _waits_for_continue(scope: Scope) -> bool:
    return any(
        name == b"expect" and value.lower() == b"100-continue" for name, value in scope["headers"]
    )


def _too_large(limit_bytes: int) -> NexusError:
    return NexusError(
        ErrorCode.REQUEST_TOO_LARGE, f"The body is larger than {limit_bytes} bytes; send less"
    )
