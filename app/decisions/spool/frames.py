"""Frames of a segment: how a row lies in its bytes, and how one that is not whole is told.

A frame is its length (u32), a checksum (u32), its number in the writer's sequence (u64), and the
payload, padded to 8 bytes; all little-endian. The length is written last: where it is 0, nothing
has been written yet. The checksum covers the number and the payload.
"""

import mmap
import struct
from typing import Final, NamedTuple

from nexuskv_core import frame_check

_HEAD: Final = struct.Struct("<IIQ")
_LENGTH: Final = struct.Struct("<I")
HEAD_BYTES: Final = _HEAD.size
# In place of a length: nothing follows in this segment.
SEALED: Final = 0xFFFF_FFFF


class Frame(NamedTuple):
    """One row, and where the next frame begins."""

    seq: int
    payload: bytes
    end: int


class Torn(NamedTuple):
    """Bytes that are no whole frame: still being written, or left by a process that died."""


def frame_bytes(payload_bytes: int) -> int:
    return HEAD_BYTES + (payload_bytes + 7 & ~7)


def seal(into: mmap.mmap, at: int) -> None:
    """Say that nothing follows; there is always room for it."""
    _LENGTH.pack_into(into, at, SEALED)


def read_frame(data: mmap.mmap | bytes, at: int) -> Frame | Torn | None:
    """The frame at a place; None where nothing was written yet, also at a seal.

    A whole segment has room for its seal: where that is not, its end has been cut off.
    """
    if at + HEAD_BYTES > len(data):
        return Torn()
    length, checksum, seq = _HEAD.unpack_from(data, at)
    if length in (0, SEALED):
        # What was never written, and a seal, have no number: otherwise the length lies.
        return Torn() if seq else None
    start = at + HEAD_BYTES
    if start + length > len(data):
        return Torn()
    payload = data[start : start + length]
    if frame_check(payload, seq) != checksum:
        return Torn()
    return Frame(seq, payload, start + (length + 7 & ~7))


def is_sealed(data: mmap.mmap | bytes, at: int) -> bool:
    """Whether the writer has gone on to another segment."""
    if at + HEAD_BYTES > len(data):
        return False
    length, _, seq = _HEAD.unpack_from(data, at)
    return bool(length == SEALED and not seq)
