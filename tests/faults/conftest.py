"""A service under faults: its processes by name, load on it, and rounds by FAULT_ROUNDS."""

import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from app.db.embedded import EmbeddedPostgres
from app.db.migrate import upgrade
from tests.faults.faulty import FaultyService
from tests.fixtures.database import fast_directory, run_elsewhere

MakeService = Callable[..., FaultyService]


@pytest.fixture
def place() -> Iterator[Path]:
    """A directory every user can pass through: as root, Postgres runs as another one."""
    path = Path(tempfile.mkdtemp(prefix="nexuskv-faults-", dir=fast_directory()))
    if os.geteuid() == 0:
        path.chmod(0o711)
    yield path
    shutil.rmtree(path)


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


@pytest.fixture
def faulty(make_service: MakeService, database_url: str) -> FaultyService:
    """One on this test's database, with a state to find."""
    service = make_service(database_url)
    service.start()
    service.register()
    return service


@pytest.fixture
def cluster(place: Path) -> Iterator[EmbeddedPostgres]:
    """A Postgres of this test alone, to stop: what it commits is on the disk, as in production."""
    with EmbeddedPostgres(place / "postgres") as server:
        run_elsewhere(upgrade(server.url))
        yield server
