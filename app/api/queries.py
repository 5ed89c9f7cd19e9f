"""Queries of the index as plain ASGI: reached before the router and its middleware, which would
cost more than the answer does. The routes of the same paths are what OpenAPI shows.
"""

from collections.abc import Callable, Coroutine, Mapping, Sequence
from functools import partial
from typing import Any, Final

import structlog
from starlette.types import Receive, Scope, Send

from app.api.indexer import BY_HASH_PATH, QUERY_PATH, answer_query, answer_query_by_hash
from app.api.indexer_errors import error_response
from app.api.match import MATCH_PATH, answer_match, media_type_of
from app.api.match_states import States
from app.clock import Clock, IdSource
from app.control.auth import Access, require_scope
from app.control.keys import Principal
from app.control.keys import Scope as KeyScope
from app.engines.matching import EngineMatcher
from app.errors import ErrorCode, NexusError
from app.http_limits import ClientDisconnectedError, read_body, refuse_body, send_response
from app.problem import REQUEST_ID_KEY, ResponseParts, internal_error, problem_for
from app.request_context import HttpObserver, request_id_of

Headers = list[tuple[bytes, bytes]]
_Parts = tuple[bytes, Headers]
Answer = Callable[[EngineMatcher, Principal, bytes, bytes, bytes, int], Coroutine[Any, Any, _Parts]]
AtOnce = Callable[[bytes, Sequence[tuple[bytes, bytes]], bytes], ResponseParts | None]
_JSON: Final = (b"content-type", b"application/json")
# What is larger is not begun twice.
_AT_ONCE_BYTES: Final = 250_000
_US_PER_S: Final = 1_000_000
# Answered before the body was read: the client may still be sending it.
_BODY_UNREAD: Final = frozenset(
    {ErrorCode.REQUEST_TOO_LARGE, ErrorCode.INVALID_CONTENT_LENGTH, ErrorCode.UNAUTHORIZED}
)
log = structlog.get_logger("nexuskv.queries")


async def _answer_match(  # noqa: PLR0917 - a request's parts in their order
    states: States,
    matcher: EngineMatcher,
    principal: Principal,
    media_type: bytes,
    query: bytes,
    body: bytes,
    now_us: int,
) -> _Parts:
    return await answer_match(states, matcher, principal, media_type, query, body, now_us), []


_PATHS: Final = frozenset({MATCH_PATH, QUERY_PATH, BY_HASH_PATH})


class Queries:
    """`POST /v1/match`, `/indexer/query` and `/indexer/query_by_hash`."""

    def __init__(
        self,
        access: Access,
        matcher: EngineMatcher,
        states: States,
        *,
        metrics: HttpObserver,
        clock: Clock,
        ids: IdSource,
    ) -> None:
        self._access = access
        self._matcher = matcher
        self._answers: Mapping[str, Answer] = {
            MATCH_PATH: partial(_answer_match, states),
            QUERY_PATH: answer_query,
            BY_HASH_PATH: answer_query_by_hash,
        }
        self._metrics = metrics
        self._clock = clock
        self._ids = ids

    @staticmethod
    def serve(scope: Scope) -> bool:
        """Whether a request of HTTP is one of these."""
        return scope["path"] in _PATHS and scope["method"] == "POST"

    def at_once(self) -> dict[bytes, AtOnce]:
        """For each path what answers it, or says None where this application must."""
        return {path.encode(): partial(self._at_once, path) for path in self._answers}

    def _at_once(
        self, path: str, query: bytes, headers: Sequence[tuple[bytes, bytes]], body: bytes
    ) -> ResponseParts | None:
        started_us = self._clock.monotonic_us()
        principal = self._known(headers)
        if principal is None or not principal.allows(KeyScope.STATES_READ):
            return None
        if len(body) > _AT_ONCE_BYTES:
            return None
        work = self._answers[path](
            self._matcher, principal, media_type_of(headers), query, body, self._clock.now_us()
        )
        try:
            work.send(None)
        except StopIteration as done:
            answer, more = done.value
        except Exception:  # noqa: BLE001 - asked once more, and answered with what went wrong
            return None
        else:
            # It would let others have a turn: that can be done only in a task.
            work.close()
            return None
        duration_us = self._clock.monotonic_us() - started_us
        self._metrics.observe_http(path, "POST", 200, duration_us / _US_PER_S)
        return 200, [_JSON, (b"content-length", b"%d" % len(answer)), *more], answer

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        started_us = self._clock.monotonic_us()
        path: str = scope["path"]
        headers = scope["headers"]
        unread = False
        try:
            principal = self._known(headers) or await self._access.authenticate(scope)
            require_scope(principal, KeyScope.STATES_READ)
            body = await read_body(scope, receive)
            answer, more = await self._answers[path](
                self._matcher,
                principal,
                media_type_of(headers),
                scope["query_string"],
                body,
                self._clock.now_us(),
            )
            response: ResponseParts = (
                200,
                [_JSON, (b"content-length", b"%d" % len(answer)), *more],
                answer,
            )
        except ClientDisconnectedError:
            return
        except NexusError as error:
            unread = error.code in _BODY_UNREAD
            response = self._refused(scope, error)
        except Exception as error:
            log.exception("query_failed", path=path)
            response = self._refused(scope, internal_error(error))
        duration_us = self._clock.monotonic_us() - started_us
        self._metrics.observe_http(path, "POST", response[0], duration_us / _US_PER_S)
        if unread:
            await refuse_body(scope, receive, send, response)
        else:
            await send_response(send, response)

    def _known(self, headers: Sequence[tuple[bytes, bytes]]) -> Principal | None:
        found = [value for name, value in headers if name == b"authorization"]
        return self._access.known(found[0]) if len(found) == 1 else None

    def _refused(self, scope: Scope, error: NexusError) -> ResponseParts:
        """In the shape of the wire it came by, logged, with what its caller can quote."""
        request_id = request_id_of(scope["headers"]) or str(self._ids.uuid7())
        scope[REQUEST_ID_KEY] = request_id
        shaped = problem_for if scope["path"] == MATCH_PATH else error_response
        status, headers, body = shaped(error, scope)
        log.warning(
            "query_refused",
            path=scope["path"],
            code=error.code.value,
            status=status,
            request_id=request_id,
            cause=error.internal,
        )
        # Its frames hold the request: a cycle that would keep it alive.
        error.__traceback__ = error.__context__ = error.__cause__ = None
        return status, [*headers, (b"x-request-id", request_id.encode())], body
