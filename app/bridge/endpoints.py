"""The bridge's operations as plain ASGI: reached before the router and its middleware.

Each is one straight line: authenticate, read, decode, run the slice of the pipeline, answer. The
published schema is `app.bridge.schemas`; `app.bridge.openapi` puts it into the API document.
"""

from collections.abc import Callable, Sequence
from typing import Final, NamedTuple, TypeAlias
from uuid import UUID

import structlog
from starlette.types import Receive, Scope, Send

from app.bridge.answers import NO_MATCH, estimate_answer, lookup_answer, materialize_answer
from app.bridge.errors import error_body, on_the_wire
from app.bridge.handles import HandleKeys, parse_option_id, target_digest
from app.bridge.schemas import BRIDGE_SCHEMA
from app.bridge.wire import BridgeDecoder
from app.clock import Clock, IdSource
from app.control.auth import Access, require_scope
from app.control.keys import Principal
from app.control.keys import Scope as KeyScope
from app.decisions.record import DecisionKind, Durability
from app.errors import ErrorCode, NexusError
from app.http_limits import (
    ClientDisconnectedError,
    read_body,
    refuse_body,
    send_response,
    while_connected,
)
from app.index.matcher import Freshness
from app.index.registered import ScopeIdentity
from app.lifecycle.caller import Caller, Refused
from app.lifecycle.estimate import Estimate
from app.lifecycle.keeping import Keeping
from app.lifecycle.lookup import Hit, Lookup, MissKind
from app.lifecycle.materialize import Materialize
from app.lifecycle.queries import EstimateQuery, LookupQuery, MaterializeQuery
from app.metrics import Metrics, Operation
from app.problem import RETRY_AFTER_S, ResponseParts
from app.request_context import Trace, request_id_of, trace_of

PREFIX: Final = "/locus/"
HEALTH_PATH: Final = "/healthz"
LOOKUP_PATH: Final = b"/locus/v1/lookup"
_JSON: Final = (b"content-type", b"application/json")
_HEALTH: Final = b'{"status":"ok","schema_version":"%b"}' % BRIDGE_SCHEMA.encode()
_US_PER_S: Final = 1_000_000
Headers: TypeAlias = Sequence[tuple[bytes, bytes]]
log = structlog.get_logger("nexuskv.bridge")


_OPERATIONS: Final[dict[str, Operation]] = {
    "/locus/v1/lookup": "lookup",
    "/locus/v1/estimate": "estimate",
    "/locus/v1/materialize": "materialize",
}


_LOOKUP: Final = DecisionKind.LOOKUP
_KINDS: Final[dict[Operation, DecisionKind]] = {
    "lookup": _LOOKUP,
    "estimate": DecisionKind.ESTIMATE,
    "materialize": DecisionKind.MATERIALIZE,
}
_DURABILITY: Final = {each: each.encode() for each in Durability}


class Reply(NamedTuple):
    """One answer: its body, and the decision behind it if one was made."""

    body: bytes
    decision_id: UUID | None
    error: NexusError | None = None
    miss: MissKind | None = None
    # What holds of the decision when the answer leaves.
    durability: Durability | None = None


class Bridge:
    """`POST /locus/v1/lookup|estimate|materialize` and `GET /healthz`."""

    def __init__(
        self,
        access: Access,
        handles: HandleKeys,
        *,
        lookup: Lookup,
        estimate: Estimate,
        materialize: Materialize,
        freshness: Callable[[], Freshness],
        keeping: Keeping,
        metrics: Metrics,
        clock: Clock,
        ids: IdSource,
    ) -> None:
        self._access = access
        self._handles = handles
        self._lookup = lookup
        self._estimate = estimate
        self._materialize = materialize
        self._freshness = freshness
        self._keeping = keeping
        self._metrics = metrics
        self._clock = clock
        self._ids = ids
        self._decoder = BridgeDecoder()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        started_us = self._clock.monotonic_us()
        operation = _OPERATIONS.get(scope["path"])
        if operation is None or scope["method"] != "POST":
            await self._other(scope, send)
            return
        headers = scope["headers"]
        principal, trace = self._seen(headers)
        try:
            if principal is None:
                principal = await self._access.authenticate(scope)
            require_scope(principal, KeyScope.BRIDGE)
            body = await read_body(scope, receive)
            caller = Caller(principal, trace.trace_id if trace else None, started_us)
            kind = _KINDS[operation]
            self._keeping.require_room(kind)
            lost = self._keeping.lost_rows
            if operation == "lookup":
                reply = self._on_lookup(body, caller)
            elif operation == "estimate":
                reply = await self._on_estimate(body, caller)
            else:
                reply = await while_connected(receive, self._on_materialize(body, caller))
            if reply.durability is not Durability.LOST:
                kept = await self._keeping.kept(kind, reply.decision_id, lost_before=lost)
                reply = reply._replace(durability=kept)
        except ClientDisconnectedError:
            return
        except NexusError as error:
            reply = _refusal(error, None)
        except Exception as error:  # noqa: BLE001 - logged, and answered
            reply = _failure(operation, error)
        response = self._finished(operation, reply, trace, headers, started_us)
        if reply.error is not None and reply.error.code in _BODY_UNREAD:
            await refuse_body(scope, receive, send, response)
        else:
            await send_response(send, response)

    def lookup_at_once(self, query: bytes, headers: Headers, body: bytes) -> ResponseParts | None:
        """The answer to a lookup that is here as a whole, and waits for nothing.

        None, and nothing done, when a query string came with it, the key is not known in memory, or
        its decision has to be committed first: then `__call__` must ask.
        """
        started_us = self._clock.monotonic_us()
        principal, trace = self._seen(headers)
        if principal is None or query or self._keeping.wanted(_LOOKUP) is Durability.GROUP:
            return None
        try:
            require_scope(principal, KeyScope.BRIDGE)
            caller = Caller(principal, trace.trace_id if trace else None, started_us)
            reply = self._on_lookup(body, caller)
        except NexusError as error:
            reply = _refusal(error, None)
        except Exception as error:  # noqa: BLE001 - logged, and answered
            reply = _failure("lookup", error)
        return self._finished("lookup", reply, trace, headers, started_us)

    def _seen(self, headers: Headers) -> tuple[Principal | None, Trace | None]:
        """Whose key is in the headers, if it is in memory; and the caller's span."""
        known = dict(headers)
        # A header sent twice is for the slow way to judge.
        unambiguous = len(known) == len(headers)
        return (
            self._access.known(known.get(b"authorization")) if unambiguous else None,
            trace_of(headers) if b"traceparent" in known else None,
        )

    def _finished(
        self,
        operation: Operation,
        reply: Reply,
        trace: Trace | None,
        headers: Headers,
        started_us: int,
    ) -> ResponseParts:
        """The response of a reply, counted; a refusal is logged too.

        The decision is the record of an answer; a log line each would cost more than it.
        """
        duration_us = self._clock.monotonic_us() - started_us
        error = reply.error
        if error is None:
            self._metrics.observe_bridge(operation, None, duration_us / _US_PER_S)
            return 200, _answer_headers(reply, trace), reply.body
        request_id = self._request_id(headers)
        self._metrics.observe_bridge(operation, error.code, duration_us / _US_PER_S)
        log.warning(
            "bridge_refused",
            operation=operation,
            code=error.code.value,
            status=error.status,
            duration_us=duration_us,
            decision_id=str(reply.decision_id) if reply.decision_id else None,
            trace_id=trace.trace_id if trace else None,
            request_id=request_id,
            cause=error.internal,
        )
        return _refusal_response(reply, trace, request_id)

    def _on_lookup(self, body: bytes, caller: Caller) -> Reply:
        lost = self._keeping.lost_rows
        reply = self._looked_up(body, caller)
        if reply.decision_id is None:
            return reply
        # Nothing else is recorded meanwhile.
        whole = self._keeping.lost_rows == lost
        return reply._replace(durability=Durability.SPOOLED if whole else Durability.LOST)

    def _looked_up(self, body: bytes, caller: Caller) -> Reply:
        request = self._decoder.lookup(body)
        identity, evidence = request.identity, request.evidence
        answer = self._lookup.run(
            LookupQuery(
                ScopeIdentity(
                    identity.tenant,
                    identity.namespace,
                    identity.model,
                    identity.engine_family,
                    identity.semantic_type,
                ),
                request.tokens,
                evidence,
                request.evidence_number,
            ),
            caller,
            self._freshness(),
        )
        if isinstance(answer, Hit):
            self._metrics.count_lookup("hit")
            handle = self._handles.seal_source(answer.grant)
            return Reply(
                lookup_answer(answer.candidate, request.tokens, request.evidence_echo, handle),
                answer.decision_id,
            )
        if isinstance(answer, Refused):
            self._metrics.count_lookup("excluded")
            return _refusal(answer.error, answer.decision_id)
        self._metrics.count_lookup(answer.kind.value)
        return Reply(NO_MATCH, answer.decision_id, miss=answer.kind)

    async def _on_estimate(self, body: bytes, caller: Caller) -> Reply:
        request = self._decoder.estimate(body)
        answer = await self._estimate.run(
            EstimateQuery(
                grant=self._handles.open_source(request.source_handle),
                source_state=request.source_state,
                source_locator=request.source_locator,
                source_tier=request.source_tier,
                target_digest=target_digest(
                    request.target_id, request.target_engine_id, request.target_engine_generation
                ),
                target_id=request.target_id,
                target_engine_id=request.target_engine_id,
                target_engine_generation=request.target_engine_generation,
                target_residency=request.target_residency,
            ),
            caller,
        )
        if isinstance(answer, Refused):
            return _refusal(answer.error, answer.decision_id)
        handle = self._handles.seal_option(answer.grant)
        return Reply(estimate_answer(answer, handle), answer.decision_id)

    async def _on_materialize(self, body: bytes, caller: Caller) -> Reply:
        request = self._decoder.materialize(body)
        answer = await self._materialize.run(
            MaterializeQuery(
                option_id=parse_option_id(request.option_id),
                grant=self._handles.open_option(request.option_handle),
                import_id=request.import_id,
                target_digest=target_digest(
                    request.target_id, request.target_engine_id, request.target_engine_generation
                ),
                target_engine_id=request.target_engine_id,
                target_engine_generation=request.target_engine_generation,
                sink_namespace=request.sink_namespace,
                sink_value=request.sink_value,
            ),
            caller,
        )
        if isinstance(answer, Refused):
            return _refusal(answer.error, answer.decision_id)
        return Reply(materialize_answer(answer.receipt), answer.decision_id)

    async def _other(self, scope: Scope, send: Send) -> None:
        if scope["path"] == HEALTH_PATH and scope["method"] in ("GET", "HEAD"):
            body = b"" if scope["method"] == "HEAD" else _HEALTH
            headers = [_JSON, (b"content-length", b"%d" % len(_HEALTH))]
            await send({"type": "http.response.start", "status": 200, "headers": headers})
            await send({"type": "http.response.body", "body": body})
            return
        error = NexusError(ErrorCode.NOT_FOUND, "no such operation; POST /locus/v1/lookup is one")
        reply, request_id = _refusal(error, None), self._request_id(scope["headers"])
        status, headers, body = _refusal_response(reply, None, request_id)
        await send_response(send, (status, headers, b"" if scope["method"] == "HEAD" else body))

    def _request_id(self, headers: Headers) -> str:
        """Of a refusal: what its caller can quote, and the log has. An answer has its decision."""
        return request_id_of(headers) or str(self._ids.uuid7())


# Answered before the body was read: the client may still be sending it.
_BODY_UNREAD: Final = frozenset(
    {ErrorCode.REQUEST_TOO_LARGE, ErrorCode.INVALID_CONTENT_LENGTH, ErrorCode.UNAUTHORIZED}
)


def _answer_headers(reply: Reply, trace: Trace | None) -> list[tuple[bytes, bytes]]:
    headers = [_JSON, (b"content-length", b"%d" % len(reply.body))]
    if reply.decision_id is not None:
        headers.append((b"x-nexuskv-decision-id", str(reply.decision_id).encode()))
        headers.append((b"traceparent", _traceparent(reply.decision_id, trace)))
    if reply.durability is not None:
        headers.append((b"x-nexuskv-durability", _DURABILITY[reply.durability]))
    if reply.miss is not None and reply.miss is not MissKind.MISS:
        headers.append((b"x-nexuskv-match", reply.miss.encode()))
    return headers


def _refusal_response(reply: Reply, trace: Trace | None, request_id: str) -> ResponseParts:
    error = reply.error
    assert error is not None
    headers = _answer_headers(reply, trace)
    headers.append((b"x-request-id", request_id.encode()))
    return error.status, headers + _error_headers(error), reply.body


def _refusal(error: NexusError, decision_id: UUID | None) -> Reply:
    error = on_the_wire(error)
    # Its frames hold the reply, which holds it: a cycle that would keep the whole request alive.
    error.__traceback__ = error.__context__ = error.__cause__ = None
    return Reply(error_body(error), decision_id, error)


def _failure(operation: Operation, error: Exception) -> Reply:
    log.error("bridge_failed", operation=operation, exc_info=error)
    return _refusal(
        NexusError(
            ErrorCode.INTERNAL_ERROR,
            "an unexpected error; it is in the service's log",
            internal=repr(error),
        ),
        None,
    )


def _error_headers(error: NexusError) -> list[tuple[bytes, bytes]]:
    if error.code is ErrorCode.UNAUTHORIZED:
        return [(b"www-authenticate", b"Bearer")]
    if error.status == 503:
        return [(b"retry-after", b"%d" % RETRY_AFTER_S)]
    return []


def _traceparent(decision_id: UUID, trace: Trace | None) -> bytes:
    """The caller's trace continued, or a new one that begins with this decision."""
    text = decision_id.hex
    if trace is None:
        return f"00-{text}-{text[16:]}-00".encode()
    return f"00-{trace.trace_id}-{text[16:]}-{trace.flags}".encode()
