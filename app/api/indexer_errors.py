"""Errors of `/indexer` in the shape that clients of such indexers know: `{"error": "..."}`."""

from typing import Final

import orjson
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from app.errors import ErrorCode, NexusError
from app.problem import MEDIA_TYPE, RETRY_AFTER_S, ResponseParts

PREFIX: Final = "/indexer/"
_JSON: Final = (b"content-type", b"application/json")
_REPLACED: Final = (b"content-type", b"content-length")
_PROBLEM: Final = MEDIA_TYPE.encode()


def error_response(error: NexusError, _: Scope) -> ResponseParts:
    """`code` is ours, beside what the wire has."""
    body = orjson.dumps({"error": error.message, "code": error.code})
    headers = [_JSON, (b"content-length", b"%d" % len(body))]
    if error.code is ErrorCode.UNAUTHORIZED:
        headers.append((b"www-authenticate", b"Bearer"))
    if error.status == 503:
        headers.append((b"retry-after", b"%d" % RETRY_AFTER_S))
    return error.status, headers, body


class IndexerErrorsMiddleware:
    """Rewrites problem documents of `/indexer`, whichever layer made them."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or not scope["path"].startswith(PREFIX):
            await self._app(scope, receive, send)
            return
        await self._app(scope, receive, _Rewriter(send).send)


class _Rewriter:
    """The `send` of one request: holds a problem's start back until its body is here."""

    def __init__(self, send: Send) -> None:
        self._send = send
        self._start: Message | None = None

    async def send(self, message: Message) -> None:
        if message["type"] == "http.response.start" and _is_problem(message):
            self._start = message
            return
        if self._start is None or message["type"] != "http.response.body":
            await self._send(message)
            return
        start, self._start = self._start, None
        problem = orjson.loads(message["body"])
        body = orjson.dumps({"error": problem["detail"], "code": problem["code"]})
        kept = [header for header in start["headers"] if header[0] not in _REPLACED]
        headers = [_JSON, (b"content-length", b"%d" % len(body)), *kept]
        await self._send({**start, "headers": headers})
        await self._send({**message, "body": body})


def _is_problem(start: Message) -> bool:
    return any(name == b"content-type" and value == _PROBLEM for name, value in start["headers"])
