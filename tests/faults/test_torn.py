"""Bytes of a dead writer's spool that are not what it wrote: what is whole is found, once.

Pure of Postgres: what the copier would store is what its tail reads.
"""

import fcntl
import mmap
import tempfile
from pathlib import Path
from typing import NamedTuple
from uuid import UUID

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from app.clock import SystemIds
from app.decisions.copier.tail import NO_ROOM, TORN, Entry, Tail
from app.decisions.record import Decision
from app.decisions.rows import encode_decision
from app.decisions.spool.control import Control
from app.decisions.spool.frames import HEAD_BYTES, frame_bytes, seal
from app.decisions.spool.segment import HEADER_BYTES, make_segment, segment_path
from nexuskv_core import write_frame
from tests.decisions.rows import a_decision

SEGMENT_BYTES = 8192
# Two pages and a little: what one damage may reach.
MOST_DAMAGED_BYTES = 5_000
PAYLOADS = [encode_decision(a_decision(model="m" * (n % 70))) for n in range(30)]


class Place(NamedTuple):
    """Where a row lies: its segment, and its first byte and the one behind its last."""

    segment: int
    start: int
    stop: int


class Left:
    """What a dead writer left: rows in segments, each sealed but the last."""

    def __init__(self, directory: Path, numbers: list[int], *, recorded: int = 0) -> None:
        writer_id = UUID(int=SystemIds().uuid7().int)
        self.directory = directory / writer_id.hex
        self.directory.mkdir()
        self.places: dict[int, Place] = {}
        control = Control(self.directory, writer=True)
        if recorded:
            control.note_lost(recorded, 1)
        control.close()
        number, at = 1, HEADER_BYTES
        segment = make_segment(self.directory, number, writer_id, SEGMENT_BYTES)
        for seq in numbers:
            payload = PAYLOADS[seq % len(PAYLOADS)]
            if at + frame_bytes(len(payload)) > SEGMENT_BYTES - HEAD_BYTES:
                seal(segment.data, at)
                segment.close()
                number, at = number + 1, HEADER_BYTES
                segment = make_segment(self.directory, number, writer_id, SEGMENT_BYTES)
            start, at = at, write_frame(segment.data, at, seq, payload)
            self.places[seq] = Place(number, start, start + HEAD_BYTES + len(payload))
        segment.close()
        self.segments = number

    def damage(self, segment: int, at: int, data: bytes) -> set[int]:
        """Overwrite bytes; returns the numbers of rows that are not what they were."""
        path = segment_path(self.directory, segment)
        with path.open("r+b") as opened, mmap.mmap(opened.fileno(), 0) as mapped:
            before = bytes(mapped)
            mapped[at : at + len(data)] = data
            return {
                seq
                for seq, place in self.places.items()
                if place.segment == segment
                and before[place.start : place.stop] != mapped[place.start : place.stop]
            }

    def truncate(self, segment: int, length: int) -> set[int]:
        """Cut the end of a segment off; returns the numbers of rows that are not whole now."""
        with segment_path(self.directory, segment).open("r+b") as opened:
            opened.truncate(length)
        return {
            seq
            for seq, place in self.places.items()
            if place.segment == segment and place.stop > length
        }

    def read(self, most_entries: int = 7) -> list[Entry]:
        """All that the copier would store, batch by batch; then nothing of the writer is left."""
        tail = Tail(self.directory, Control(self.directory, writer=False), 0)
        found: list[Entry] = []
        while not tail.finished:
            tail.read(most_entries=most_entries, most_bytes=3_000)
            if batch := tail.batch(most_entries):
                found += batch
                tail.settle(batch[-1].last_seq)
        tail.remove()
        return found


def kept(entries: list[Entry]) -> set[int]:
    """The numbers that have their row; every number is there once, in order."""
    following = 1
    whole = set()
    for entry in entries:
        assert entry.first_seq == following
        assert entry.last_seq >= entry.first_seq
        following = entry.last_seq + 1
        if entry.row is not None:
            assert isinstance(entry.row, Decision)
            assert encode_decision(entry.row) == PAYLOADS[entry.first_seq % len(PAYLOADS)]
            whole.add(entry.first_seq)
        else:
            assert entry.reason in (TORN, NO_ROOM)
    return whole


damages = st.lists(
    st.tuples(
        st.integers(0, 2**16),  # which segment
        st.integers(HEADER_BYTES, SEGMENT_BYTES - 1),
        st.one_of(
            st.binary(min_size=1, max_size=12),
            st.integers(1, MOST_DAMAGED_BYTES).map(bytes),  # pages that were never written
            st.just(b"\xff\xff\xff\xff"),
        ),
    ),
    max_size=4,
)


@settings(max_examples=150, deadline=None)
@given(rows=st.integers(1, 60), damaged=damages, cut=st.none() | st.integers(0, SEGMENT_BYTES - 1))
def test_what_is_whole_is_found_whatever_lies_beside_it(
    rows: int, damaged: list[tuple[int, int, bytes]], cut: int | None
) -> None:
    with tempfile.TemporaryDirectory() as directory:
        left = Left(Path(directory), list(range(1, rows + 1)))
        broken: set[int] = set()
        for which, at, data in damaged:
            broken |= left.damage(which % left.segments + 1, at, data[: SEGMENT_BYTES - at])
        if cut is not None:
            broken |= left.truncate(left.segments, max(cut, HEADER_BYTES + HEAD_BYTES))
        entries = left.read()
        whole = kept(entries)
        # A damage may write what was there; what was in fact changed cannot be taken for whole.
        assert whole == set(range(1, rows + 1)) - broken
        gaps = [entry for entry in entries if entry.row is None]
        assert all(entry.reason == TORN for entry in gaps)
        # Where nothing follows, it is only known that there was something.
        assert max((entry.last_seq for entry in gaps), default=0) <= rows + 1
        assert not left.directory.exists()


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_losses_and_their_numbers_survive_their_writer(data: st.DataObject) -> None:
    rows = data.draw(st.integers(1, 80))
    lost = data.draw(st.sets(st.integers(1, rows)))
    present = [seq for seq in range(1, rows + 1) if seq not in lost]
    with tempfile.TemporaryDirectory() as directory:
        left = Left(Path(directory), present, recorded=max(lost, default=0))
        entries = left.read(data.draw(st.integers(1, 100)))
        assert kept(entries) == set(present)
        assert (entries[-1].last_seq if entries else 0) == rows
        assert {entry.reason for entry in entries if entry.row is None} <= {NO_ROOM}


@pytest.mark.parametrize("where", ["length", "checksum", "number", "payload", "end"])
@pytest.mark.parametrize("wrong", [b"\0", b"\x01", b"\xff", b"\0\0\0\0", b"\xff\xff\xff\xff"])
def test_a_torn_last_record_is_a_gap(tmp_path: Path, where: str, wrong: bytes) -> None:
    left = Left(tmp_path, list(range(1, 11)))
    place = left.places[10]
    at = {
        "length": place.start,
        "checksum": place.start + 4,
        "number": place.start + 8,
        "payload": place.start + HEAD_BYTES + 20,
        "end": place.stop - len(wrong),
    }[where]
    broken = left.damage(place.segment, at, wrong)
    entries = left.read()
    assert kept(entries) == set(range(1, 11)) - broken
    gaps = [(entry.first_seq, entry.last_seq, entry.reason) for entry in entries if not entry.row]
    assert gaps == [(10, 10, TORN)] * len(broken)


@pytest.mark.parametrize("short", [1, 8, 15, 16, 17, 100])
def test_a_segment_that_was_cut_short(tmp_path: Path, short: int) -> None:
    left = Left(tmp_path, list(range(1, 11)))
    place = left.places[10]
    left.truncate(place.segment, place.start + short)
    entries = left.read()
    assert kept(entries) == set(range(1, 10))
    assert entries[-1] == Entry(10, 10, None, TORN)


def test_a_row_that_was_being_written_when_its_writer_was_killed_is_nothing(
    tmp_path: Path,
) -> None:
    """Its payload lies there without a length: it was promised to nobody."""
    left = Left(tmp_path, list(range(1, 11)))
    left.damage(left.places[10].segment, left.places[10].stop + 40, b"a part of a payload")
    entries = left.read()
    assert kept(entries) == set(range(1, 11))
    assert len(entries) == 10


def test_a_segment_that_is_none_is_set_aside_and_its_rows_are_a_gap(tmp_path: Path) -> None:
    left = Left(tmp_path, list(range(1, 61)))
    second = [seq for seq, place in left.places.items() if place.segment == 2]
    left.damage(2, 0, b"not ours")
    entries = left.read()
    assert kept(entries) == set(range(1, 61)) - set(second)
    assert [entry for entry in entries if entry.row is None] == [
        Entry(second[0], second[-1], None, TORN)
    ]
    # For a person to look at; no copier finds the writer again.
    assert [path.name for path in left.directory.iterdir()] == ["000000000002.refused"]


def test_losses_of_a_living_writer_are_told_when_they_end(tmp_path: Path) -> None:
    left = Left(tmp_path, list(range(1, 11)), recorded=14)
    with (left.directory / "control").open("r+b") as writer:
        fcntl.flock(writer, fcntl.LOCK_EX)
        tail = Tail(left.directory, Control(left.directory, writer=False), 0)
        reads = 0
        while tail.waiting < 11:
            # The writer goes on to lose rows for a while.
            tail.control.note_lost(14 + min(reads, 30), 4)
            tail.read(most_entries=100, most_bytes=1 << 20)
            reads += 1
            assert reads < 1_000
        entries = tail.batch(100)
        assert kept(entries) == set(range(1, 11))
        assert entries[-1] == Entry(11, 44, None, NO_ROOM)
        assert (tail.lives, tail.finished) == (True, False)
        tail.close()


def test_what_is_torn_is_told_once_also_by_a_copier_that_reads_it_again(tmp_path: Path) -> None:
    left = Left(tmp_path, list(range(1, 11)))
    left.damage(left.places[10].segment, left.places[10].start + 4, b"\xff\xff")
    left.damage(left.places[4].segment, left.places[4].start + 4, b"\xff\xff")
    tail = Tail(left.directory, Control(left.directory, writer=False), 10)
    tail.read(most_entries=100, most_bytes=1 << 20)
    assert (tail.waiting, tail.finished) == (0, True)
    tail.close()
