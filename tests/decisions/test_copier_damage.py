"""What a person or a broken disk puts beside living writers stops no writer for long."""

import asyncio
import errno
import shutil
from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs

from app.clock import SystemClock, SystemIds
from app.db.session import Database
from app.decisions.spool import writer
from app.decisions.spool.segment import HEADER_BYTES, make_segment, segment_path
from app.decisions.spool.writer import Spool, SpoolLimits
from tests.decisions.conftest import MakeSpooled
from tests.decisions.rows import a_decision, stored_decisions
from tests.decisions.spooled import SEGMENT_BYTES, Spooled, gaps


def segment_of(spooled: Spooled, number: int) -> Path:
    assert spooled.spool.directory is not None
    return segment_path(spooled.spool.directory, number)


def overwrite(path: Path, at: int, data: bytes) -> None:
    with path.open("r+b") as opened:
        opened.seek(at)
        opened.write(data)


async def test_a_damaged_row_of_a_living_writer_is_a_gap_and_the_rest_is_stored(
    database: Database, make_spooled: MakeSpooled
) -> None:
    spooled = make_spooled(database)
    decisions = [a_decision() for _ in range(9)]
    for decision in decisions:
        assert spooled.spool.record(decision)
    # In the payload of the first row.
    overwrite(segment_of(spooled, 1), HEADER_BYTES + 64, b"\xa5" * 8)
    with capture_logs() as logs:
        spooled.start()
        assert await spooled.stored()
    assert await stored_decisions(database) == [row.decision_id for row in decisions[1:]]
    assert await gaps(database) == [(1, 1, "torn")]
    assert [line["after_seq"] for line in logs if line["event"] == "spool_torn"] == [0]


async def test_the_last_row_of_a_segment_may_be_the_damaged_one(
    database: Database, make_spooled: MakeSpooled
) -> None:
    spooled = make_spooled(database)
    big = '{"text":"' + "x" * 300_000 + '"}'
    for _ in range(3):
        assert spooled.spool.record(a_decision(inputs=big))
    after_third = spooled.spool._at
    assert spooled.spool.record(a_decision(inputs=big))
    assert segment_of(spooled, 2).exists()
    assert spooled.spool._at < after_third
    overwrite(segment_of(spooled, 1), after_third - 64, b"\xa5" * 8)
    spooled.start()
    assert await spooled.stored()
    assert len(await stored_decisions(database)) == 3
    assert await gaps(database) == [(3, 3, "torn")]


@pytest.mark.parametrize("name", ["7.seg", "².seg", "notes.txt", "000000000007.new"])
async def test_files_of_other_names_are_left_alone(
    database: Database, make_spooled: MakeSpooled, name: str
) -> None:
    spooled = make_spooled(database)
    assert spooled.spool.directory is not None
    foreign = spooled.spool.directory / name
    foreign.write_bytes(b"hello")
    decision = a_decision()
    spooled.spool.record(decision)
    spooled.start()
    assert await spooled.stored()
    assert foreign.read_bytes() == b"hello"
    await spooled.drain()
    assert await stored_decisions(database) == [decision.decision_id]


async def test_a_file_that_is_no_segment_is_set_aside_also_while_its_writer_lives(
    database: Database, make_spooled: MakeSpooled
) -> None:
    spooled = make_spooled(database)
    segment_of(spooled, 0).write_bytes(b"hello")
    decision = a_decision()
    spooled.spool.record(decision)
    spooled.start()
    assert await spooled.stored()
    assert await stored_decisions(database) == [decision.decision_id]
    assert segment_of(spooled, 0).with_suffix(".refused").read_bytes() == b"hello"


async def test_a_writer_that_cannot_be_read_stops_no_other(
    database: Database, make_spooled: MakeSpooled
) -> None:
    spooled = make_spooled(database)
    (spooled.directory / ("0" * 32) / "control").mkdir(parents=True)
    decision = a_decision()
    spooled.spool.record(decision)
    with capture_logs() as logs:
        spooled.start()
        assert await spooled.stored()
    assert await stored_decisions(database) == [decision.decision_id]
    refused = [line["writer_id"] for line in logs if line["event"] == "spool_unreadable"]
    assert refused == ["0" * 32]
    shutil.rmtree(spooled.directory / ("0" * 32))


async def test_a_directory_that_cannot_be_removed_stops_no_other_writer(
    database: Database, make_spooled: MakeSpooled
) -> None:
    ended, living = make_spooled(database), make_spooled(database)
    assert ended.spool.directory is not None
    # What is set aside keeps the directory, and a directory is no file to unlink.
    (ended.spool.directory / "000000000009.refused").write_bytes(b"hello")
    (ended.spool.directory / "notes").mkdir()
    decisions = [a_decision(), a_decision()]
    ended.spool.record(decisions[0])
    ended.spool.close()
    moved = living.directory / ended.writer_id.hex
    ended.spool.directory.rename(moved)
    living.spool.record(decisions[1])
    with capture_logs() as logs:
        living.start()
        assert await living.stored()
        async with asyncio.timeout(30):
            while not any(line["event"] == "spool_unreadable" for line in logs):
                await asyncio.sleep(0.01)
        living.spool.record(a_decision())
        assert await living.stored()
    assert {row.decision_id for row in decisions} < set(await stored_decisions(database))
    assert not any(line["event"] == "decisions_not_copied" for line in logs)
    assert (moved / "000000000009.refused").exists()


async def test_a_spool_begins_on_a_full_disk_and_goes_on_when_there_is_room(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    full = True

    def on_a_small_disk(*given: Any) -> Any:
        if full:
            raise OSError(errno.ENOSPC, "No space left on device")
        return make_segment(*given)

    monkeypatch.setattr(writer, "make_segment", on_a_small_disk)
    spool = Spool(SystemIds().uuid7(), SystemClock(), SpoolLimits(segment_bytes=SEGMENT_BYTES))
    spool.open(tmp_path)
    try:
        assert spool.full
        assert not spool.record(a_decision())
        assert (spool.lost_rows, spool.recorded) == (1, 1)
        full = False
        async with asyncio.timeout(10):
            while not spool.record(a_decision()):
                await asyncio.sleep(0.01)
        assert not spool.full
    finally:
        spool.close()


async def test_other_faults_of_the_disk_keep_a_spool_from_beginning(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: Any) -> Any:
        raise OSError(errno.EROFS, "Read-only file system")

    monkeypatch.setattr(writer, "make_segment", broken)
    spool = Spool(SystemIds().uuid7(), SystemClock())
    with pytest.raises(OSError, match="Read-only"):
        spool.open(tmp_path)
