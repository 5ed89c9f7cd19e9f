"""The framing of the data port: how one worker asks another for a payload's bytes.

One fetch at a time on a connection. The destination sends a frame with a `FetchRequest`; the
source answers with a frame of `FetchAnswer` and, when that says OK, exactly `payload_bytes` raw
bytes, then a trailer that repeats the checksum, so that a byte too many or too few is seen without
waiting for the end of the connection. The destination confirms with one byte: until then the source
keeps the payload pinned, because `sendfile` hands the kernel pages, not copies of them. After that
the next request may follow. Either side may close a connection that rests; a source also closes it
after an answer that is not OK. Who asked on a connection that had rested, and saw it end before the
first byte of an answer, asks again on a new one.

A frame is: magic, version, three zero bytes, the header's length, and the header as JSON.
"""

import struct
from enum import StrEnum
from typing import Annotated, Final, TypeVar

import msgspec
from msgspec import Meta, Struct

from app.contract.limits import U63, Detail
from app.transfer.tokens import MAX_TOKEN_CHARS
from app.transfer.wire import Checksum, PayloadId, SinkId, WorkerName

MAX_HEADER_BYTES: Final = 16 * 1024
CONFIRMATION: Final = b"\x06"

_MAGIC: Final = b"NKVD"
_VERSION: Final = 2
_PREFIX: Final = struct.Struct(">4sB3xI")
_TRAILER: Final = struct.Struct(">4s16s")
_TRAILER_MAGIC: Final = b"NKVE"

PREFIX_BYTES: Final = _PREFIX.size
TRAILER_BYTES: Final = _TRAILER.size

T = TypeVar("T")


class FrameError(ValueError):
    """What arrived is no frame of this protocol; the message says why."""


class NoFrameError(FrameError):
    """The connection ended where a frame would have begun."""


class FetchStatus(StrEnum):
    """What the source answers. Bytes follow only `ok`."""

    OK = "ok"
    UNAUTHORIZED = "unauthorized"
    MISSING = "missing"
    SIZE_MISMATCH = "size_mismatch"
    CHECKSUM_MISMATCH = "checksum_mismatch"
    BUSY = "busy"
    BAD_REQUEST = "bad_request"


class FetchRequest(Struct, frozen=True, forbid_unknown_fields=True):
    """One payload, please, for `target_worker`: into a sink of it, or to be a payload there.

    The token is for all of these. A stated size or checksum that differs is refused before any
    byte.
    """

    token: Annotated[str, Meta(max_length=MAX_TOKEN_CHARS)]
    payload_id: PayloadId
    target_worker: WorkerName
    sink_id: SinkId | None = None
    target_payload_id: PayloadId | None = None
    payload_bytes: U63 | None = None
    checksum: Checksum | None = None


class FetchAnswer(Struct, frozen=True, forbid_unknown_fields=True):
    """What follows, or why nothing does."""

    status: FetchStatus
    payload_bytes: U63 = 0
    checksum: Checksum | None = None
    detail: Detail | None = None


def frame(header: FetchRequest | FetchAnswer) -> bytes:
    """The header as it goes over the wire."""
    body = msgspec.json.encode(header)
    return _PREFIX.pack(_MAGIC, _VERSION, len(body)) + body


def header_bytes(prefix: bytes) -> int:
    """The length of the header that follows a prefix of PREFIX_BYTES. Raises FrameError."""
    try:
        magic, version, length = _PREFIX.unpack(prefix)
    except struct.error:
        raise FrameError("the connection ended inside a frame") from None
    if magic != _MAGIC:
        raise FrameError("the peer does not speak the data port's protocol")
    if version != _VERSION:
        raise FrameError(f"the peer speaks version {version}, this is version {_VERSION}")
    if length > MAX_HEADER_BYTES:
        raise FrameError(f"a header of {length} bytes; at most {MAX_HEADER_BYTES}")
    return int(length)


def parse_header(body: bytes, kind: type[T]) -> T:
    """The header of a frame. Raises FrameError."""
    try:
        return msgspec.json.decode(body, type=kind)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        raise FrameError("the header is not a valid one") from None


def trailer(checksum: str) -> bytes:
    """What follows the last byte."""
    return _TRAILER.pack(_TRAILER_MAGIC, bytes.fromhex(checksum))


def parse_trailer(found: bytes) -> str | None:
    """The checksum that the source repeats; None when these bytes are no trailer."""
    if len(found) != TRAILER_BYTES:
        return None
    magic, digest = _TRAILER.unpack(found)
    return digest.hex() if magic == _TRAILER_MAGIC else None
