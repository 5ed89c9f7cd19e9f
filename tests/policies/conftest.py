"""What tests of policies share: a store, and a service whose policy nobody else relies on."""

from collections.abc import Iterator

import pytest

from app.clock import SystemClock
from app.db.session import Database
from app.policy.store import PolicyStore
from tests.fixtures.database import TestServer, drop_or_fail
from tests.fixtures.service import ServiceProcess


@pytest.fixture
def store(database: Database) -> PolicyStore:
    return PolicyStore(database, SystemClock())


@pytest.fixture(scope="module")
def policy_service(
    test_server: TestServer, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[ServiceProcess]:
    """A process of this module: activating changes what every request of it meets."""
    name, url = test_server.clone()
    running = ServiceProcess(url, tmp_path_factory.mktemp("policy-service")).start()
    yield running
    exit_code = running.stop()
    drop_or_fail(test_server, name)
    assert exit_code == 0, running.log()
