"""Postgres stops at once, as on `pg_ctl stop -m immediate`: lookups go on, and nothing is lost."""

import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from app.db.embedded import EmbeddedPostgres
from app.db.migrate import upgrade
from tests.faults.checker import check, stored, writers_left
from tests.faults.conftest import passable_directory
from tests.faults.faulty import ROUNDS, SHORT_DRAIN, SHORT_DRAIN_S, FaultyService
from tests.faults.load import fat_body
from tests.fixtures.database import run_elsewhere
from tests.process.waiting import until

NO_ROOM = frozenset({"no_room"})
MIN_SPOOL_BYTES = 32 * 1024 * 1024


@pytest.fixture(scope="module")
def cluster() -> Iterator[EmbeddedPostgres]:
    """A Postgres to stop; what it commits is on the disk, as in production."""
    with passable_directory() as place, EmbeddedPostgres(place / "postgres") as server:
        run_elsewhere(upgrade(server.url))
        yield server


@pytest.fixture(scope="module")
def service(cluster: EmbeddedPostgres) -> Iterator[FaultyService]:
    with passable_directory() as directory:
        made = FaultyService(cluster.url, directory)
        made.program = ("-c", SHORT_DRAIN)
        yield made
        made.discard()


@pytest.fixture(autouse=True)
def there(cluster: EmbeddedPostgres) -> None:
    """Also after a test that failed with it away."""
    cluster.revive()


def begin(service: FaultyService, **env: str) -> None:
    """Have it run with that environment."""
    if service.process is not None and service.process.poll() is None:
        if env.items() <= service.env.items():
            return
        service.stop()
    service.env |= env
    service.start()
    service.register()


def stop_at_once(cluster: EmbeddedPostgres) -> None:
    assert cluster.pid is not None
    os.kill(cluster.pid, signal.SIGQUIT)
    until(lambda: cluster.pid is None, "Postgres is gone")


def failed_batches(log: str) -> int:
    return log.count("decisions_not_copied")


def test_postgres_stops_at_once_under_load(
    service: FaultyService, cluster: EmbeddedPostgres
) -> None:
    begin(service)
    with service.load() as load:
        for _ in range(ROUNDS):
            load.more(500)
            failed = failed_batches(service.log())
            stop_at_once(cluster)
            until(lambda before=failed: failed_batches(service.log()) > before + 1, "it is missed")
            load.more(1_000)
            assert cluster.revive()
        load.more(500)
    service.settle()
    check(cluster.url, service.acknowledged, None)
    assert not service.acknowledged.lost()


def test_told_to_end_with_postgres_away_it_ends_and_the_next_one_stores_what_it_left(
    service: FaultyService, cluster: EmbeddedPostgres
) -> None:
    begin(service)
    with service.load() as load:
        load.more(500)
        stop_at_once(cluster)
        load.more(500)
        began = time.monotonic()
        assert service.stop() == 0
        assert time.monotonic() - began < SHORT_DRAIN_S + 15
    assert "decisions_not_stored_at_shutdown" in service.log()
    assert len(writers_left(service.spool)) == 1
    cluster.revive()
    before = set(stored(cluster.url).decisions)
    assert service.acknowledged.kept() - before
    service.start()
    assert service.stop() == 0
    check(cluster.url, service.acknowledged, service.spool)


def test_the_bound_of_the_spool_is_kept_and_it_goes_on_by_itself(
    service: FaultyService, cluster: EmbeddedPostgres
) -> None:
    begin(service, NEXUSKV_SPOOL_BYTES=str(MIN_SPOOL_BYTES))
    with service.load(bodies=[fat_body(service.tenant)], threads=1, materialize=False) as load:
        load.more(10)
        stop_at_once(cluster)
        until(service.acknowledged.lost, "there is no room", within_s=60)
        load.more(50)
        # One more is made ready ahead of its use.
        assert disk_bytes(service.spool) <= MIN_SPOOL_BYTES + MIN_SPOOL_BYTES // 2 + 64 * 1024
        assert service.metric("nexuskv_decisions_lost_total", reason="no_room") > 0
        cluster.revive()
        until(lambda: service.acknowledged.newest == "spooled", "there is room", within_s=60)
        load.more(50)
    service.settle()
    found = check(cluster.url, service.acknowledged, None, may_lack=NO_ROOM)
    assert found.lost("no_room") == len(service.acknowledged.lost())


def disk_bytes(directory: Path) -> int:
    return sum(path.stat().st_blocks * 512 for path in directory.rglob("*") if path.is_file())
