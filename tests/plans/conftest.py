"""A fleet for each test of plans."""

from collections.abc import Iterator

import pytest

from tests.fixtures.service import ServiceProcess
from tests.plans.fleet import PlanFleet


@pytest.fixture
def fleet(service: ServiceProcess) -> Iterator[PlanFleet]:
    made = PlanFleet(service)
    yield made
    made.client.close()
