"""Events that are read at once, against the same events read field by field."""

from typing import Any
from unittest.mock import patch

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from app.engines import wire
from app.engines.events import Batch, PackedHashes
from app.engines.fields import MAX_HASHES, WireError
from app.engines.spaces import names_of
from tests.engines.wires import Wire, as_array, packed, removed, stored

TEXTS = st.none() | st.sampled_from(["GPU", "cpu", "", "x" * 512, "x" * 513, "é"])
NUMBERS = st.none() | st.sampled_from(
    [0, 1, -1, 2**16, 2**16 + 1, 2**20, 2**20 + 1, 2**40, 2**40 + 1, 2**63, 2**64 - 1, -(2**63)]
)
ODD = (
    TEXTS | NUMBERS | st.booleans() | st.sampled_from([1.0, b"digest", [], [None], [1], [[]], {}])
)  # fmt: skip
ENTRIES = st.lists(st.none() | st.lists(TEXTS | NUMBERS | st.just([1]), max_size=2), max_size=4)
# What these say is mostly right, and now and then anything.
FIELDS = {
    "parent_block_hash": NUMBERS,
    "lora_id": st.none() | st.integers(0, 3),
    "medium": TEXTS,
    "lora_name": TEXTS,
    "extra_keys": st.none() | ENTRIES | st.integers(0, 5).map(lambda count: [None] * count),
    "group_idx": NUMBERS,
    "kv_cache_spec_kind": TEXTS,
    "kv_cache_spec_sliding_window": NUMBERS,
    "cache_salt": TEXTS,
    "locality": st.sampled_from(["LOCAL", "else"]),
    "session_id": st.just("s"),
    "dp_rank": NUMBERS,
    "new": ODD,
}


@st.composite
def events(draw: st.DrawFn) -> Wire:
    hashes = draw(st.lists(st.integers(-(2**63), 2**64 - 1), max_size=4))
    if draw(st.booleans()):
        event, names = removed(hashes), ["medium", "group_idx", "new", "seq_hashes"]
    else:
        event, names = stored(hashes), [*FIELDS]
    for name in draw(st.lists(st.sampled_from(names), max_size=4)):
        event[name] = draw(FIELDS.get(name, ODD))
    for name in draw(st.lists(st.sampled_from([*event]), max_size=1)):
        event[name] = draw(ODD)
    for name in draw(st.lists(st.sampled_from([*event]), max_size=1)):
        del event[name]
    return event


def read(payload: bytes) -> Batch | str:
    try:
        return wire.decode_batch(payload)
    except WireError as error:
        return str(error)


def read_both_ways(payload: bytes) -> tuple[Any, Any]:
    at_once = read(payload)
    with patch.object(wire, "usual", lambda _: None):
        return at_once, read(payload)


@given(st.lists(events(), max_size=3), st.none() | st.just(1))
@settings(max_examples=500, deadline=None)
def test_events_are_read_alike(found: list[Wire], rank: int | None) -> None:
    at_once, otherwise = read_both_ways(packed(*found, rank=rank))
    assert at_once == otherwise
    assert repr(at_once) == repr(otherwise)


@pytest.mark.parametrize("count", [MAX_HASHES, MAX_HASHES + 1])
def test_limits_are_alike(count: int) -> None:
    names = list(range(count))
    nulls = stored([1], extra_keys=[None] * count)
    for event in (removed(names), stored(names, block_size=1), nulls, as_array(nulls)):
        at_once, otherwise = read_both_ways(packed(event))
        assert at_once == otherwise
        assert isinstance(at_once, str) == (count > MAX_HASHES)


@pytest.mark.parametrize("event", [stored([1, 2**64 - 1], extra_keys=[None] * 2), removed([7])])
def test_what_engines_send_is_read_at_once(event: Wire) -> None:
    for form in (event, as_array(event)):
        with patch.object(wire, "Fields", side_effect=AssertionError):
            (found,) = wire.decode_batch(packed(form)).events
        assert found.hashes == tuple(event["block_hashes"])


def test_packed_names_are_as_good_as_a_tuple() -> None:
    (event,) = wire.decode_batch(packed(removed([5, 2**64 - 1, -2]))).events
    names, plain = event.hashes, (5, 2**64 - 1, 2**64 - 2)
    assert isinstance(names, PackedHashes)
    assert names == plain
    assert plain == names
    assert names != plain[:2]
    assert {names: 1}[plain] == 1
    assert (names[0], names[-1], names[1:], len(names)) == (5, plain[2], plain[1:], 3)
    assert [*names] == [*names_of(names)] == names_of(plain)
    assert plain[1] in names
    assert repr(names) == repr(plain)
