"""Shapes that a linear walk would show up in: work is bounded by counting, not by timing alone."""

import time
from array import array

import pytest

from nexuskv_core._index import PrefixIndex
from tests.core.rig import EXACT, KEY, PARTIAL, PREFIX, draw_tokens, put

SIBLINGS = 100_000
SHARED = draw_tokens(1, 64)


def quickest_s(call, times=30):
    best = float("inf")
    for _ in range(times):
        start = time.perf_counter()
        call()
        best = min(best, time.perf_counter() - start)
    return best


@pytest.fixture(scope="module", params=[1, 16])
def wide(request):
    """One position with 100,000 partial blocks and 100,000 tails below it."""
    index = PrefixIndex()
    for number in range(SIBLINGS):
        block = [number // 1000, number % 1000, *range(14)]
        put(index, array("I", SHARED + block), number, unit=request.param, order=SIBLINGS - number)
        put(
            index,
            array("I", SHARED + block[:10]),
            SIBLINGS + number,
            unit=request.param,
            order=10 * SIBLINGS,
        )
    return index, request.param


def test_the_best_of_many_siblings_is_found_quickly(wide):
    index, unit = wide
    query = [*SHARED, 50, 500, *range(9), 9999]
    found = index.match(KEY, query)
    if unit == 1:
        # The tail of ten is covered, the block next to it shares one token more.
        assert found.candidates[:2] == [(50_500, PARTIAL, 75), (150_500, PREFIX, 74)]
        # Then all that share 65 tokens: those of 50xxx, lowest order first.
        assert [entry for entry, *_ in found.candidates[2:]] == list(range(50_999, 50_937, -1))
        assert {units for _, _, units in found.candidates[2:]} == {65}
    else:
        assert found.candidates[0] == (150_500, PREFIX, 64)
        assert found.candidates[1:] == [
            (entry, PARTIAL, 64) for entry in range(SIBLINGS - 1, SIBLINGS - 64, -1)
        ]
    assert len(found.candidates) == 64
    assert found.truncated > 0
    # A walk over the siblings would take tens of milliseconds.
    assert quickest_s(lambda: index.match(KEY, query)) < 0.004


def test_removing_among_many_siblings_keeps_the_best(wide):
    index, unit = wide
    query = [*SHARED, 50, 500, *range(9), 9999]
    index.remove(50_500)
    best = index.match(KEY, query, max_candidates=1)
    assert best.candidates == [(150_500, PREFIX, 74 if unit == 1 else 64)]
    put(index, [*SHARED, 50, 500, *range(14)], 50_500, unit=unit, order=SIBLINGS - 50_500)
    assert quickest_s(lambda: index.remove(2**32 - 1)) < 0.001


def test_many_entries_of_one_list():
    index = PrefixIndex()
    for entry in range(SIBLINGS):
        put(index, array("I", SHARED), entry, order=SIBLINGS - entry)
    found = index.match(KEY, SHARED, max_candidates=5)
    assert found.candidates == [(SIBLINGS - 1 - i, EXACT, 64) for i in range(5)]
    assert found.truncated == SIBLINGS - 5
    assert quickest_s(lambda: index.match(KEY, SHARED)) < 0.004


def test_the_best_is_right_at_the_bottom_of_a_deep_chain():
    """The entry of lowest order lies thousands of runs below the divergence."""
    depth = 4_000
    index = PrefixIndex()
    tokens = array("I", draw_tokens(2, 16 * depth, 50))
    for blocks in range(1, depth + 1, 2):
        put(index, tokens[: 16 * blocks], blocks, unit=16, order=depth - blocks)
    query = [*tokens[:8], 99_999]
    assert index.match(KEY, query).candidates == []
    found = index.match(KEY, [*tokens[:16], 99_999])
    assert found.candidates[0] == (1, PREFIX, 16)
    assert found.candidates[1] == (depth - 1, PARTIAL, 16)
    assert found.candidates[1:] == [
        (depth - 1 - 2 * i, PARTIAL, 16) for i in range(len(found.candidates) - 1)
    ]
    assert found.truncated == depth // 2 - len(found.candidates)
    assert len(index.match(KEY, tokens).candidates) == 64
    for blocks in range(1, depth + 1, 4):
        assert index.remove(blocks)
    index.check_invariants()


def test_a_very_long_list():
    index = PrefixIndex()
    tokens = array("I", draw_tokens(3, 1_000_000))
    put(index, tokens, 1, unit=16)
    assert index.match(KEY, tokens).candidates == [(1, EXACT, 1_000_000)]
    assert index.match(KEY, tokens[:999_000]).candidates == [(1, PARTIAL, 998_992)]
    put(index, tokens[:500_008], 2, unit=16)
    assert index.match(KEY, tokens[:600_000]).candidates == [
        (1, PARTIAL, 600_000),
        (2, PREFIX, 500_000),
    ]
    assert index.remove(1)
    assert index.stats()["blocks"] == 31_250
    index.check_invariants()
