"""Readers in other processes and threads, beside a writer that never pauses, and one that dies."""

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


def see(index: BlockIndex, names: dict[int, list[int]], looked_at: int) -> set[tuple[int, int]]:
    """Look again and again; what is seen must be true at some moment. Gives (chain, blocks)."""
    chains = {number: pattern(number)[1] for number in range(-1, CHAINS)}
    while not index.reach(chains[0]):
        time.sleep(0)
    seen = set()
    for turn in range(looked_at):
        number = turn % (CHAINS + 1) - 1
        reach = index.reach(chains[number])
        if number == -1:
            assert reach == {}
        elif number == 0:
            assert reach[1] == BLOCKS
        else:
            # The first holder has what its chain shares with this one, and never more.
            assert reach.pop(1, 0) == (100 if number % 2 else 0)
        for blocks in reach.values():
            assert 1 <= blocks <= BLOCKS
            seen.add((number, blocks))
        for holder, start, end in index.find(chains[number]):
            assert 0 <= start < end <= BLOCKS, (holder, start, end)
        if turn % 10 == 0:
            found = index.find_names(1, names[0])
            assert found == [(1, 0, BLOCKS)]
    return seen


def test_a_reader_never_sees_what_was_never_true(writer: Writer) -> None:
    names = {0: pattern(0)[0]}
    seen = see(writer.index, names, LOOKED_AT)
    assert len(seen) > CHAINS, "the writer did write meanwhile"


def test_a_writer_killed_at_any_moment_leaves_answers_or_no_answer() -> None:
    keys = [pattern(number)[1] for number in range(CHAINS)]
    for _ in range(8):
        running = Writer()
        while not running.index.reach(keys[0]):
            time.sleep(0)
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
        while not index.reach(hot):
            time.sleep(0)
        cold = pattern(-1)[1]
        for _ in range(200):
            for reach in index.reach_many([hot] * 20 + [cold] * 5)[:20]:
                assert reach[1] == BLOCKS
    finally:
        stop.set()
        thread.join(30)
    index.check_invariants()
