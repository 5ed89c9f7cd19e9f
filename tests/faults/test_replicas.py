"""Several processes and one spool directory: replicas may not share it, readers of one do."""

import os
import signal
import subprocess
import sys
from pathlib import Path

from tests.faults.checker import check, stored
from tests.faults.conftest import MakeService
from tests.faults.faulty import ROUNDS, FaultyService, kill
from tests.process.waiting import until


def test_a_second_replica_with_the_same_directory_is_refused(faulty: FaultyService) -> None:
    before = stored(faulty.database_url).writers
    with faulty.load() as load:
        load.more(100)
        second = subprocess.run(
            [sys.executable, "-m", "app.cli", "serve", "--listen", "127.0.0.1:0"],
            env=os.environ | faulty.env,
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        load.more(100)
    assert second.returncode == 1, second.stderr
    assert f"the spool directory {faulty.spool} is in use" in second.stderr
    assert "NEXUSKV_SPOOL_DIR" in second.stderr
    assert "Traceback" not in second.stderr
    faulty.settle()
    after = check(faulty.database_url, faulty.acknowledged, None, may_lack=frozenset({"torn"}))
    assert after.writers <= before + 1


def test_readers_share_one_and_whoever_dies_is_replaced(
    make_service: MakeService, database_url: str
) -> None:
    service = make_service(database_url, "--workers", "2", "--reader-listen", "127.0.0.1:0")
    service.start()
    service.register()
    first, second = service.readers().values()
    with service.load(first, threads=1) as one, service.load(second, threads=1) as two:
        for number in range(ROUNDS):
            one.more(300)
            two.more(300)
            copier = service.copier()
            reader = parent(copier)
            assert reader in service.readers()
            os.kill(reader, signal.SIGKILL)
            if number % 2:
                # Else it goes on until it makes way.
                kill(copier)
            until(
                lambda dead=reader: dead not in service.readers(),
                "its successor is there",
                within_s=60,
            )
            two.more(300)
        one.more(300)
        until(lambda: service.copier() != copier, "the successor's copier runs", within_s=60)
    assert service.stop() == 0
    found = check(database_url, service.acknowledged, service.spool, may_lack=frozenset({"torn"}))
    # Each reader, and each that was started in the place of one that died.
    assert found.writers == 2 + ROUNDS


def parent(pid: int) -> int:
    stat = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8")
    return int(stat.rpartition(")")[2].split()[1])
