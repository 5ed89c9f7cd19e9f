"""Who asks, in logs and traces: request id, W3C trace context, and one line for each request.

The bridge's operations bypass the middleware and call `request_id_of` and `trace_of` themselves.
"""

import re
from collections.abc import Iterable
from typing import NamedTuple, Protocol

import structlog
from starlette.requests import ClientDisconnect
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from structlog.contextvars import bind_contextvars, reset_contextvars

from app.clock import Clock, IdSource
from app.http_limits import send_response
from app.problem import REQUEST_ID_KEY, internal_error, problem_for

Headers = Iterable[tuple[bytes, bytes]]


class HttpObserver(Protocol):
    """What counts requests."""

    def observe_http(self, route: str, method: str, status: int, duration_s: float) -> None: ...


TRACE_KEY = "nexuskv.trace"

_REQUEST_ID = re.compile(rb"[A-Za-z0-9._-]{1,64}")
_TRACEPARENT = re.compile(rb"([0-9a-f]{2})-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})(-.*)?")
_SAMPLED = "01"
_UNMATCHED = "unmatched"
_PROBES = frozenset({"/livez", "/readyz", "/healthz", "/metrics"})
# nginx's number for a client that went away before it was answered.
_CLIENT_GONE = 499

_log = structlog.get_logger("nexuskv.http")


class Trace(NamedTuple):
    """A place in a distributed trace: 32 and 16 hex digits, and the flags as two."""

    trace_id: str
    span_id: str
    flags: str

    @property
    def traceparent(self) -> str:
        return f"00-{self.trace_id}-{self.span_id}-{self.flags}"


def request_id_of(headers: Headers) -> str | None:
    """The caller's X-Request-Id; None when there is none, or one we would not put in a log."""
    for name, value in headers:
        if name == b"x-request-id":
            return value.decode("ascii") if _REQUEST_ID.fullmatch(value) else None
    return None


def trace_of(headers: Headers) -> Trace | None:
    """The caller's span; None when there is no traceparent, or an invalid or ambiguous one."""
    found = None
    for name, value in headers:
        if name == b"traceparent":
            if found is not None:
                return None
            found = value
    if found is None or (match := _TRACEPARENT.fullmatch(found)) is None:
        return None
    version, trace_id, span_id, flags, rest = match.groups()
    # Later versions may append fields; version 00 has none, and ff is forbidden.
    if version == b"ff" or (version == b"00" and rest is not None):
        return None
    if trace_id.strip(b"0") == b"" or span_id.strip(b"0") == b"":
        return None
    return Trace(trace_id.decode(), span_id.decode(), flags.decode())


def own_span(caller: Trace | None, ids: IdSource) -> Trace:
    """Our span under the caller's, or the first one of a new trace."""
    # The low half of a uuidv7: 62 random bits below a variant that keeps it from being zero.
    span_id = f"{ids.uuid7().int & 0xFFFF_FFFF_FFFF_FFFF:016x}"
    if caller is None:
        return Trace(ids.uuid7().hex, span_id, _SAMPLED)
    return Trace(caller.trace_id, span_id, caller.flags)


def route_of(scope: Scope) -> str | None:
    """The template of the route that matched, e.g. `/v1/states/{state_id}`; None when none did.

    A router included under a prefix leaves its own part in `scope["route"]`; the whole template
    is on FastAPI's effective route.
    """
    effective = scope.get("fastapi", {}).get("effective_route_context")
    for candidate in (effective, scope.get("route")):
        path = getattr(candidate, "path_format", None)
        if isinstance(path, str):
            return path
    return None


class RequestContextMiddleware:
    """Outermost: ids in, ids out, an access log line, and the last stop of every exception."""

    def __init__(self, app: ASGIApp, *, clock: Clock, ids: IdSource, metrics: HttpObserver) -> None:
        self._app = app
        self._clock = clock
        self._ids = ids
        self._metrics = metrics

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        started_us = self._clock.monotonic_us()
        request_id = request_id_of(scope["headers"]) or str(self._ids.uuid7())
        trace = own_span(trace_of(scope["headers"]), self._ids)
        scope[REQUEST_ID_KEY] = request_id
        scope[TRACE_KEY] = trace
        answer = _Answer(send, request_id, trace)
        bound = bind_contextvars(request_id=request_id, trace_id=trace.trace_id)
        try:
            await self._run(scope, receive, answer)
        finally:
            self._observe(scope, answer.status, self._clock.monotonic_us() - started_us)
            reset_contextvars(**bound)

    async def _run(self, scope: Scope, receive: Receive, answer: "_Answer") -> None:
        try:
            await self._app(scope, receive, answer.send)
        except ClientDisconnect:
            return
        except Exception as error:
            if answer.complete:
                return  # Answered and logged by the handler of the application itself.
            _log.exception("unhandled_error", method=scope["method"])
            if answer.status is not None:
                raise  # Half an answer is out: only the server can still cut the connection.
            await send_response(answer.send, problem_for(internal_error(error), scope))

    def _observe(self, scope: Scope, status: int | None, duration_us: int) -> None:
        route = route_of(scope)
        status = _CLIENT_GONE if status is None else status
        self._metrics.observe_http(
            route or _UNMATCHED, scope["method"], status, duration_us / 1_000_000
        )
        path = route or scope["path"]
        write = _log.debug if path in _PROBES else _log.info
        write("request", method=scope["method"], path=path, status=status, duration_us=duration_us)


class _Answer:
    """The `send` of one request: adds the ids, remembers how far the answer has come."""

    def __init__(self, send: Send, request_id: str, trace: Trace) -> None:
        self._send = send
        self._headers = [
            (b"x-request-id", request_id.encode()),
            (b"traceparent", trace.traceparent.encode()),
        ]
        self.status: int | None = None
        self.complete = False

    async def send(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self.status = message["status"]
            message = {**message, "headers": [*message.get("headers", []), *self._headers]}
        elif message["type"] == "http.response.body":
            self.complete = not message.get("more_body", False)
        await self._send(message)
