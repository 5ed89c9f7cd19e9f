"""What a user of the block index would notice, beyond answers that are right."""

import random
import subprocess
import sys
from array import array
from pathlib import Path

import pytest

from nexuskv_core import BlockIndex, IndexFullError, block_reference, chain
from nexuskv_core.journal import Journal, replay
from nexuskv_core.snapshots import SnapshotError

SCOPE = b"scope key, 16 by"


def draw(seed: int, blocks: int) -> tuple[list[int], bytes]:
    """Names, and keys of a chain that nothing else begins like."""
    made = random.Random(seed)
    return [made.getrandbits(64) for _ in range(blocks)], made.randbytes(16 * blocks)


def one_holder(index: BlockIndex) -> int:
    return index.open_holder(index.open_stream(b"stream"), b"holder")


def test_a_name_that_means_another_block_now_is_no_hit_for_the_former() -> None:
    index = BlockIndex()
    holder = one_holder(index)
    first, second = chain(SCOPE, [1] * 32, 16), chain(SCOPE, [2] * 32, 16)
    assert index.store(holder, [10, 11], first) == 2
    # Both of 64 bits, by chance or by malice the same.
    assert index.store(holder, [10, 12], second) == 2
    assert index.reach(second) == {holder: 2}
    assert index.reach(first) == {}
    assert index.find(first) == [(holder, 1, 2)]
    assert index.stats()["collisions"] == 1
    # A child of the name goes on with the chain that the name means now.
    assert index.store_tokens(holder, SCOPE, [13], [3] * 16, 16, parent=10) == 1
    assert index.reach(chain(SCOPE, [2] * 16 + [3] * 16, 16)) == {holder: 2}
    assert index.reach(chain(SCOPE, [1] * 16 + [3] * 16, 16)) == {}


def test_an_unknown_parent_stores_nothing() -> None:
    index = BlockIndex()
    holder = one_holder(index)
    assert index.store(holder, [2], bytes(16), parent=1) is None
    assert index.stats()["blocks"] == 0


def test_names_of_one_stream_mean_nothing_in_another() -> None:
    index = BlockIndex()
    mine, theirs = one_holder(index), one_holder(index)
    names, keys = draw(1, 40)
    index.store(mine, names, keys)
    index.store(theirs, names, keys)
    assert index.remove(theirs, names) == 40
    assert index.remove(theirs, names) == 0
    assert index.reach(keys) == {mine: 40}
    index.close_stream(index.stream_of(mine))
    assert index.reach(keys) == {}


def test_what_was_stored_longest_ago_is_forgotten_first() -> None:
    index = BlockIndex(max_blocks=300)
    holder = one_holder(index)
    chains = [draw(seed, 100) for seed in range(4)]
    for names, keys in chains[:3]:
        index.store(holder, names, keys)
    index.store(holder, *chains[0])
    index.store(holder, *chains[3])
    index.check_invariants()
    assert index.stats()["forgotten"] >= 100
    assert index.stats()["blocks"] <= 300
    assert [index.reach(keys).get(holder, 0) == 100 for _, keys in chains] == [
        True, False, True, True,
    ]  # fmt: skip


def test_a_bound_in_bytes_holds_under_churn_and_a_hot_prefix_stays() -> None:
    index = BlockIndex(max_blocks=1 << 20, max_bytes=4 << 20)
    holder = one_holder(index)
    hot_names, hot = draw(0, 64)
    used = []
    for round_number in range(1, 400):
        index.store(holder, hot_names, hot)
        names, keys = draw(round_number, 600)
        index.store(holder, names, keys, parent=hot_names[-1])
        used.append(index.stats()["memory_bytes"])
        assert index.reach(hot + keys) == {holder: 664}
    index.check_invariants()
    assert max(used) <= 4 << 20
    assert index.stats()["forgotten"] > 100_000


def test_a_hot_prefix_stays_and_resident_memory_is_flat_under_churn() -> None:
    """In a process of its own: nothing else may grow in it."""
    finished = subprocess.run(
        [sys.executable, "-m", "tests.core.block_churn"],
        cwd=Path(__file__).resolve().parents[2], capture_output=True, text=True, timeout=120,
        check=False,
    )  # fmt: skip
    assert finished.returncode == 0, finished.stdout + finished.stderr


def test_the_table_of_names_grows_and_empties() -> None:
    """From 65,536 buckets, when 557,000 names are in them."""
    index = BlockIndex()
    holder = one_holder(index)
    made = random.Random(1)
    parts = [(array("Q", made.randbytes(8 * 4096)), made.randbytes(16 * 4096)) for _ in range(200)]
    for names, keys in parts:
        assert index.store(holder, names, keys) == 4096
    index.check_invariants()
    for names, keys in parts[::20]:
        assert index.find_names(index.stream_of(holder), names) == [(holder, 0, 4096)]
        assert index.reach(keys) == {holder: 4096}
    for names, _ in parts:
        assert index.remove(holder, names) == 4096
    index.check_invariants()
    assert index.stats()["blocks"] == 0
    assert index.store(holder, *parts[0]) == 4096


def test_a_store_beyond_what_may_ever_be_kept_is_refused_and_counted() -> None:
    index = BlockIndex(max_blocks=10)
    holder = one_holder(index)
    names, keys = draw(1, 20)
    with pytest.raises(IndexFullError):
        index.store(holder, names, keys)
    assert index.stats()["refused"] == 20
    assert index.store(holder, names[:10], keys[:160]) == 10
    index.check_invariants()


def test_a_path_that_ends_where_chains_part_is_read_to_its_end_and_no_further() -> None:
    index = BlockIndex()
    holder = one_holder(index)
    (names, keys), (other_names, other) = draw(1, 100), draw(2, 100)
    index.store(holder, names, keys)
    for shared in (1, 17, 40, 99):
        index.store(holder, other_names[:20], other[:320], parent=names[shared - 1])
        index.remove(holder, other_names[:20])
        forked = [number + shared for number in other_names[:20]]
        index.store(holder, forked, random.Random(shared).randbytes(320), parent=names[shared - 1])
    for blocks in range(1, 101):
        path = keys[: 16 * blocks]
        listed = [path[at : at + 16] for at in range(0, len(path), 16)]
        # Nothing but these may be looked at: a list's end is followed by what is no key.
        assert index.reach(path) == index.reach(listed) == {holder: blocks}
        assert index.find(path) == [(holder, 0, blocks)]


def test_closed_streams_are_swept_while_others_store() -> None:
    index = BlockIndex()
    old = [one_holder(index) for _ in range(3)]
    for seed, holder in enumerate(old):
        index.store(holder, *draw(seed, 500))
    for holder in old:
        index.close_stream(index.stream_of(holder))
    holder = one_holder(index)
    for seed in range(10, 20):
        index.store(holder, *draw(seed, 8))
    index.check_invariants()
    assert index.stats()["blocks"] == 80


@pytest.mark.parametrize("shared", [False, True])
def test_a_snapshot_gives_everything_back(tmp_path: Path, shared: bool) -> None:
    index = BlockIndex(shared=shared)
    holder = one_holder(index)
    chains = [draw(seed, 700) for seed in range(200)]
    for names, keys in chains:
        index.store(holder, names, keys)
    index.remove(holder, chains[3][0][100:200])
    index.set_progress(index.stream_of(holder), 12, 34, 5)
    index.snapshot(tmp_path / "index", b"more")
    copy, meta = BlockIndex.restore(tmp_path / "index", shared=not shared)
    copy.check_invariants()
    assert meta == b"more"
    assert list(copy.dump()) == list(index.dump())
    assert copy.label(holder) == b"holder"
    assert copy.progress(1) == (12, 34, 5)
    # And it goes on as the one it is a copy of.
    names, keys = draw(1000, 900)
    for each in (index, copy):
        assert each.store(holder, names, keys, parent=chains[3][0][50]) == 900
        assert each.remove(holder, chains[4][0]) == 700
        each.check_invariants()
    assert sorted(copy.find(chains[3][1])) == sorted(index.find(chains[3][1]))
    assert [each.name for each in tmp_path.iterdir()] == ["index"]
    assert (tmp_path / "index").stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize("where", [0, 30, 200, 4_200, -1])
def test_a_changed_snapshot_is_refused(tmp_path: Path, where: int) -> None:
    index = BlockIndex()
    index.store(one_holder(index), *draw(1, 300))
    path = tmp_path / "index"
    index.snapshot(path)
    content = bytearray(path.read_bytes())
    content[where] ^= 4
    path.write_bytes(content)
    with pytest.raises(SnapshotError):
        BlockIndex.restore(path)


def test_what_is_no_snapshot_is_refused(tmp_path: Path) -> None:
    index = BlockIndex()
    index.store(one_holder(index), *draw(1, 300))
    path = tmp_path / "index"
    index.snapshot(path)
    content = path.read_bytes()
    for other in (b"", b"{}\n{}\n", content[: len(content) // 2], b"\xff" * 10_000):
        path.write_bytes(other)
        with pytest.raises(SnapshotError):
            BlockIndex.restore(path)


def test_a_reader_cannot_write_and_sees_what_is_stored() -> None:
    index = BlockIndex(shared=True)
    reader = BlockIndex.attach(index.fd())
    holder = one_holder(index)
    names, keys = draw(1, 5_000)
    index.store(holder, names, keys)
    assert reader.reach(keys) == {holder: 5_000}
    assert reader.label(holder) == b"holder"
    for write in (reader.open_stream, lambda: reader.remove(holder, names)):
        with pytest.raises(PermissionError):
            write()


def test_many_chains_in_any_order_grow_the_tables() -> None:
    index = BlockIndex()
    holders = [one_holder(index) for _ in range(3)]
    chains = [draw(seed, seed % 50 + 1) for seed in range(6_000)]
    for number, (names, keys) in enumerate(chains):
        index.store(holders[number % 3], names, keys)
    index.check_invariants()
    assert all(
        index.reach(keys) == {holders[number % 3]: len(names)}
        for number, (names, keys) in enumerate(chains)
    )
    made = random.Random(5)
    made.shuffle(chains)
    for names, _ in chains[:5_000]:
        for holder in holders:
            index.remove(holder, names)
    index.check_invariants()
    assert index.stats()["blocks"] == sum(len(names) for names, _ in chains[5_000:])


def test_bad_arguments_change_nothing() -> None:
    index = BlockIndex()
    holder = one_holder(index)
    names, keys = draw(1, 4)
    with pytest.raises(ValueError, match="16 bytes for each name"):
        index.store(holder, names, keys[:-1])
    with pytest.raises(ValueError, match="no open holder 7"):
        index.store(7, names, keys)
    with pytest.raises(ValueError, match="16 bytes for each block"):
        index.find(keys[:-1])
    with pytest.raises(ValueError, match="16 bytes"):
        index.reach([b"short"])
    with pytest.raises(OverflowError):
        index.store(holder, [1 << 64], keys[:16])
    with pytest.raises(ValueError, match="token 1 is not from 0"):
        chain(SCOPE, [1, -1], 2)
    with pytest.raises(ValueError, match="block_tokens"):
        chain(SCOPE, [1, 1], 0)
    with pytest.raises(ValueError, match="not shared"):
        index.fd()
    assert index.stats()["blocks"] == 0


def test_a_journal_does_it_all_again_in_either_implementation() -> None:
    lines: list[bytes] = []
    index = BlockIndex()
    told = Journal(index, lines.append)
    stream = told.open_stream(b"stream")
    holders = [told.open_holder(stream, bytes([number])) for number in range(2)]
    names, keys = draw(1, 100)
    told.store(holders[0], array("Q", names), keys)
    told.store_tokens(holders[1], SCOPE, [7, 8], list(range(32)), 16, parent=names[9])
    told.hold(holders[1], names[:20])
    told.remove(holders[0], names[50:])
    with pytest.raises(ValueError, match="no open holder"):
        told.store(77, names, keys)
    assert told.reach(keys) == {holders[0]: 50, holders[1]: 20}
    for other in (BlockIndex(), block_reference.BlockIndex()):
        assert replay(lines, other) == len(lines) == 8
        assert list(other.dump()) == list(index.dump())
    with pytest.raises(ValueError, match="not a line"):
        replay([b"[1, 2]"], BlockIndex())
    with pytest.raises(ValueError, match="not a change"):
        replay([b'["fd", [], {}]'], BlockIndex())
