import gc
import random
from array import array

import pytest

from nexuskv_core._index import PrefixIndex
from tests.core.rig import EXACT_ONLY, KEY, OTHER_KEY, PREFIX, draw_tokens, put


def test_churn_reuses_memory():
    draw = random.Random(3)
    shared = draw_tokens(1, 320)

    def fill(index, entry):
        own = [draw.randrange(1000) for _ in range(draw.randrange(1, 200))]
        put(
            index,
            shared[: draw.randrange(0, 321)] + own,
            entry,
            unit=(1, 16)[entry % 2],
            key=(KEY, OTHER_KEY)[entry % 3 == 0],
        )

    index = PrefixIndex()
    for entry in range(500):
        fill(index, entry)
    for entry in range(500, 3_000):  # let every pool reach its high-water mark
        index.remove(entry - 500)
        fill(index, entry)
    settled = index.stats()["memory_bytes"]
    for entry in range(3_000, 20_000):
        index.remove(entry - 500)
        fill(index, entry)
    index.check_invariants()
    assert len(index) == 500
    assert index.stats()["memory_bytes"] <= 1.15 * settled


def test_an_emptied_index_keeps_nothing_but_free_memory():
    index = PrefixIndex()
    full = set()
    for _ in range(3):
        for entry in range(2_000):
            put(index, draw_tokens(entry, 50), entry, unit=16)
        full.add(index.stats()["memory_bytes"])
        assert len(full) == 1
        for entry in range(2_000):
            assert index.remove(entry)
        index.check_invariants()
        stats = index.stats()
        assert (stats["entries"], stats["blocks"], stats["scopes"]) == (0, 0, 0)


def test_scratch_of_a_long_list_is_given_back():
    index = PrefixIndex()
    index.identity(KEY, [1])
    before = index.stats()["memory_bytes"]
    tokens = [7] * 500_000
    index.identity(KEY, tokens)
    index.match(KEY, array("I", tokens))
    with pytest.raises(TypeError):
        index.match(KEY, [*tokens, None])
    assert index.stats()["memory_bytes"] <= before + 2**19


def worlds():
    """(what is there before, the add that may fail)."""
    base = draw_tokens(5, 64)
    yield [], (base, {"unit": 1})
    yield [(base, {"unit": 1})], (base[:40] + draw_tokens(6, 60_000), {"unit": 1})
    yield [(base, {"unit": 16})], (base[:32], {"unit": 16, "key": OTHER_KEY})
    yield [(base, {"unit": 16})], (base[:33], {"rule": EXACT_ONLY})
    # So many entries that nodes and both tables are full to the brim.
    full = [([*base[:16], entry], {"unit": 1}) for entry in range(1022 // 3)]
    yield full, (base[:32] + draw_tokens(7, 40_000), {"unit": 1})


@pytest.mark.parametrize("world", list(worlds()), ids=["empty", "branch", "scope", "group", "full"])
def test_a_failed_add_changes_nothing_whichever_allocation_fails(world):
    before, (tokens, options) = world
    index = PrefixIndex()
    for entry, (stored, how) in enumerate(before):
        put(index, stored, entry, **how)
    listing, stats = index.dump(), index.stats()
    failures = 0
    while True:
        index._fail_allocations_after(failures)
        try:
            put(index, tokens, 5_000, **options)
        except MemoryError:
            failures += 1
            index._fail_allocations_after(None)
            index.check_invariants()
            assert index.dump() == listing
            assert index.stats()["blocks"] == stats["blocks"]
            assert index.stats()["scopes"] == stats["scopes"]
        else:
            break
    index._fail_allocations_after(None)
    index.check_invariants()
    assert len(index) == len(before) + 1
    found = index.match(options.get("key", KEY), tokens)
    assert 5_000 in [entry for entry, *_ in found.candidates]


def test_a_match_without_memory_raises_and_the_next_one_works():
    index = PrefixIndex()
    for entry in range(300):
        put(index, [1, 2, entry], entry)
    failures = 0
    while True:
        index._fail_allocations_after(failures)
        try:
            found = index.match(KEY, [1, 2, 3, 4], max_candidates=200)
        except MemoryError:
            failures += 1
        else:
            break
    assert failures > 0
    assert found.candidates[0] == (3, PREFIX, 3)
    assert len(found.candidates) == 200
    index._fail_allocations_after(None)
    index.check_invariants()


def fill_until_refused(index):
    for entry in range(1, 5_000):
        put(index, [entry], entry)


def test_numbers_that_run_out_are_an_overflow():
    index = PrefixIndex()
    put(index, [1, 2, 3], 0)
    index._limit_slabs(1)
    with pytest.raises(OverflowError):
        fill_until_refused(index)
    assert 1 < len(index) < 1_000
    assert len(index.dump()) == len(index)
    with pytest.raises(OverflowError):
        put(index, draw_tokens(1, 16 * 5_000), 9_999, unit=16)
    index.check_invariants()
    assert index.remove(0)
    put(index, [1, 2, 3], 0)


def test_the_garbage_collector_sees_no_released_buffer():
    index = PrefixIndex()
    for _ in range(4):
        tokens = array("I", range(1_000))
        index.match(KEY, memoryview(tokens))
        with pytest.raises(ValueError, match="native uint32"):
            index.match(KEY, memoryview(bytearray(4_000)))
        del tokens
        gc.collect()
    assert len(index) == 0
