"""Frames read natively, against the same frames read the long way: the same batch, or an error."""

from typing import Any
from unittest.mock import patch

import msgspec
from hypothesis import given, settings
from hypothesis import strategies as st

from app.engines import wire
from app.engines.events import Batch
from app.engines.fields import WireError
from tests.engines.wires import CLEARED, as_array, as_salted_array, packed, removed, stored

hashes = st.lists(
    st.one_of(st.integers(-(2**63), 2**64 - 1), st.binary(min_size=1, max_size=32)), max_size=4
)
odd = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**64 - 1) | st.floats() | st.text(max_size=5)
    | st.binary(max_size=5),
    lambda inner: st.lists(inner, max_size=3)
    | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=8,
)  # fmt: skip
stores = st.builds(
    lambda found, tokens, extra: stored(found) | {"token_ids": tokens} | extra,
    hashes,
    st.lists(st.integers(0, 2**32) | st.booleans() | st.lists(st.integers(0, 9)), max_size=40),
    st.dictionaries(
        st.sampled_from(["lora_name", "medium", "extra_keys", "group_idx", "new"]), odd
    ),
)
events = st.one_of(
    stores,
    stores.map(as_array),
    stores.map(lambda event: as_salted_array(event | {"cache_salt": "salt"})),
    hashes.map(removed),
    hashes.map(lambda found: as_array(removed(found))),
    st.just(CLEARED),
    odd,
)
frames = st.builds(lambda found, rank: packed(*found, rank=rank), st.lists(events, max_size=3), odd)


def read(payload: bytes) -> Batch | str:
    try:
        return wire.decode_batch(payload)
    except WireError:
        return "refused"


def read_both_ways(payload: bytes) -> tuple[Any, Any]:
    natively = read(payload)
    with patch.object(wire, "msgpack_batch", lambda *_: None):
        return natively, read(payload)


@given(frames)
@settings(max_examples=200, deadline=None)
def test_frames_are_read_alike(payload: bytes) -> None:
    natively, otherwise = read_both_ways(payload)
    assert repr(natively) == repr(otherwise)


@given(frames, st.data())
@settings(max_examples=200, deadline=None)
def test_broken_frames_are_read_alike(payload: bytes, data: st.DataObject) -> None:
    at = data.draw(st.integers(0, len(payload) - 1))
    broken = payload[:at] + data.draw(st.binary(max_size=2)) + payload[at + 1 :]
    natively, otherwise = read_both_ways(broken)
    assert repr(natively) == repr(otherwise)


def test_nesting_beyond_any_reason_is_refused_and_not_followed() -> None:
    deep = b"\x91" * 100_000 + b"\x00"
    event = b"\x82\xa4type" + msgspec.msgpack.encode("BlockStored") + b"\xaaextra_keys" + deep
    assert read(b"\x92\xcb" + bytes(8) + b"\x91" + event) == "refused"
