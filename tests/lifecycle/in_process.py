"""The whole application in the test's own event loop, on real Postgres, with a clock to advance."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

import httpx

from app.clock import SystemClock
from app.main import NexusApp, create_app
from app.services import Services
from app.settings import Settings
from tests.fixtures.service import SECRET, make_key
from tests.fixtures.wire import (
    estimate_body,
    lookup_body,
    materialize_body,
    registration,
)

_US_PER_S = 1_000_000
WAIT_S = 10.0


class AheadClock(SystemClock):
    """Real time, and as much more as a test has asked for."""

    def __init__(self) -> None:
        self.ahead_us = 0

    def now(self) -> datetime:
        return super().now() + timedelta(microseconds=self.ahead_us)

    def now_us(self) -> int:
        return super().now_us() + self.ahead_us

    def monotonic_us(self) -> int:
        return super().monotonic_us() + self.ahead_us

    def advance(self, seconds: float) -> None:
        self.ahead_us += round(seconds * _US_PER_S)


@dataclass
class InProcess:
    """One running application and a client of it, with an admin's key."""

    app: NexusApp
    clock: AheadClock
    client: httpx.AsyncClient

    @property
    def services(self) -> Services:
        services: Services = self.app.state.services
        return services

    async def post(self, path: str, body: dict[str, Any]) -> httpx.Response:
        return await self.client.post(path, json=body)

    async def register(self, *args: Any, **changes: Any) -> dict[str, Any]:
        body = {"entries": [registration(*args, **changes)]}
        answer = await self.post("/v1/states", body)
        result: dict[str, Any] = answer.json()["results"][0]
        return result

    async def lookup(self, tenant: str, **changes: Any) -> httpx.Response:
        return await self.post("/locus/v1/lookup", lookup_body(tenant, **changes))

    async def handle(self, tenant: str) -> str:
        answer = await self.lookup(tenant)
        handle: str = answer.json()["match_result"]["validation"]["source_handle"]
        return handle

    async def estimate(self, handle: str, **changes: Any) -> httpx.Response:
        return await self.post("/locus/v1/estimate", estimate_body(handle, **changes))

    async def option(self, tenant: str) -> dict[str, Any]:
        answer = await self.estimate(await self.handle(tenant))
        option: dict[str, Any] = answer.raise_for_status().json()
        return option

    async def materialize(self, option: dict[str, Any], **changes: Any) -> httpx.Response:
        return await self.post("/locus/v1/materialize", materialize_body(option, **changes))

    async def decisions(self, **filters: str) -> list[dict[str, Any]]:
        """Newest first, once everything recorded so far is stored."""
        spool = self.services.spool
        assert await spool.wait_committed(spool.recorded, wait_s=WAIT_S)
        answer = await self.client.get("/v1/decisions", params=filters)
        items: list[dict[str, Any]] = answer.raise_for_status().json()["items"]
        return items

    async def loaded(self) -> None:
        async with asyncio.timeout(WAIT_S):
            await self.services.loaded.wait()
            while not self.services.keyring.loaded:
                await asyncio.sleep(0.005)


@asynccontextmanager
async def running(
    database_url: str, *, served_url: str | None = None, wait: bool = True, **settings: Any
) -> AsyncIterator[InProcess]:
    """The application on `served_url` (a gate's), or on the database itself."""
    clock = AheadClock()
    chosen = Settings(database_url=served_url or database_url, handle_secret=SECRET, **settings)
    app = create_app(chosen, clock=clock)
    headers = {"authorization": f"Bearer {make_key(database_url)}"}
    transport = httpx.ASGITransport(app)
    async with httpx.AsyncClient(
        transport=transport, base_url="http://nexuskv.test", headers=headers
    ) as client:
        process = InProcess(app, clock, client)
        await process.services.start()
        try:
            if wait:
                await process.loaded()
            yield process
        finally:
            await process.services.stop()
