"""The disk of the spool is full: what only asks is answered, and what is lost is counted."""

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.faults.checker import check
from tests.faults.conftest import MakeService
from tests.faults.load import Wire, fat_body
from tests.fixtures.wire import estimate_body, estimated, materialize_body, source_handle
from tests.process.waiting import until

# Room for several segments.
DISK_BYTES = 96 * 1024 * 1024


@pytest.fixture
def small_disk(place: Path) -> Iterator[Path]:
    if os.geteuid() != 0:
        pytest.skip("mounting a small file system takes root")
    path = place / "small"
    path.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", f"size={DISK_BYTES}", "tmpfs", str(path)]
    done = subprocess.run(mount, capture_output=True, text=True, check=False)
    if done.returncode:
        pytest.skip(f"no file system can be mounted here: {done.stderr.strip()}")
    yield path
    subprocess.run(["umount", "--lazy", str(path)], check=True)


def fill(path: Path) -> None:
    """Take all the room that is left."""
    with path.open("wb", buffering=0) as ballast:
        try:
            while ballast.write(bytes(65_536)):
                pass
        except OSError:
            return


def test_a_full_disk(small_disk: Path, make_service: MakeService, database_url: str) -> None:
    service = make_service(database_url, NEXUSKV_SPOOL_DIR=str(small_disk / "spool"))
    service.start()
    service.register()
    ballast = small_disk / "ballast"
    with service.client() as client:
        option = estimated(client, service.tenant)
    with (
        service.copier_paused(),
        service.load(bodies=[fat_body(service.tenant)], threads=1, materialize=False) as load,
    ):
        fill(ballast)
        until(service.acknowledged.lost, "there is no room", within_s=60)
        load.more(100)
        wire = Wire(service.url, service.admin_key)
        status, headers, refused = wire.ask("materialize", materialize_body(option))
        assert (status, headers.get("retry-after")) == (503, "1")
        assert "history is full" in refused["error"]["message"]
        assert "x-nexuskv-decision-id" not in headers
        # A question is answered, also one that asks Postgres, and says what is kept of it.
        with service.client() as client:
            handle = source_handle(client, service.tenant)
        status, headers, _ = wire.ask("estimate", estimate_body(handle))
        assert (status, headers["x-nexuskv-durability"]) == (200, "lost")
        assert service.metric("nexuskv_decisions_lost_total", reason="no_room") > 0
        assert "spool_cannot_grow" in service.log()
        assert service.process is not None
        assert service.process.poll() is None

        ballast.unlink()
        until(lambda: service.acknowledged.newest == "spooled", "there is room again")
        load.more(50)
    # What waited by then is not what the next answer is to wait for.
    service.settle()
    status, headers, _ = wire.ask("materialize", materialize_body(option))
    assert (status, headers["x-nexuskv-durability"]) == (200, "group")
    wire.close()
    lost = service.metric("nexuskv_decisions_lost_total", reason="no_room")
    assert service.stop() == 0
    found = check(
        database_url, service.acknowledged, service.spool, may_lack=frozenset({"no_room"})
    )
    assert found.lost("no_room") == lost >= len(service.acknowledged.lost())
    assert "Traceback" not in service.log()
