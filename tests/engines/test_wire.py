"""KV events of every producer and age, read as the same events."""

import struct
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.engines.events import Batch, Cleared, Locality, Origin, Removed, Stored
from app.engines.fields import MAX_HASHES, Fields, WireError
from app.engines.wire import MAX_FRAME_BYTES, MAX_NAMES, OTHER_NAMES, decode_batch
from tests.engines.wires import (
    CLEARED,
    Wire,
    as_array,
    as_envelope,
    as_salted_array,
    packed,
    removed,
    stored,
)

BIG = 2**64 - 3
DIGEST = bytes(range(32))


def u32(*tokens: int) -> bytes:
    return struct.pack(f"<{len(tokens)}I", *tokens)


def one(event: Any, **options: Any) -> Any:
    batch = decode_batch(packed(event, **options))
    assert (batch.skipped_types, batch.unknown_fields) == ({}, {})
    (found,) = batch.events
    return found


def decoded(payload: bytes) -> Batch | WireError:
    try:
        return decode_batch(payload)
    except WireError as error:
        return error


def test_a_current_engine_says_everything() -> None:
    found = one(
        stored(
            [1, BIG], parent_block_hash=9, lora_id=3, lora_name="tuned", medium="CPU_PINNED",
            extra_keys=[["salt", ["image", 4]], None], group_idx=2, cache_salt="salt",
            kv_cache_spec_kind="sliding_window", kv_cache_spec_sliding_window=1024,
            locality="REMOTE", ownership="x", session_id="s",
        )
    )  # fmt: skip
    assert found == Stored(
        hashes=(1, BIG), parent=9, tokens=u32(0, 1, 2, 3), block_size=2, medium="cpu_pinned",
        group=2, lora="tuned", cache_salt="salt", extra_keys=(("salt", ("image", 4)), None),
        spec_kind="sliding_window", window_tokens=1024, locality=Locality.REMOTE,
    )  # fmt: skip
    assert one(removed([1], medium="Disk", group_idx=2)) == Removed(
        hashes=(1,), medium="disk", group=2
    )
    assert one(CLEARED) == Cleared()


FULL = stored(
    [5, 6], parent_block_hash=4, lora_id=1, lora_name="tuned", medium="CPU",
    extra_keys=[["a"], None], group_idx=1, kv_cache_spec_kind="full_attention",
    kv_cache_spec_sliding_window=64,
)  # fmt: skip


@pytest.mark.parametrize("places", range(4, 12))
def test_an_array_of_any_length_says_what_its_places_say(places: int) -> None:
    said = Stored(hashes=(5, 6), parent=4, tokens=u32(0, 1, 2, 3), block_size=2)
    later = [
        {}, {"lora": "1"}, {"medium": "cpu"}, {"lora": "tuned"}, {"extra_keys": (("a",), None)},
        {"group": 1}, {"spec_kind": "full_attention"}, {"window_tokens": 64},
    ]  # fmt: skip
    for fields in later[: places - 3]:
        said = msgspec.structs.replace(said, **fields)
    assert one(as_array(FULL, places=places)) == said


def test_older_removals_and_clearings() -> None:
    assert one(["BlockRemoved", [3]]) == Removed(hashes=(3,))
    assert one(["BlockRemoved", [3], "CPU"]) == Removed(hashes=(3,), medium="cpu")
    assert one(["BlockRemoved", [3], None, 4]) == Removed(hashes=(3,), group=4)
    assert one(["AllBlocksCleared"]) == Cleared()


def test_sglang_of_before_its_maps() -> None:
    event = stored([-1, -(2**63)], cache_salt="pepper")
    found = one(as_salted_array(event))
    assert found.hashes == (2**64 - 1, 2**63)
    assert (found.cache_salt, found.lora) == ("pepper", None)


def test_stores_by_the_rfc() -> None:
    envelope = as_envelope(stored([1, 2], parent_block_hash=8, medium="DRAM"))
    expected = Stored(hashes=(1, 2), parent=8, tokens=u32(0, 1, 2, 3), block_size=2, medium="dram")
    for payload in (envelope, [envelope], [2.5, [envelope]]):
        batch = decode_batch(msgspec.msgpack.encode(payload))
        assert batch.events == (expected,)
        assert batch.dp_rank == 0
    assert decode_batch(msgspec.msgpack.encode(envelope)).at_s == 1.5
    based = envelope | {"parent_hash": None, "base_block_idx": 3, "token_ids": None}
    found = decode_batch(msgspec.msgpack.encode(based)).events[0]
    assert found == Stored(hashes=(1, 2), block_size=2, medium="dram", base_block=3)
    gone = decode_batch(msgspec.msgpack.encode(as_envelope(removed([1], medium="DRAM"))))
    assert gone.events == (Removed(hashes=(1,), medium="dram"),)
    cleared = decode_batch(msgspec.msgpack.encode(as_envelope(CLEARED | {"medium": "DRAM"})))
    assert cleared.events == (Cleared(medium="dram"),)


def test_pairs_of_tokens() -> None:
    found = one(stored([1], token_ids=[[1, 2], [2, 3]]))
    assert (found.tokens, found.token_width) == (u32(1, 2, 2, 3), 2)


def test_blocks_that_moved_have_no_tokens() -> None:
    moved = one(stored([1, 2], token_ids=[], block_size=0, medium="CPU"))
    assert moved == Stored(hashes=(1, 2), block_size=0, medium="cpu")
    # A connector's own block size is not that of these blocks.
    assert one(stored([1, 2], token_ids=[1, 2, 3], block_size=16)).tokens == b""
    odd = one(stored([1, 2], extra_keys=[["a"]]))
    assert (odd.tokens, odd.extra_keys) == (b"", None)


INFOS = [None, {"mm_objects": [{"mm_hash": -1, "offsets": [[0, 1]]}, {"mm_hash": 7}]}]
OBJECTS = (None, ((BIG + 2, ((0, 1),)), 7))
TAIL = (1, "sliding_window", 64)
SAID = {"group": 1, "spec_kind": "sliding_window", "window_tokens": 64}


@pytest.mark.parametrize(
    ("tail", "said"),
    [
        ([INFOS], {"extra_keys": OBJECTS}),
        ([INFOS, *TAIL], {"extra_keys": OBJECTS, **SAID}),
        ([*TAIL, INFOS], {"extra_keys": OBJECTS, **SAID}),
        ([None, *TAIL], SAID),
        ([None, None, "sliding_window", 64], SAID | {"group": 0}),
        ([None, None, None, 64], {"window_tokens": 64}),
        ([None, None, 64], {"window_tokens": 64}),
        ([INFOS, "sliding_window"], {"extra_keys": OBJECTS, "spec_kind": "sliding_window"}),
        (["sliding_window", 1, 64], SAID),
        ([*TAIL, "REMOTE", "engine"], SAID | {"locality": Locality.REMOTE}),
        ([[None, None], *TAIL], SAID | {"extra_keys": (None, None)}),
    ],
)
def test_the_end_of_an_array_in_the_order_of_every_producer(tail, said) -> None:
    event = ["BlockStored", [1, 2], None, [0, 1, 2, 3], 2, None, "GPU", None, None, *tail]
    assert one(event) == Stored(hashes=(1, 2), tokens=u32(0, 1, 2, 3), block_size=2, **said)


def test_objects_of_a_block_are_beside_its_extra_keys() -> None:
    keys = [["a"], ["b"]]
    found = one(stored([1, 2], extra_keys=keys, block_mm_infos=INFOS))
    assert found.extra_keys == (("a",), ("b", *OBJECTS[1]))
    assert one(stored([1, 2], block_mm_infos=INFOS)).extra_keys == OBJECTS
    assert not found.unclear


@pytest.mark.parametrize(
    "infos",
    [
        INFOS[:1], [*INFOS, None], [None, 7], [None, {}], [None, {"mm_objects": [7]}], 7, "x",
        [None, {"mm_objects": [], "new": 1}], [None, {"mm_objects": [{"mm_hash": "7"}]}],
        [None, {"mm_objects": [{"mm_hash": 2**64 - 1, "offsets": [[0]]}]}],
        [None, {"mm_objects": [{"mm_hash": 1, "audio": 2}]}], [None, {"mm_objects": [{}]}],
        [None, {"mm_objects": [{"mm_hash": True}]}],
    ],
)  # fmt: skip
def test_objects_that_nobody_understands_make_blocks_unclear(infos: Any) -> None:
    found = one(stored([1, 2], block_mm_infos=infos))
    assert (found.unclear, found.extra_keys) == (True, None)


def test_integers_of_extra_keys_have_64_bits() -> None:
    for number in (-(2**63), 2**64 - 1):
        assert Fields({"extra_keys": [[[number]]]}).extra_keys() == (((number,),),)
    for number in (-(2**63) - 1, 2**64):
        with pytest.raises(WireError):
            Fields({"extra_keys": [[[number]]]}).extra_keys()


def test_envelopes_say_whose_each_event_is() -> None:
    mine = as_envelope(stored([1]), 0)
    theirs = as_envelope(removed([2]), 1) | {"dp_rank": 5, "model_name": "n", "tenant_id": "z"}
    batch = decode_batch(msgspec.msgpack.encode([mine, theirs]))
    assert batch.dp_rank is None
    first, second = batch.origins
    assert first == Origin(event_id=0, dp_rank=0, model="m", backend="b", block_size=2)
    assert (second.dp_rank, second.model, second.tenant) == (5, "n", "z")
    assert decode_batch(packed(stored([1]), removed([1]))).origins == ()


def test_digests_are_names_as_they_are() -> None:
    found = one(stored([DIGEST], parent_block_hash=DIGEST[::-1]))
    assert (found.hashes, found.parent) == ((DIGEST,), DIGEST[::-1])


def test_a_batch_without_rank_and_of_another_one() -> None:
    assert decode_batch(packed(CLEARED, rank=None)).dp_rank is None
    assert decode_batch(packed(CLEARED, rank=3)).dp_rank == 3
    assert decode_batch(packed(at_s=12)).at_s == 12.0


def test_what_is_unknown_is_counted_and_passed_over() -> None:
    news = {"type": "BlockPromoted", "block_hashes": [1]}
    batch = decode_batch(
        packed(
            news, ["BlockPromoted", 1], ["Ignored"], removed([1], colour=1), [*as_array(FULL), 1]
        )
    )
    assert [type(event) for event in batch.events] == [Removed, Stored]
    assert batch.skipped_types == {"BlockPromoted": 2}
    assert batch.unknown_fields == {"colour": 1, "[12]": 1}
    many = decode_batch(packed(*({"type": f"t{number}"} for number in range(3 * MAX_NAMES))))
    assert len(many.skipped_types) == MAX_NAMES + 1
    assert many.skipped_types[OTHER_NAMES] == 2 * MAX_NAMES


@pytest.mark.parametrize(
    "event",
    [
        {"block_hashes": [1]}, {"type": 1}, [], [1], "BlockStored", None, {"type": None},
        stored(["name"]), stored([True]), stored([b""]),
        stored([bytes(65)]), stored(None), stored([1], token_ids=[-1, 0]),
        stored([1], token_ids=[2**32, 0]), stored([1], token_ids=[1.0, 2]),
        stored([1], token_ids=[True, 2]), stored([1], token_ids=[[1, 2], 3]),
        stored([1], token_ids="ab"), stored([1], block_size=-1), stored([1], parent_block_hash="p"),
        stored([1], medium=7), stored([1], medium="m" * 513), stored([1], group_idx=-1),
        stored([1], lora_id=1.5), stored([1], extra_keys=[[[[[[[[1]]]]]]]]),
        stored([1], extra_keys=["salt"]), removed(7), removed([None]), ["BlockRemoved"],
    ],
)  # fmt: skip
def test_what_is_known_and_does_not_fit_refuses_the_frame(event: Any) -> None:
    with pytest.raises(WireError):
        decode_batch(packed(CLEARED, event))


@pytest.mark.parametrize(
    "payload",
    [
        b"", b"\xc1", b"{}", b"\xdd\xff\xff\xff\xff", b"\x91" * 100_000,
        msgspec.msgpack.encode(7), msgspec.msgpack.encode([1.0]),
        msgspec.msgpack.encode(["now", []]), msgspec.msgpack.encode([1.0, {}]),
        msgspec.msgpack.encode([float("nan"), []]), msgspec.msgpack.encode([1.0, [], "rank"]),
        msgspec.msgpack.encode([1.0, [], -1]), msgspec.msgpack.encode([1.0, []]) + b"\x00",
        bytes(MAX_FRAME_BYTES + 1),
        packed(removed(list(range(MAX_HASHES + 1)))),
        packed(*[CLEARED] * 65_537),
    ],
)  # fmt: skip
def test_other_frames_are_refused(payload: bytes) -> None:
    with pytest.raises(WireError):
        decode_batch(payload)


HASHES = st.lists(st.integers(-(2**63), 2**64 - 1) | st.binary(min_size=1, max_size=64), max_size=4)
NAMES = st.none() | st.text(max_size=8)


@st.composite
def stored_events(draw: st.DrawFn) -> Wire:
    hashes = draw(HASHES)
    block_size = draw(st.integers(1, 3))
    count = len(hashes) * block_size
    return stored(
        hashes,
        block_size=block_size,
        parent_block_hash=draw(st.none() | st.integers(0, 2**64 - 1)),
        token_ids=draw(st.lists(st.integers(0, 2**32 - 1), min_size=count, max_size=count)),
        medium=draw(st.none() | st.sampled_from(["GPU", "cpu", "Disk"])),
        lora_name=draw(NAMES),
    )


@given(stored_events())
def test_all_formats_of_an_event_are_the_same_event(event: Wire) -> None:
    as_map = one(event)
    assert one(as_array(event)) == as_map
    assert decode_batch(msgspec.msgpack.encode(as_envelope(event))).events == (as_map,)


FIELDS = st.sampled_from(["type", "block_hashes", "token_ids", "x"])


@given(st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**64 - 1) | st.floats() | st.text(max_size=4)
    | st.binary(max_size=4) | st.sampled_from(["BlockStored", "type", "BlockRemoved"]),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(FIELDS, inner, max_size=4),
    max_leaves=20,
))  # fmt: skip
def test_anything_is_a_batch_or_refused(value: Any) -> None:
    for payload in (msgspec.msgpack.encode(value), packed(value)):
        assert isinstance(decoded(payload), (Batch, WireError))


@given(st.binary(max_size=64))
def test_any_bytes_are_a_batch_or_refused(payload: bytes) -> None:
    assert isinstance(decoded(payload), (Batch, WireError))
