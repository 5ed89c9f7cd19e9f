"""Frames of the spool, compiled and plain side by side."""

import mmap

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nexuskv_core import _frames, reference

BOTH = [_frames, reference]
SEQ = st.integers(0, 2**64 - 1)
PAYLOAD = st.binary(max_size=70)


@given(seq=SEQ, payload=PAYLOAD, place=st.integers(0, 3))
def test_both_write_the_same_bytes(seq, payload, place):
    compiled, plain = bytearray(b"\xff" * 128), bytearray(b"\xff" * 128)
    end = _frames.write_frame(compiled, 8 * place, seq, payload)
    assert end == reference.write_frame(plain, 8 * place, seq, payload)
    assert compiled == plain
    assert end % 8 == 0
    assert compiled[8 * place : 8 * place + 4] == len(payload).to_bytes(4, "little")
    assert compiled[8 * place + 8 : 8 * place + 16] == seq.to_bytes(8, "little")
    assert compiled[8 * place + 16 :].startswith(payload)
    # What is before it and behind it is not touched.
    assert compiled[: 8 * place] == b"\xff" * 8 * place
    assert compiled[8 * place + 16 + len(payload) :] == b"\xff" * (
        128 - 8 * place - 16 - len(payload)
    )


@given(seq=SEQ, payload=st.binary(min_size=1, max_size=70), bit=st.integers(0, 10_000))
def test_a_bit_that_flips_changes_the_checksum(seq, payload, bit):
    changed = bytearray(payload)
    changed[bit // 8 % len(payload)] ^= 1 << bit % 8
    check = _frames.frame_check(payload, seq)
    assert check == reference.frame_check(payload, seq)
    assert check != _frames.frame_check(bytes(changed), seq)
    assert check != _frames.frame_check(payload, seq ^ 1 << bit % 64)
    assert check != _frames.frame_check(payload + b"\0", seq)


@pytest.mark.parametrize("module", BOTH)
@pytest.mark.parametrize("at", [-8, 4, 1024 - 24, 1024, 1 << 40])
def test_a_frame_without_room_is_refused(module, at):
    data = bytearray(1024)
    with pytest.raises(ValueError, match="no room"):
        module.write_frame(data, at, 1, b"123456789")
    assert not any(data)


@pytest.mark.parametrize("module", BOTH)
def test_the_last_place_has_room(module):
    data = bytearray(1024)
    assert module.write_frame(data, 1024 - 32, 1, b"123456789abcdefg") == 1024


@pytest.mark.parametrize("module", BOTH)
def test_pages_that_are_made_ready_keep_what_is_in_them(module, tmp_path):
    path = tmp_path / "pages"
    path.write_bytes(b"x" * 40_000)
    with path.open("r+b") as opened:
        data = mmap.mmap(opened.fileno(), 40_000)
    for at, length in (
        (0, 40_000),
        (5, 1),
        (39_999, 1),
        (0, 0),
        (-5, 3),
        (40_000, 9),
        (1, 1 << 40),
    ):
        assert module.make_writable(data, at, length) in (0, 22)
    assert data[:] == b"x" * 40_000
    data.close()
