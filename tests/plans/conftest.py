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
