"""A worker's control port: payloads, sinks and transfers over HTTP.

Every `/v1` route takes a token that was signed for exactly this, and acts for the token's tenant.
"""

from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Final, Literal

import msgspec
from fastapi import FastAPI, Request
from fastapi.responses import Response
from starlette.routing import BaseRoute, Route
from starlette.types import ASGIApp, Receive, Scope, Send

from app.clock import Clock, IdSource
from app.contract.findings import Shape
from app.http_limits import BodyLimitMiddleware
from app.problem import TITLES_KEY, install_handlers
from app.request_context import RequestContextMiddleware
from app.transfer.tokens import Direction, require
from app.transfer.wire import FinishSink, NewSink
from app.worker.access import TITLES, Access
from app.worker.metrics import WorkerMetrics
from app.worker.openapi import worker_document
from app.worker.orders import MAX_BODY_BYTES, ORDERS, Orders
from app.worker.payloads import Payloads
from app.worker.ranges import Content, ContentResponse
from app.worker.sinks import Sinks
from app.worker.transfers import Transfers
from app.worker.upload import Upload, valid_id

_PAYLOADS: Final = "/v1/payloads/"

Endpoint = Callable[[Request], Awaitable[Response]]

_new_sink = Shape(NewSink, "sink")
_finish_sink = Shape(FinishSink, "order")


def create_worker_app(
    payloads: Payloads,
    sinks: Sinks,
    transfers: Transfers,
    access: Access,
    *,
    metrics: WorkerMetrics,
    clock: Clock,
    ids: IdSource,
    ready: Callable[[], bool],
) -> "WorkerApp":
    """The control port."""
    app = FastAPI(title="NexusKV worker", openapi_url=None, docs_url=None, redoc_url=None)
    _add_payloads(app, payloads, access)
    _add_sinks(app, sinks, access)
    orders = _add_transfers(app, transfers, access)
    _add_probes(app, metrics, ready)
    install_handlers(app)
    app.add_middleware(_SmallBodies)
    ahead = _OrdersFirst(orders, app)
    context = RequestContextMiddleware(ahead, clock=clock, ids=ids, metrics=metrics)
    return WorkerApp(context, app.router.routes)


class WorkerApp:
    """The control port as an ASGI application, and the routes that it has."""

    def __init__(self, app: ASGIApp, routes: Sequence[BaseRoute]) -> None:
        self._app = app
        self.routes = routes

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        scope[TITLES_KEY] = TITLES
        await self._app(scope, receive, send)


class _OrdersFirst:
    """Orders for transfers skip the framework: its layers would cost as much as a small one."""

    def __init__(self, orders: "_NamedRoute", app: ASGIApp) -> None:
        self._orders = orders
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and scope["path"] == ORDERS and scope["method"] == "POST":
            scope["route"] = self._orders
            await self._orders.app(scope, receive, send)
        else:
            await self._app(scope, receive, send)


class _SmallBodies:
    """Reads every body before its route sees it, except uploads, which stream."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app
        self._limited = BodyLimitMiddleware(app, limit_bytes=MAX_BODY_BYTES)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        uploads = (
            scope["type"] == "http"
            and scope["method"] == "PUT"
            and scope["path"].startswith(_PAYLOADS)
        )
        await (self._app if uploads else self._limited)(scope, receive, send)


class _NamedRoute(Route):
    """A plain route that logs and metrics can name, as they do the framework's own."""

    async def handle(self, scope: Scope, receive: Receive, send: Send) -> None:
        scope["route"] = self
        await super().handle(scope, receive, send)


def _at(app: FastAPI, path: str, *methods: str) -> Callable[[Endpoint], Endpoint]:
    """Adds a plain route: the framework's own looks for parameters, and ours declare none."""

    def add(endpoint: Endpoint) -> Endpoint:
        app.router.routes.append(_NamedRoute(path, endpoint, methods=list(methods)))
        return endpoint

    return add


def _add_payloads(app: FastAPI, payloads: Payloads, access: Access) -> None:
    path = _PAYLOADS + "{payload_id}"
    app.router.routes.append(_NamedRoute(path, Upload(payloads, access), methods=["PUT"]))

    def allowed(request: Request, direction: Direction) -> tuple[str, str]:
        payload_id = valid_id(request.path_params["payload_id"])
        headers = request.scope["headers"]
        return access.tenant(headers, direction, payload_id=payload_id), payload_id

    @_at(app, path, "GET", "HEAD")
    async def get_payload(request: Request) -> Response:
        tenant, payload_id = allowed(request, Direction.GET_PAYLOAD)
        payloads.facts(tenant, payload_id)

        @contextmanager
        def hold() -> Iterator[Content]:
            with payloads.pin(tenant, payload_id) as pinned:
                yield Content(pinned.view, pinned.facts.checksum)

        return ContentResponse(hold)

    @_at(app, path + "/facts", "GET")
    async def get_facts(request: Request) -> Response:
        tenant, payload_id = allowed(request, Direction.GET_PAYLOAD)
        return _json(payloads.facts(tenant, payload_id))

    @_at(app, path, "DELETE")
    async def delete_payload(request: Request) -> Response:
        tenant, payload_id = allowed(request, Direction.DELETE_PAYLOAD)
        return _json(payloads.delete(tenant, payload_id))


def _add_sinks(app: FastAPI, sinks: Sinks, access: Access) -> None:
    path = "/v1/sinks/{sink_id}"

    def allowed(request: Request, direction: Direction) -> tuple[str, str]:
        sink_id: str = request.path_params["sink_id"]
        return access.tenant(request.scope["headers"], direction, sink_id=sink_id), sink_id

    @_at(app, "/v1/sinks", "POST")
    async def create_sink(request: Request) -> Response:
        tenant = access.tenant(request.scope["headers"], Direction.CREATE_SINK)
        facts, created = sinks.create(tenant, _new_sink.accept(await request.body()))
        return _json(facts, 201 if created else 200)

    @_at(app, path, "GET")
    async def get_sink(request: Request) -> Response:
        tenant, sink_id = allowed(request, Direction.READ_SINK)
        return _json(sinks.facts(tenant, sink_id))

    @_at(app, path + "/content", "GET", "HEAD")
    async def get_content(request: Request) -> Response:
        tenant, sink_id = allowed(request, Direction.READ_SINK)

        @contextmanager
        def hold() -> Iterator[Content]:
            with sinks.content(tenant, sink_id) as (facts, view):
                yield Content(view, facts.checksum or "")

        with hold():
            return ContentResponse(hold)

    async def finish(request: Request, state: Literal["consumed", "discarded"]) -> Response:
        tenant, sink_id = allowed(request, Direction.FINISH_SINK)
        order = _finish_sink.accept(await request.body())
        return _json(sinks.finish(tenant, sink_id, order, state))

    @_at(app, path + ":consume", "POST")
    async def consume(request: Request) -> Response:
        return await finish(request, "consumed")

    @_at(app, path + ":discard", "POST")
    async def discard(request: Request) -> Response:
        return await finish(request, "discarded")


def _add_transfers(app: FastAPI, transfers: Transfers, access: Access) -> _NamedRoute:
    """The route of orders among them."""
    path = ORDERS + "/{session_id}"
    orders = _NamedRoute(ORDERS, Orders(transfers, access), methods=["POST"])
    app.router.routes.append(orders)

    def known(request: Request) -> tuple[str, str]:
        """Tenant and session; the token is for the payload and sink of that transfer."""
        session_id: str = request.path_params["session_id"]
        grant = access.grant(request.scope["headers"])
        if grant.direction is not Direction.TRANSFER:
            require(grant, Direction.TRANSFER)
        facts = transfers.facts(grant.tenant, session_id)
        require(
            grant,
            Direction.TRANSFER,
            payload_id=facts.payload_id,
            sink_id=facts.target_sink_id or "",
        )
        return grant.tenant, session_id

    @_at(app, path, "GET")
    async def get_transfer(request: Request) -> Response:
        return _json(transfers.facts(*known(request)))

    @_at(app, path, "DELETE")
    async def cancel_transfer(request: Request) -> Response:
        return _json(await transfers.cancel(*known(request)))

    return orders


def _add_probes(app: FastAPI, metrics: WorkerMetrics, ready: Callable[[], bool]) -> None:
    @_at(app, "/livez", "GET")
    async def livez(_: Request) -> Response:
        return _json({"status": "ok"})

    @_at(app, "/readyz", "GET")
    async def readyz(_: Request) -> Response:
        is_ready = ready()
        return _json({"status": "ready" if is_ready else "stopping"}, 200 if is_ready else 503)

    @_at(app, "/metrics", "GET")
    async def scrape(_: Request) -> Response:
        body, media_type = metrics.render()
        return Response(body, media_type=media_type)

    @_at(app, "/openapi.json", "GET")
    async def openapi(_: Request) -> Response:
        return _json(worker_document())


def _json(value: Any, status: int = 200) -> Response:
    return Response(msgspec.json.encode(value), status, media_type="application/json")
