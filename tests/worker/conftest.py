"""Two workers for the whole run, and a look for what they hold without a reason after each test."""

import itertools
import shutil
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.process.waiting import until
from tests.worker.evil import EvilSource
from tests.worker.rig import Worker

Start = Callable[..., Worker]


@pytest.fixture(scope="session")
def worker_place() -> Iterator[Path]:
    path = Path(tempfile.mkdtemp(prefix="nexuskv-worker-"))
    yield path
    shutil.rmtree(path)


@pytest.fixture(scope="session")
def shared_workers(worker_place: Path) -> Iterator[tuple[Worker, Worker]]:
    pair = (Worker(worker_place / "node-a", "node-a"), Worker(worker_place / "node-b", "node-b"))
    yield pair
    for worker in pair:
        worker.close()


@pytest.fixture(scope="session")
def tenant_numbers() -> Iterator[int]:
    return itertools.count()


@pytest.fixture
def workers(
    shared_workers: tuple[Worker, Worker], tenant_numbers: Iterator[int]
) -> Iterator[tuple[Worker, Worker]]:
    """Both, for a tenant that no other test meets; nothing may be held by them afterwards."""
    tenant = f"tenant-{next(tenant_numbers)}"
    first, second = (worker.of(tenant) for worker in shared_workers)
    yield first, second
    for worker in (first, second):
        worker.discard_sinks()
        until(
            lambda worker=worker: not worker.leaks(),
            lambda worker=worker: f"{worker.node} lets go; {worker.leaks()}",
        )


@pytest.fixture
def start_worker(tmp_path: Path) -> Iterator[Start]:
    """`start_worker("node-x", "--api-url", ...)`: a worker of this test alone."""
    started: list[Worker] = []

    def run(node: str, *options: str, **more) -> Worker:
        worker = Worker(tmp_path / f"{node}-{len(started)}", node, *options, **more)
        started.append(worker)
        return worker

    yield run
    for worker in started:
        worker.close()


@pytest.fixture
def evil() -> Iterator[EvilSource]:
    with EvilSource() as source:
        yield source
