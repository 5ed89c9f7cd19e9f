"""Lists of numbers read from msgpack, by both implementations alike."""

import struct

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nexuskv_core import _scan, reference

numbers = st.one_of(
    st.integers(-(1 << 63), (1 << 64) - 1),
    st.sampled_from(
        [0, 127, 128, 255, 256, 65_535, 65_536, (1 << 32) - 1, 1 << 32, -1, -32, -33, -(1 << 31)]
    ),
)
IMPLEMENTATIONS = [_scan, reference]


@given(st.lists(numbers, max_size=40))
def test_numbers_come_back_modulo_2_to_64(found: list[int]) -> None:
    text = msgspec.msgpack.encode(found)
    wanted = struct.pack(f"={len(found)}Q", *(number % (1 << 64) for number in found))
    for module in IMPLEMENTATIONS:
        assert module.msgpack_u64(text) == wanted


@given(st.lists(st.integers(0, 1 << 33), max_size=40))
def test_tokens_come_back_or_nothing_does(found: list[int]) -> None:
    text = msgspec.msgpack.encode(found)
    fits = all(number < 1 << 32 for number in found)
    wanted = struct.pack(f"={len(found)}I", *found) if fits else None
    for module in IMPLEMENTATIONS:
        assert module.msgpack_u32(text) == wanted


@pytest.mark.parametrize("count", [15, 16, 65_535, 65_536])
def test_heads_of_every_width(count: int) -> None:
    text = msgspec.msgpack.encode([300] * count)
    for module in IMPLEMENTATIONS:
        assert module.msgpack_u32(text) == struct.pack(f"={count}I", *([300] * count))


@given(st.binary(max_size=60))
def test_whatever_comes_both_say_the_same(text: bytes) -> None:
    assert _scan.msgpack_u32(text) == reference.msgpack_u32(text)
    assert _scan.msgpack_u64(text) == reference.msgpack_u64(text)


@pytest.mark.parametrize(
    "text",
    [
        b"",
        msgspec.msgpack.encode(5),
        msgspec.msgpack.encode([1, True]),
        msgspec.msgpack.encode([1.0]),
        msgspec.msgpack.encode([[1, 2]]),
        msgspec.msgpack.encode([b"x"]),
        msgspec.msgpack.encode([1, 2, 3])[:-1],
        msgspec.msgpack.encode([1, 2, 3]) + b"\x01",
        b"\xdd\xff\xff\xff\xff\x01",
    ],
)
def test_anything_else_is_none(text: bytes) -> None:
    for module in IMPLEMENTATIONS:
        assert module.msgpack_u32(text) is None
        assert module.msgpack_u64(text) is None


@pytest.mark.parametrize("count", [0, 1, 15, 16, 65_536, 65_537])
def test_a_list_of_nulls_alone_is_read_in_a_batch(count: int) -> None:
    frame = [1.5, [{"a": [None] * count, "b": [*[None] * count, 1]}, ["t", 1, [None] * count]], 0]
    at_s, (by_name, by_place), rank = _scan.msgpack_batch(msgspec.msgpack.encode(frame), 2)
    assert (at_s, rank) == (1.5, 0)
    nulls, mixed = by_name["a"], by_name["b"]
    if count <= 65_536:
        assert nulls == by_place[2] == (None,) * count
    else:
        assert isinstance(nulls, msgspec.Raw)
    assert msgspec.msgpack.decode(mixed) == [*[None] * count, 1]
    broken = msgspec.msgpack.encode([1.5, [["t", [None] * count]]])[:-1]
    assert _scan.msgpack_batch(broken, 2) is None
