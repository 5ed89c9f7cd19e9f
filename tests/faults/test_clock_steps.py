"""The wall clock jumps, forth and back: every decision is stored once, on the day of its id."""

from collections import Counter
from datetime import date, datetime, timedelta
from pathlib import Path
from typing import Any
from uuid import UUID

import httpx
from asyncpg.pgproto.pgproto import UUID as FAST_UUID

from app.clock import SystemClock, SystemIds
from app.decisions.record import made_at
from app.main import create_app
from app.services import Services
from app.settings import Settings
from tests.faults.checker import check, days_stored
from tests.faults.load import Acknowledged
from tests.fixtures.service import SECRET, make_key
from tests.fixtures.wire import (
    estimate_body,
    lookup_body,
    materialize_body,
    new_tenant,
    registration,
)

# From where the machine's clock is; there are days ahead for a week, and behind for one.
STEPS = [
    timedelta(0),
    timedelta(hours=-2),
    timedelta(hours=2),
    timedelta(days=2),
    timedelta(days=-40),
    timedelta(days=20),
    timedelta(0),
]
LOOKUPS = 25


class SteppedClock(SystemClock):
    """The machine's, with a wall time that is off by `step`."""

    step = timedelta(0)

    def now(self) -> datetime:
        return super().now() + self.step

    def now_us(self) -> int:
        return super().now_us() + self.step // timedelta(microseconds=1)


class SteppedIds(SystemIds):
    """Ids of that wall time."""

    def __init__(self, clock: SteppedClock) -> None:
        super().__init__()
        self._clock = clock

    def uuid7(self) -> UUID:
        step_ms = self._clock.step // timedelta(milliseconds=1)
        shifted = super().uuid7().int + (step_ms << 80)
        made: UUID = FAST_UUID(shifted.to_bytes(16, "big"))
        return made


async def a_chain(client: httpx.AsyncClient, tenant: str, acknowledged: Acknowledged) -> None:
    """Lookups, and one that goes on to a receipt."""

    async def post(operation: str, body: dict[str, Any]) -> Any:
        answer = await client.post(f"/locus/v1/{operation}", json=body)
        assert answer.status_code == 200, answer.text
        acknowledged.take(operation, answer.status_code, dict(answer.headers))
        return answer.json()

    for _ in range(LOOKUPS):
        found = await post("lookup", lookup_body(tenant))
    handle = found["match_result"]["validation"]["source_handle"]
    await post("materialize", materialize_body(await post("estimate", estimate_body(handle))))


async def test_the_clock_jumps(database_url: str, tmp_path: Path) -> None:
    clock, tenant, acknowledged = SteppedClock(), new_tenant(), Acknowledged()
    app = create_app(
        Settings(database_url=database_url, handle_secret=SECRET, spool_dir=tmp_path / "spool"),
        clock=clock,
        ids=SteppedIds(clock),
    )
    services: Services = app.state.services
    headers = {"authorization": f"Bearer {make_key(database_url)}"}
    async with httpx.AsyncClient(
        transport=httpx.ASGITransport(app), base_url="http://nexuskv.test", headers=headers
    ) as client:
        await services.start()
        try:
            await services.loaded.wait()
            answer = await client.post("/v1/states", json={"entries": [registration(tenant)]})
            assert answer.status_code == 201, answer.text
            for step in STEPS:
                clock.step = step
                await a_chain(client, tenant, acknowledged)
            spool = services.spool
            assert await spool.wait_committed(spool.recorded, wait_s=30)
        finally:
            await services.stop()
    check(database_url, acknowledged, tmp_path / "spool")
    by_day: Counter[date] = Counter(made_at(UUID(one)).date() for one in acknowledged.kept())
    assert days_stored(database_url) == by_day
    assert len(by_day) >= 4
