"""The history's routes alone, in the test's own loop, for a caller of the test's choice."""

from types import SimpleNamespace
from typing import Any

import httpx
from fastapi import FastAPI

from app.api.decisions import decisions_router
from app.clock import SystemClock
from app.control.keys import Principal, Scope
from app.db.session import Database
from app.errors import ErrorCode, NexusError
from app.problem import MEDIA_TYPE, install_handlers

SCOPES = frozenset({Scope.DECISIONS_READ, Scope.DECISIONS_WRITE})


class FixedAccess:
    """Lets everybody in as `principal`, until that is None."""

    def __init__(self) -> None:
        self.principal: Principal | None = Principal("key", SCOPES, None)

    def of_tenants(self, *tenants: str) -> None:
        self.principal = Principal("key", SCOPES, frozenset(tenants))

    def having(self, *scopes: Scope) -> None:
        self.principal = Principal("key", frozenset(scopes), None)

    async def authenticate(self, _scope: Any) -> Principal:
        if self.principal is None:
            raise NexusError(ErrorCode.UNAUTHORIZED, "revoked")
        return self.principal


def application(database: Database, access: FixedAccess) -> FastAPI:
    app = FastAPI()
    install_handlers(app)
    app.include_router(decisions_router())
    app.state.services = SimpleNamespace(
        database=database, access=access, clock=SystemClock(), draining=False
    )
    return app


def client_of(app: FastAPI) -> httpx.AsyncClient:
    return httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://service")


def refusal(answer: httpx.Response) -> tuple[int, str]:
    assert answer.headers["content-type"] == MEDIA_TYPE
    return answer.status_code, answer.json()["code"]
