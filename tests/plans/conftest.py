"""A fleet for each test of plans, and the application in the loop of a test."""

from collections.abc import AsyncIterator, Iterator

import pytest

from tests.fixtures.service import ServiceProcess
from tests.lifecycle.in_process import InProcess, running
from tests.plans.fleet import PlanFleet


@pytest.fixture
def fleet(service: ServiceProcess) -> Iterator[PlanFleet]:
    made = PlanFleet(service)
    yield made
    made.client.close()


@pytest.fixture
async def process(database_url: str) -> AsyncIterator[InProcess]:
    async with running(database_url) as made:
        yield made


class Standing:
    """A clock that stands still until a test moves it on."""

    def __init__(self) -> None:
        self.at_us = 0

    def monotonic_us(self) -> int:
        return self.at_us


@pytest.fixture
def standing(process: InProcess, monkeypatch: pytest.MonkeyPatch) -> Standing:
    """By which transfers end that plans have reserved; a slow machine ends none."""
    clock = Standing()
    monkeypatch.setattr(process.services.planning.reservations, "_clock", clock)
    return clock
