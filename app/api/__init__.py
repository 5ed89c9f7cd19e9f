"""The URL map: every route of the service but the bridge's, which are in `app.bridge.endpoints`."""

from fastapi import FastAPI

from app.api.decisions import decisions_router
from app.api.states import states_router
from app.control.health import health_router
from app.services import Services


def include_routers(app: FastAPI, services: Services) -> None:
    # /livez, /readyz, /metrics
    app.include_router(health_router(services.probe, services.metrics))
    # /v1/states
    app.include_router(states_router())
    # /v1/decisions
    app.include_router(decisions_router())
