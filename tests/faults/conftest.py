"""A service under faults: its processes by name, load on it, and rounds by FAULT_ROUNDS."""

import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.decisions.conftest import make_spooled, proxied, proxied_url, proxy
from tests.faults.faulty import FaultyService
from tests.fixtures.database import TestServer, fast_directory

__all__ = ["make_spooled", "proxied", "proxied_url", "proxy"]
MakeService = Callable[..., FaultyService]


@contextmanager
def passable_directory() -> Iterator[Path]:
    """One that every user can pass through: as root, Postgres runs as another one."""
    path = Path(tempfile.mkdtemp(prefix="nexuskv-faults-", dir=fast_directory()))
    if os.geteuid() == 0:
        path.chmod(0o711)
    try:
        yield path
    finally:
        shutil.rmtree(path)


@pytest.fixture
def place() -> Iterator[Path]:
    with passable_directory() as path:
        yield path


@pytest.fixture
def make_service(place: Path) -> Iterator[MakeService]:
    """`make_service(url)`: `nexuskv serve`, which is killed at the end where it still runs."""
    made: list[FaultyService] = []

    def make(database_url: str, *options: str, **env: str) -> FaultyService:
        directory = place / f"service-{len(made)}"
        directory.mkdir()
        service = FaultyService(database_url, directory, *options, **env)
        made.append(service)
        return service

    yield make
    for service in made:
        service.discard()


@pytest.fixture(scope="session")
def shared_faulty(test_server: TestServer) -> Iterator[FaultyService]:
    name, url = test_server.clone()
    with passable_directory() as directory:
        service = FaultyService(url, directory)
        service.start()
        service.register()
        yield service
        service.discard()
    test_server.drop(name)


@pytest.fixture
def faulty(shared_faulty: FaultyService) -> FaultyService:
    """A running one with a state to find, for all tests that leave it well: starts take long.

    What was acknowledged in tests before is looked for as well.
    """
    process = shared_faulty.process
    if process is None or process.poll() is not None:
        shared_faulty.start()
    return shared_faulty
