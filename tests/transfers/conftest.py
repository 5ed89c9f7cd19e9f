"""One API with two workers for the tests of this folder, and a look for what is left behind."""

import itertools
from collections.abc import Iterator

import pytest

from tests.fixtures.database import TestServer, drop_or_fail
from tests.process.waiting import until
from tests.transfers.fleet import Fleet, Story
from tests.transfers.operator import Operator, shipped

_tenants = itertools.count(1)
NOTHING = {"payload_bytes": 0, "entries": 0, "transfers": 0}


def new_tenant_name() -> str:
    """A tenant that no other test of this folder uses."""
    return f"tenant-{next(_tenants)}"


@pytest.fixture(scope="session")
def shared_fleet(
    test_server: TestServer, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Fleet]:
    name, url = test_server.clone()
    running = Fleet(url, tmp_path_factory.mktemp("fleet"))
    yield running
    running.close()
    drop_or_fail(test_server, name)


@pytest.fixture
def fleet(shared_fleet: Fleet) -> Iterator[Fleet]:
    """After each test nothing may be held without a reason: no pin, no filling sink, no block."""
    yield shared_fleet
    for worker in shared_fleet.workers.values():
        until(
            lambda worker=worker: not worker.leaks(),
            lambda worker=worker: f"{worker.node} lets go; {worker.leaks()}",
        )


@pytest.fixture
def story(fleet: Fleet) -> Iterator[Story]:
    """A state that lies on `node-a`; at the end no charge of its tenant may be left."""
    told = fleet.story(new_tenant_name()).ready()
    yield told
    for sink in told.sinks:
        told.target.finish(sink, "discard")
    until(lambda: told.charged() == NOTHING, lambda: f"nothing stays charged; {told.charged()}")


@pytest.fixture
def operator(fleet: Fleet) -> Iterator[Operator]:
    """Whatever a test activated, the default is in force again after it."""
    operator = Operator(fleet)
    operator.switch(shipped("default"))
    yield operator
    operator.switch(shipped("default"))
