"""`/console` as plain ASGI: routes, who may see them, headers, and errors as pages."""

from collections.abc import Awaitable, Callable
from typing import Final

import structlog
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import Route, Router
from starlette.staticfiles import StaticFiles
from starlette.types import ASGIApp, Message, Receive, Send
from starlette.types import Scope as AsgiScope

from app.console.decision import decision_page
from app.console.decisions import decisions_page, found_decision
from app.console.engines import engine_page, engines_page
from app.console.overview import overview_page
from app.console.plan import plan_page
from app.console.policies import (
    activate,
    confirm_page,
    diff_page,
    policies_page,
    policy_page,
)
from app.console.rendering import STATIC, STATIC_VERSION, page
from app.console.session import Sessions
from app.console.sign_in import sign_in, sign_in_page, sign_out
from app.console.states import state_page, states_page
from app.console.visit import HOME, SIGN_IN, Visit, sign_in_path, visit_of
from app.console.workers import workers_page
from app.control.auth import require_scope
from app.control.keys import Scope
from app.errors import ErrorCode, NexusError
from app.problem import RETRY_AFTER_S, internal_error, request_id_in
from app.services import Services

PREFIX: Final = "/console"
_POLICY: Final = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
    "font-src 'self'; form-action 'self'; frame-ancestors 'none'; base-uri 'none'"
)
# With no-referrer browsers would send `Origin: null` with our own forms.
_HEADERS: Final = [
    (b"content-security-policy", _POLICY.encode()),
    (b"x-content-type-options", b"nosniff"),
    (b"referrer-policy", b"same-origin"),
    (b"cross-origin-opener-policy", b"same-origin"),
    (b"cross-origin-resource-policy", b"same-origin"),
]
_NO_STORE: Final = (b"cache-control", b"no-store")
_FOR_EVER: Final = (b"cache-control", b"public, max-age=31536000, immutable")
_STATIC_PATH: Final = "/console/static/"

View = Callable[[Visit], Awaitable[Response]]
_log = structlog.get_logger("nexuskv.console")

# Path, method, the scope it takes (None: any key), and what answers.
_PAGES: Final[tuple[tuple[str, str, Scope | None, View], ...]] = (
    (HOME, "GET", None, overview_page),
    ("/console/decisions", "GET", Scope.DECISIONS_READ, decisions_page),
    ("/console/decisions/find", "GET", Scope.DECISIONS_READ, found_decision),
    ("/console/decisions/{decision_id:uuid}", "GET", Scope.DECISIONS_READ, decision_page),
    ("/console/plans/{decision_id:uuid}", "GET", Scope.DECISIONS_READ, plan_page),
    ("/console/policies", "GET", Scope.POLICIES_READ, policies_page),
    ("/console/policies/diff", "GET", Scope.POLICIES_READ, diff_page),
    ("/console/policies/{number:int}", "GET", Scope.POLICIES_READ, policy_page),
    ("/console/policies/{number:int}/activate", "GET", Scope.POLICIES_ACTIVATE, confirm_page),
    ("/console/policies/{number:int}/activate", "POST", Scope.POLICIES_ACTIVATE, activate),
    ("/console/states", "GET", Scope.STATES_READ, states_page),
    ("/console/states/{state_id:uuid}", "GET", Scope.STATES_READ, state_page),
    ("/console/engines", "GET", Scope.ENGINES_READ, engines_page),
    ("/console/engines/{instance_id}/{dp_rank:int}", "GET", Scope.ENGINES_READ, engine_page),
    ("/console/workers", "GET", Scope.WORKERS_READ, workers_page),
)
_OPEN: Final[tuple[tuple[str, str, View], ...]] = (
    (SIGN_IN, "GET", sign_in_page),
    (SIGN_IN, "POST", sign_in),
    ("/console/sign-out", "POST", sign_out),
)


class ConsoleMiddleware:
    """Answers everything under /console; the rest goes on to the application.

    It stands before the middleware that reads bodies for callers with an API key: forms are small,
    and come with a cookie.
    """

    def __init__(self, app: ASGIApp, *, services: Services, secrets: str) -> None:
        self._app = app
        self._services = services
        self._sessions = Sessions(secrets, services.clock, services.ids)
        self._files = StaticFiles(directory=STATIC)
        self._router = Router(
            [
                *(self._route(path, method, self._guarded(view, scope))
                  for path, method, scope, view in _PAGES),
                *(self._route(path, method, view) for path, method, view in _OPEN),
            ],
            redirect_slashes=False,
        )  # fmt: skip

    async def __call__(self, scope: AsgiScope, receive: Receive, send: Send) -> None:
        path = scope["path"] if scope["type"] == "http" else ""
        if path != PREFIX and not path.startswith(PREFIX + "/"):
            await self._app(scope, receive, send)
            return
        answer = _Headed(send, scope)
        if path.startswith(_STATIC_PATH):
            await self._static(scope, receive, answer)
        elif path == PREFIX + "/":
            await RedirectResponse(HOME, 308)(scope, receive, answer)
        else:
            await self._page(scope, receive, answer)

    async def _static(self, scope: AsgiScope, receive: Receive, send: Send) -> None:
        below = {**scope, "path": "/" + scope["path"].removeprefix(_STATIC_PATH), "root_path": ""}
        try:
            await self._files(below, receive, send)
        except HTTPException as error:
            await Response(status_code=error.status_code)(scope, receive, send)

    async def _page(self, scope: AsgiScope, receive: Receive, send: Send) -> None:
        request = Request(scope, receive)
        try:
            visit = await visit_of(request, self._services, self._sessions)
            scope["nexuskv.visit"] = visit
            await self._router(scope, receive, send)
        except ClientDisconnect:
            raise
        except Exception as error:  # noqa: BLE001 - every error of a page is a page
            response = self._failed(request, _as_ours(error, request))
            await response(scope, receive, send)

    def _failed(self, request: Request, error: NexusError) -> Response:
        """Say what went wrong, on a page or in the part of one that was asked for."""
        visit = request.scope.get("nexuskv.visit")
        if visit is None:
            visit = Visit(request, self._services, self._sessions, self._sessions.begin(), False)
        if error.internal is not None or error.status >= 500:
            _log.info("refused", code=error.code.value, status=error.status, reason=error.internal)
        template = "error_part.html" if visit.is_fragment else "error.html"
        response = page(
            visit,
            template,
            status=error.status,
            error=error,
            request_id=request_id_in(request.scope),
        )
        if error.status == 503:
            response.headers["retry-after"] = str(RETRY_AFTER_S)
        return response

    def _route(self, path: str, method: str, view: View) -> Route:
        async def endpoint(request: Request) -> Response:
            # For the log and the metrics: the template, never the path.
            request.scope["route"] = route
            visit: Visit = request.scope["nexuskv.visit"]
            if visit.arrives_from_elsewhere():
                return page(visit, "arrival.html")
            return await view(visit)

        route = Route(path, endpoint, methods=[method])
        return route

    def _guarded(self, view: View, scope: Scope | None) -> View:
        async def guarded(visit: Visit) -> Response:
            if not visit.signed_in:
                return _ask_to_sign_in(visit)
            if scope is not None:
                require_scope(visit.principal, scope)
            return await view(visit)

        return guarded


def _ask_to_sign_in(visit: Visit) -> Response:
    if visit.is_fragment:
        response = Response(status_code=204)
        response.headers["hx-redirect"] = sign_in_path(visit)
        return response
    return RedirectResponse(sign_in_path(visit), status_code=303)


def _as_ours(error: Exception, request: Request) -> NexusError:
    if isinstance(error, NexusError):
        return error
    if isinstance(error, HTTPException) and error.status_code == 404:
        return NexusError(ErrorCode.NOT_FOUND, "There is no such page in the console")
    if isinstance(error, HTTPException) and error.status_code == 405:
        return NexusError(ErrorCode.METHOD_NOT_ALLOWED, "This page does not take that method")
    _log.error("unhandled_error", path=request.url.path, exc_info=error)
    return internal_error(error)


class _Headed:
    """A `send` that adds the headers of every answer of the console."""

    def __init__(self, send: Send, scope: AsgiScope) -> None:
        self._send = send
        static = scope["path"].startswith(_STATIC_PATH)
        current = scope["query_string"] == f"v={STATIC_VERSION}".encode()
        self._caching = _FOR_EVER if static and current else _NO_STORE

    async def __call__(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            ok = message["status"] < 400
            caching = self._caching if ok else _NO_STORE
            message = {**message, "headers": [*message["headers"], *_HEADERS, caching]}
        await self._send(message)
