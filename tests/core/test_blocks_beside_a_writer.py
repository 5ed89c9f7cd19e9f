"""Readers in other processes and threads, beside a writer that never pauses, and one that dies."""

import mmap
import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from nexuskv_core import BlockIndex, BusyError
from tests.core.block_writer import BLOCKS, CHAINS, pattern, write

ROOT = Path(__file__).resolve().parents[2]
LOOKED_AT = 30_000


class Writer:
    """The process, from the outside."""

    def __init__(self) -> None:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with closing(theirs), closing(ours):
            self.process = subprocess.Popen(
                [sys.executable, "-m", "tests.core.block_writer", str(theirs.fileno())],
                pass_fds=[theirs.fileno()],
                cwd=ROOT,
            )
            ours.settimeout(30)
            _, handles, _, _ = socket.recv_fds(ours, 16, 1)
        self.index = BlockIndex.attach(handles[0])
        os.close(handles[0])

    def kill(self) -> None:
        self.process.kill()
        self.process.wait(10)


@pytest.fixture
def writer() -> Iterator[Writer]:
    running = Writer()
    try:
        yield running
    finally:
        running.kill()


def until_begun(index: BlockIndex) -> None:
    """Until the chain that stays is there."""
    keys = pattern(0)[1]
    while True:
        try:
            if BLOCKS in index.reach(keys).values():
                return
        except BusyError:
            continue


def check(index: BlockIndex, number: int, keys: bytes, names: list[int]) -> list[int]:
    """What is seen must be true at some moment; how far others than the first holder reach."""
    reach = index.reach(keys)
    if number == -1:
        assert reach == {}
    elif number == 0:
        assert reach[1] == BLOCKS
        assert index.find_names(1, names) == [(1, 0, BLOCKS)]
    else:
        # The first holder has what its chain shares with this one, and never more.
        assert reach.pop(1, 0) == (100 if number % 2 else 0)
    assert all(1 <= blocks <= BLOCKS for blocks in reach.values())
    assert all(0 <= start < end <= BLOCKS for _, start, end in index.find(keys))
    return list(reach.values())


def see(index: BlockIndex) -> tuple[set[tuple[int, int]], int]:
    """Look again and again: (chain, blocks) as seen, and how often there was no answer."""
    chains = {number: pattern(number) for number in range(-1, CHAINS)}
    until_begun(index)
    seen, unanswered = set(), 0
    for turn in range(LOOKED_AT):
        number = turn % (CHAINS + 1) - 1
        names, keys = chains[number]
        try:
            seen.update((number, blocks) for blocks in check(index, number, keys, names))
        except BusyError:
            # The writer was descheduled in the midst of a change.
            unanswered += 1
    return seen, unanswered


def test_a_reader_never_sees_what_was_never_true(writer: Writer) -> None:
    seen, unanswered = see(writer.index)
    assert len(seen) > CHAINS, "the writer did write meanwhile"
    assert unanswered < LOOKED_AT / 100


def test_a_writer_killed_at_any_moment_leaves_answers_or_no_answer() -> None:
    keys = [pattern(number)[1] for number in range(CHAINS)]
    for _ in range(8):
        running = Writer()
        until_begun(running.index)
        running.kill()
        begun = time.monotonic()
        answered = 0
        for each in keys:
            try:
                reach = running.index.reach(each)
            except BusyError:
                continue
            answered += 1
            assert all(1 <= blocks <= BLOCKS for blocks in reach.values())
        assert answered
        # A reader waits 5 ms for a writer that is in the midst of something.
        assert time.monotonic() - begun < 2


@pytest.fixture(scope="module")
def table_version_at(tmp_path_factory: pytest.TempPathFactory) -> int:
    """Where in the arena the version of the table of runs is."""
    program = tmp_path_factory.mktemp("offset") / "offset"
    text = '#include "layout.h"\n#include <stdio.h>\nint main(void) { printf("%zu", offsetof('
    compiler = ["cc", "-x", "c", "-", "-I", str(ROOT / "nexuskv_core" / "arena"), "-o", program]
    source = f"{text}nkv_header, heads.seq)); }}"
    subprocess.run(compiler, input=source, text=True, check=True, timeout=60)
    return int(subprocess.check_output([program], text=True, timeout=10))


def test_what_a_dead_writer_left_unfinished_is_no_answer(table_version_at: int) -> None:
    index = BlockIndex(max_blocks=10_000, shared=True)
    holder = index.open_holder(index.open_stream(b"stream"))
    index.store(holder, *pattern(0))
    index.store(holder, *pattern(1))
    reader = BlockIndex.attach(index.fd())
    gone, keys = pattern(3)[1], pattern(1)[1]
    assert reader.reach(gone) == {holder: 100}
    with mmap.mmap(index.fd(), 4096) as arena:
        arena[table_version_at] |= 1
    # What is found is checked by itself; where a run leads on to another, nobody knows.
    assert reader.reach(keys) == {holder: BLOCKS}
    for read in (reader.reach, reader.find, lambda keys: reader.reach_many([keys])):
        with pytest.raises(BusyError):
            read(gone)


def test_threads_read_in_batches_beside_the_writer() -> None:
    index = BlockIndex(max_blocks=10_000)
    stop = threading.Event()

    def store() -> None:
        class Stop(BaseException):
            pass

        class Until:
            def __getattr__(self, name: str) -> object:
                if stop.is_set():
                    raise Stop
                return getattr(index, name)

        try:
            write(Until())  # type: ignore[arg-type]
        except Stop:
            return

    thread = threading.Thread(target=store)
    thread.start()
    try:
        hot = pattern(0)[1]
        until_begun(index)
        cold = pattern(-1)[1]
        for _ in range(200):
            for reach in index.reach_many([hot] * 20 + [cold] * 5)[:20]:
                assert reach[1] == BLOCKS
    finally:
        stop.set()
        thread.join(30)
    index.check_invariants()
