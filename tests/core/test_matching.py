"""Worked examples, each on both implementations, with blocks of 16 tokens."""

from array import array

import pytest

from tests.core.rig import (
    CHECKPOINT,
    EXACT,
    EXACT_ONLY,
    IMPLEMENTATIONS,
    KEY,
    OTHER_KEY,
    PARTIAL,
    PREFIX,
    PREFIX_CLOSED,
    draw_tokens,
    put,
)

LIST = draw_tokens(1, 100)
OTHER = [token + 1 for token in LIST]


@pytest.fixture(params=IMPLEMENTATIONS, ids=lambda module: module.__name__.rsplit(".", 1)[-1])
def index(request):
    return request.param.PrefixIndex()


def shared(count):
    """A list that shares `count` tokens with LIST and then goes its own way."""
    return LIST[:count] + OTHER[count:]


CASES = [
    # rule, unit, partial, entry's tokens, query, what is found (class, units) or None
    # -- classification
    (PREFIX_CLOSED, 1, True, LIST, LIST, (EXACT, 100)),
    (PREFIX_CLOSED, 1, False, LIST, LIST, (EXACT, 100)),
    (PREFIX_CLOSED, 1, False, LIST[:96], LIST[:96], (EXACT, 96)),
    (PREFIX_CLOSED, 1, False, LIST[:40], LIST, (PREFIX, 40)),
    (PREFIX_CLOSED, 1, False, LIST[:48], LIST, (PREFIX, 48)),
    (PREFIX_CLOSED, 1, False, LIST[:5], LIST, (PREFIX, 5)),
    (PREFIX_CLOSED, 1, True, LIST, LIST[:40], (PARTIAL, 40)),
    (PREFIX_CLOSED, 1, True, LIST, LIST[:48], (PARTIAL, 48)),
    (PREFIX_CLOSED, 1, True, LIST, shared(40), (PARTIAL, 40)),
    (PREFIX_CLOSED, 1, True, LIST, shared(98), (PARTIAL, 98)),
    (PREFIX_CLOSED, 1, True, LIST, shared(1), (PARTIAL, 1)),
    (PREFIX_CLOSED, 1, True, LIST, shared(0), None),
    (PREFIX_CLOSED, 1, False, LIST, LIST[:40], None),
    (PREFIX_CLOSED, 1, False, LIST, shared(40), None),
    # -- floored to the unit
    (PREFIX_CLOSED, 16, True, LIST, LIST, (EXACT, 96)),
    (PREFIX_CLOSED, 32, True, LIST, LIST, (EXACT, 96)),
    (PREFIX_CLOSED, 64, False, LIST, [*LIST, 1], (PREFIX, 64)),
    (PREFIX_CLOSED, 64, True, LIST, shared(63), None),
    (PREFIX_CLOSED, 64, True, LIST, shared(64), (PARTIAL, 64)),
    (PREFIX_CLOSED, 16, True, LIST, shared(31), (PARTIAL, 16)),
    (PREFIX_CLOSED, 8, True, LIST, shared(31), (PARTIAL, 24)),
    (PREFIX_CLOSED, 24, True, LIST, shared(49), (PARTIAL, 48)),
    (PREFIX_CLOSED, 128, True, LIST, LIST, None),
    # -- indivisible: the whole entry or nothing
    (PREFIX_CLOSED, 0, True, LIST, LIST, (EXACT, 100)),
    (PREFIX_CLOSED, 0, True, LIST[:40], LIST, (PREFIX, 40)),
    (PREFIX_CLOSED, 0, True, LIST, LIST[:99], None),
    # -- checkpoints: whole, never floored
    (CHECKPOINT, 64, True, LIST, LIST, (EXACT, 100)),
    (CHECKPOINT, 64, True, LIST[:40], LIST, (PREFIX, 40)),
    (CHECKPOINT, 1, True, LIST, LIST[:99], None),
    (CHECKPOINT, 1, True, LIST, shared(99), None),
    # -- exact only
    (EXACT_ONLY, 1, True, LIST, LIST, (EXACT, 100)),
    (EXACT_ONLY, 16, False, LIST[:96], LIST[:96], (EXACT, 96)),
    (EXACT_ONLY, 1, True, LIST[:96], LIST, None),
    (EXACT_ONLY, 1, True, LIST[:40], LIST, None),
    (EXACT_ONLY, 1, True, LIST, LIST[:99], None),
    # -- an empty query matches nothing
    (PREFIX_CLOSED, 1, True, LIST, [], None),
]


@pytest.mark.parametrize("case", CASES)
def test_one_entry(index, case):
    rule, unit, partial, tokens, query, found = case
    put(index, tokens, 7, rule=rule, unit=unit, partial=partial)
    expected = [] if found is None else [(7, *found)]
    result = index.match(KEY, query)
    assert result.candidates == expected
    assert result.truncated == 0
    assert result.identity == index.identity(KEY, query)


def test_best_first_by_units_then_class_then_order_then_entry(index):
    put(index, LIST[:32], 1, partial=False, order=0)
    put(index, LIST[:48], 2, unit=16, order=9)
    put(index, LIST, 3, unit=16, order=5)
    put(index, [*LIST[:48], 1, 2], 4, unit=16, order=3)
    put(index, [*LIST[:48], 3], 6, unit=16, order=3)
    put(index, [*LIST[:48], 3], 5, unit=16, order=3)
    put(index, LIST[:16], 8, rule=CHECKPOINT)
    assert index.match(KEY, [*LIST[:48], 3]).candidates == [
        (5, EXACT, 48),
        (6, EXACT, 48),
        (2, PREFIX, 48),
        (4, PARTIAL, 48),
        (3, PARTIAL, 48),
        (1, PREFIX, 32),
        (8, PREFIX, 16),
    ]


def test_order_is_unsigned_64_bit(index):
    put(index, LIST, 1, order=2**64 - 1)
    put(index, LIST, 2, order=2**63)
    put(index, LIST, 3, order=0)
    assert [entry for entry, *_ in index.match(KEY, LIST).candidates] == [3, 2, 1]


def test_scopes_do_not_see_each_other(index):
    put(index, LIST, 1, key=KEY)
    put(index, LIST, 2, key=OTHER_KEY)
    assert index.match(KEY, LIST).candidates == [(1, EXACT, 100)]
    assert index.match(OTHER_KEY, LIST).candidates == [(2, EXACT, 100)]
    assert index.match(bytes(16), LIST).candidates == []
    assert index.match(KEY, LIST).identity != index.match(OTHER_KEY, LIST).identity
    assert index.stats()["scopes"] == 2


def test_every_covered_tail_of_one_position_is_found(index):
    for length in range(17, 33):
        put(index, LIST[:length], length, partial=False)
    found = index.match(KEY, LIST[:33]).candidates
    assert found == [(length, PREFIX, length) for length in range(32, 16, -1)]


def test_a_tail_is_compared_token_by_token(index):
    put(index, LIST[:20], 1, partial=False)
    near = [*LIST[:19], LIST[19] ^ 1]
    assert index.match(KEY, near).candidates == []
    assert index.match(KEY, [*near, 5]).candidates == []


def test_cut_candidates_are_counted_and_the_rest_is_the_best(index):
    for entry in range(50):
        put(index, [*LIST[:32], entry], entry, order=100 - entry)
    whole = index.match(KEY, LIST).candidates
    assert len(whole) == 50
    assert [entry for entry, *_ in whole] == list(range(49, -1, -1))
    for wanted in (1, 2, 49):
        part = index.match(KEY, LIST, max_candidates=wanted)
        assert part.candidates == whole[:wanted]
        assert part.truncated == 50 - wanted


@pytest.mark.parametrize(
    "make", [list, tuple, lambda t: array("I", t), lambda t: memoryview(array("I", t))]
)
def test_lists_and_buffers_are_the_same(index, make):
    put(index, make(LIST), 1)
    assert index.match(KEY, make(LIST)).candidates == [(1, EXACT, 100)]
    assert index.identity(KEY, make(LIST)) == index.identity(KEY, LIST)


def test_extreme_tokens(index):
    tokens = [0, 1, 2**30 - 1, 2**30, 2**32 - 1] * 7
    put(index, tokens, 2**32 - 1)
    assert index.match(KEY, tokens).candidates == [(2**32 - 1, EXACT, 35)]
    assert index.match(KEY, array("I", tokens)).candidates == [(2**32 - 1, EXACT, 35)]


def test_match_leaves_the_index_as_it_was(index):
    for entry in range(40):
        put(index, draw_tokens(entry % 7, 10 + entry, 3), entry, unit=1 + entry % 20)
    before = index.dump(), {**index.stats(), "memory_bytes": 0}
    for query in range(40):
        index.match(KEY, draw_tokens(query % 9, 60, 3))
    assert (index.dump(), {**index.stats(), "memory_bytes": 0}) == before
    index.check_invariants()


def test_remove_says_whether_it_was_there(index):
    put(index, LIST, 1)
    assert index.remove(1)
    assert not index.remove(1)
    assert not index.remove(2**32 - 1)
    assert len(index) == 0
    assert index.match(KEY, LIST).candidates == []
    assert index.stats()["scopes"] == index.stats()["blocks"] == 0
