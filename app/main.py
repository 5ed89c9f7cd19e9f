"""create_app(): the pieces put together, and nothing else."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from importlib.metadata import version
from typing import Any

from fastapi import FastAPI
from starlette.types import Receive, Scope, Send

from app.api import include_routers
from app.api.engine_openapi import add_engines
from app.api.indexer_errors import IndexerErrorsMiddleware
from app.api.match_states import States
from app.api.openapi import add_documents, add_plans, add_states
from app.api.queries import AtOnce, Queries
from app.api.query_openapi import add_queries
from app.api.worker_access import WorkerAccess
from app.api.worker_openapi import add_workers
from app.bridge.endpoints import HEALTH_PATH, LOOKUP_PATH, PREFIX, Bridge
from app.bridge.handles import HandleKeys
from app.bridge.openapi import add_bridge
from app.clock import Clock, IdSource, SystemClock, SystemIds
from app.console.mount import ConsoleMiddleware
from app.http_limits import BodyLimitMiddleware
from app.problem import install_handlers
from app.request_context import RequestContextMiddleware
from app.services import Services
from app.settings import Settings

_DESCRIPTION = """\
Is reusable model state (KV cache and its relatives) safe to reuse, worth it, from where - and what
happened in the end?

Errors of `/v1` are `application/problem+json` (RFC 9457); those of `/locus/v1` have that wire's own
shape. Authenticate with `Authorization: Bearer nkv_...`.
"""


class NexusApp(FastAPI):
    """FastAPI, with the bridge's operations and queries reached before its router and middleware.

    They are the hot path: the router, its dependencies and its middleware would cost more than the
    answer does. They are in the OpenAPI document all the same.
    """

    bridge: Bridge
    queries: Queries
    # By path: what may answer a request that is here as a whole, before any of ASGI.
    at_once: dict[bytes, AtOnce]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            path: str = scope["path"]
            if path.startswith(PREFIX) or path == HEALTH_PATH:
                await self.bridge(scope, receive, send)
                return
            if self.queries.serve(scope):
                await self.queries(scope, receive, send)
                return
        await super().__call__(scope, receive, send)

    def openapi(self) -> dict[str, Any]:
        if self.openapi_schema is None:
            found = add_engines(
                add_queries(add_workers(add_plans(add_documents(add_states(super().openapi())))))
            )
            self.openapi_schema = add_bridge(found)
        return self.openapi_schema


def create_app(
    settings: Settings, *, clock: Clock | None = None, ids: IdSource | None = None
) -> NexusApp:
    """The service as an ASGI application.

    Must be called inside a running event loop. Raises HandleSecretError, or NexusError for a policy
    that is not valid; an absent database is not an error, but readiness says no until it is there.
    """
    clock, ids = clock or SystemClock(), ids or SystemIds()
    handles = HandleKeys(settings.handle_secret)
    services = Services(settings, clock, ids)

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        await services.start()
        try:
            yield
        finally:
            await services.stop()

    app = NexusApp(
        title="NexusKV",
        version=version("nexuskv"),
        description=_DESCRIPTION,
        lifespan=lifespan,
        docs_url="/docs",
        redoc_url=None,
    )
    app.state.services = services
    app.bridge = Bridge(
        services.access,
        handles,
        lookup=services.lookup,
        estimate=services.estimate,
        materialize=services.materialize,
        freshness=services.sync.freshness,
        keeping=services.keeping,
        metrics=services.metrics,
        clock=clock,
        ids=ids,
    )
    states = States(services.index, services.sync.freshness)
    app.queries = Queries(
        services.access, services.matcher, states, metrics=services.metrics, clock=clock, ids=ids
    )
    app.at_once = {LOOKUP_PATH: app.bridge.lookup_at_once, **app.queries.at_once()}
    include_routers(app, services)
    install_handlers(app)
    worker_access = WorkerAccess(services.access, services.worker_keys, clock)
    app.add_middleware(BodyLimitMiddleware, authorise=worker_access.authorise_body)
    app.add_middleware(ConsoleMiddleware, services=services, secrets=settings.handle_secret)
    app.add_middleware(RequestContextMiddleware, clock=clock, ids=ids, metrics=services.metrics)
    app.add_middleware(IndexerErrorsMiddleware)
    return app
