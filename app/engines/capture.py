"""Captures of what a publisher sent: written down frame by frame, read back one at a time.

A file of msgpack objects one after the other: `[received at (seconds), [topic, sequence (8 bytes,
big endian), payload]]`.
"""

from collections.abc import Iterator
from typing import Any, BinaryIO, Final, NamedTuple

import msgpack

from app.engines.wire import MAX_FRAME_BYTES

_SEQUENCE_BYTES: Final = 8
_MAX_TOPIC_BYTES: Final = 4_096
_MAX_RECORD_BYTES: Final = MAX_FRAME_BYTES + _MAX_TOPIC_BYTES + 64


class CaptureError(ValueError):
    """A file that is no capture, or not a whole one; its text says where and why."""


class Frame(NamedTuple):
    """One message of a publisher, as it came."""

    received_s: float
    topic: bytes
    sequence: int
    payload: bytes


def read_capture(file: BinaryIO) -> Iterator[Frame]:
    """The frames in their order. Raises CaptureError, after those before the fault."""
    unpacker = msgpack.Unpacker(
        file,
        max_buffer_size=2 * _MAX_RECORD_BYTES,
        max_bin_len=MAX_FRAME_BYTES,
        max_array_len=3,
        max_map_len=0,
        max_str_len=_MAX_TOPIC_BYTES,
        max_ext_len=0,
    )
    number = 0
    while True:
        at_byte = unpacker.tell()
        try:
            found = unpacker.unpack()
        except msgpack.OutOfData:
            if unpacker.tell() != at_byte or _left(file, at_byte):
                raise CaptureError(_where(number, at_byte, "the file ends within it")) from None
            return
        except (msgpack.UnpackException, ValueError) as error:
            raise CaptureError(_where(number, at_byte, f"{error}")) from error
        frame = _frame(found)
        if frame is None:
            expected = "expected [seconds, [topic, sequence of 8 bytes, payload]]"
            raise CaptureError(_where(number, at_byte, expected))
        yield frame
        number += 1


def _left(file: BinaryIO, at_byte: int) -> bool:
    """Whether the file goes on behind what was read of it."""
    return file.tell() > at_byte


def _frame(found: Any) -> Frame | None:
    match found:
        case [float() | int() as received_s, [topic, bytes() as sequence, bytes() as payload]]:
            if isinstance(topic, str):
                topic = topic.encode()
            if isinstance(topic, bytes) and len(sequence) == _SEQUENCE_BYTES:
                return Frame(float(received_s), topic, int.from_bytes(sequence, "big"), payload)
    return None


def _where(number: int, at_byte: int, what: str) -> str:
    return f"record {number} (byte {at_byte}) cannot be read: {what}"
