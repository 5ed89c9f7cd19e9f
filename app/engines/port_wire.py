"""What the writer of the index and its readers say to each other over their socket. Pure.

A message is its length (4 bytes, little-endian) and msgpack. The first thing that a reader gets is
`HELLO` with the descriptor of the index's memory beside it.
"""

from asyncio import IncompleteReadError, StreamReader
from datetime import datetime
from typing import Final

import msgspec

from app.engines.registration import EngineKey, EngineSpec
from app.engines.shelves import Group, Lane
from app.engines.totals import EngineTotals
from app.engines.views import ViewState
from app.errors import ErrorCode, FieldError, NexusError

# The digit is the version of what follows.
HELLO: Final = b"NKVPORT1"
MAX_MESSAGE_BYTES: Final = 32 * 1024 * 1024
# Requests of one reader that wait for their answer.
MAX_OUTSTANDING: Final = 256
# What a reader knows holds for so long after the writer sent it, by the machine's monotonic clock.
LEASE_US: Final = 2_000_000
# The writer says something at least so often.
BEAT_S: Final = 0.1
# A write waits so long for a reader that has not seen it; then that one is cut off.
SEEN_S: Final = 1.0
_LENGTH_BYTES: Final = 4


class WireFaultError(Exception):
    """The other side does not keep to this; the connection ends."""


class Pulse(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """How far an engine's frames were taken, and when it was heard; changes with every frame."""

    instance_id: str
    dp_rank: int
    last_sequence: int | None
    last_frame_at_us: int | None
    heard_at_us: int | None
    lag_us: int | None


class Facts(msgspec.Struct, frozen=True, array_like=True):
    """A registered engine, as far as queries read it."""

    spec: EngineSpec
    registered_at: datetime
    epoch: int
    state: ViewState
    groups: dict[int, Group]
    lanes: list[Lane]
    pulse: Pulse


# ---- of the writer


class Catalogue(msgspec.Struct, frozen=True, tag="catalogue"):
    """Engines that changed, each whole. To be acknowledged with `Seen`.

    `begins`: nothing that was known before holds. `complete`: more of it does not follow.
    """

    number: int
    sent_us: int
    begins: bool
    complete: bool
    facts: list[Facts]
    gone: list[EngineKey]


class SentCatalogue(msgspec.Struct, frozen=True, tag="catalogue"):
    """The same with facts that were encoded once for all readers."""

    number: int
    sent_us: int
    begins: bool
    complete: bool
    facts: list[msgspec.Raw]
    gone: list[EngineKey]


class Beat(msgspec.Struct, frozen=True, tag="beat"):
    """The writer is there. `pulses`: of the engines that said something since the last one."""

    sent_us: int
    pulses: list[Pulse]


class Sums(msgspec.Struct, frozen=True, tag="sums"):
    """What is counted over all engines, for metrics; `readers_cut` were too slow."""

    counts: dict[str, int]
    totals: EngineTotals
    replays: dict[str, int]
    readers_cut: int


class Refusal(msgspec.Struct, frozen=True):
    """A NexusError on its way."""

    code: ErrorCode
    message: str
    errors: list[FieldError]
    internal: str | None

    @classmethod
    def of(cls, error: NexusError) -> "Refusal":
        return cls(error.code, error.message, list(error.errors), error.internal)

    def error(self) -> NexusError:
        return NexusError(self.code, self.message, errors=self.errors, internal=self.internal)


# In msgpack.
_NIL: Final = msgspec.Raw(b"\xc0")


class Answer(msgspec.Struct, frozen=True, tag="answer"):
    """To the request of that number: what it returned, or why it was refused."""

    request: int
    done: msgspec.Raw = _NIL
    refused: Refusal | None = None


# ---- of a reader


class Seen(msgspec.Struct, frozen=True, tag="seen"):
    """Queries are answered by the catalogue of that number."""

    number: int


class Register(msgspec.Struct, frozen=True, tag="register"):
    """Answered with `Registered`."""

    request: int
    spec: EngineSpec
    replace: bool
    # Those that the caller may use, None for all; likewise below.
    tenants: frozenset[str] | None


class Forget(msgspec.Struct, frozen=True, tag="forget"):
    """Answered with whether there was such an engine."""

    request: int
    key: EngineKey
    tenants: frozenset[str] | None


class Push(msgspec.Struct, frozen=True, tag="push"):
    """Answered with `Pushed`."""

    request: int
    key: EngineKey
    number: int
    payload: bytes
    lost: bool
    tenants: frozenset[str] | None


class Look(msgspec.Struct, frozen=True, tag="look"):
    """Answered with an `EngineStatus` for each key that is registered."""

    request: int
    keys: list[EngineKey]


Request = Register | Forget | Push | Look
FromReader = Seen | Register | Forget | Push | Look
FromWriter = Catalogue | Beat | Sums | Answer
_Message = FromReader | FromWriter | SentCatalogue

_encoder = msgspec.msgpack.Encoder()
encode_value = _encoder.encode
read_of_reader = msgspec.msgpack.Decoder(FromReader).decode
read_of_writer = msgspec.msgpack.Decoder(FromWriter).decode


def framed(message: _Message) -> bytes:
    """As it is sent. Raises OVERLOADED for a message beyond the limit."""
    encoded = encode_value(message)
    if len(encoded) > MAX_MESSAGE_BYTES:
        raise NexusError(
            ErrorCode.OVERLOADED,
            "This is more than the index's processes hand over at once; ask for less",
            internal=f"a message of {len(encoded)} bytes",
        )
    return len(encoded).to_bytes(_LENGTH_BYTES, "little") + encoded


async def next_frame(stream: StreamReader) -> bytes | None:
    """The next message, None at the end. Raises WireFaultError, OSError."""
    try:
        head = await stream.readexactly(_LENGTH_BYTES)
        length = int.from_bytes(head, "little")
        if length > MAX_MESSAGE_BYTES:
            raise WireFaultError(f"a message of {length} bytes")
        return await stream.readexactly(length)
    except IncompleteReadError:
        return None
