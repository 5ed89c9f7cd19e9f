"""What an engine says of its cache, in one form for every wire format."""

from collections.abc import Iterator, Sequence
from enum import StrEnum
from typing import Final, NamedTuple, overload

from msgspec import Struct

# An engine's own name of a block: the low 64 bits of its hash, unsigned, or the hash itself. A
# name for removal and for queries by hash; never an identity, two blocks may have the same.
EngineHash = int | bytes

# Where vLLM's own pool is, on whatever device it runs; also meant by events without a medium.
ENGINE_POOL: Final = "gpu"


class PackedHashes(Sequence[int]):
    """Names that are integers, in a buffer of native u64; as good as the tuple of them."""

    __slots__ = ("packed",)

    def __init__(self, packed: "memoryview[int]") -> None:
        self.packed = packed

    def __len__(self) -> int:
        return len(self.packed)

    def __iter__(self) -> Iterator[int]:
        return iter(self.packed.tolist())

    @overload
    def __getitem__(self, at: int) -> int: ...
    @overload
    def __getitem__(self, at: slice) -> tuple[int, ...]: ...
    def __getitem__(self, at: int | slice) -> int | tuple[int, ...]:
        return tuple(self.packed[at]) if isinstance(at, slice) else self.packed[at]

    def __eq__(self, other: object) -> bool:
        if isinstance(other, PackedHashes):
            return self.packed == other.packed
        return tuple(self) == other

    def __hash__(self) -> int:
        return hash(tuple(self))

    def __repr__(self) -> str:
        return repr(tuple(self))


class Locality(StrEnum):
    """Whether a block in shared storage is this engine's own."""

    LOCAL = "local"
    REMOTE = "remote"


class Stored(Struct, frozen=True, kw_only=True):
    """Blocks that are there now, each the child of the one before it."""

    # A tuple, or packed.
    hashes: Sequence[EngineHash]
    # Of the first block; None where it begins a sequence, or where nothing is said of the blocks.
    parent: EngineHash | None = None
    # Little-endian u32, `len(hashes) * block_size * token_width` of them. Empty where blocks that
    # are known already are at another medium now.
    tokens: bytes = b""
    # In tokens; 0 where there are none.
    block_size: int
    # 2 where a position is a pair of tokens (speculative decoding with EAGLE).
    token_width: int = 1
    medium: str = ENGINE_POOL
    group: int = 0
    lora: str | None = None
    cache_salt: str | None = None
    # As on the wire, a list or None a block: multimodal ids, adapter, salt.
    extra_keys: tuple[tuple[object, ...] | None, ...] | None = None
    spec_kind: str | None = None
    window_tokens: int | None = None
    locality: Locality | None = None
    # Blocks before the first one, where that is said instead of a parent.
    base_block: int | None = None
    # Something but their tokens makes them what they are, and it is not to be understood.
    unclear: bool = False
    # Whose they are, of an engine of several tenants; None where that is left to the salt.
    tenant: str | None = None


class Removed(Struct, frozen=True, kw_only=True):
    """Blocks that are no more at this medium."""

    hashes: Sequence[EngineHash]
    medium: str = ENGINE_POOL
    group: int = 0
    locality: Locality | None = None
    tenant: str | None = None


class Cleared(Struct, frozen=True, kw_only=True):
    """Nothing is there any more; at one medium, or of one tenant, where it names one."""

    medium: str | None = None
    tenant: str | None = None


Event = Stored | Removed | Cleared


class Origin(NamedTuple):
    """Whose event it is, as envelopes say it of each; None of what is not said.

    `event_id` ascends by one from event to event of a stream. What a tenant's name means is the
    registration's to say.
    """

    event_id: int | None = None
    dp_rank: int | None = None
    model: str | None = None
    tenant: str | None = None
    additional_salt: str | None = None
    backend: str | None = None
    # What a stream is of besides; only with `event_id`.
    lora: str | None = None
    block_size: int | None = None


NOWHERE: Final = Origin()


class Batch(Struct, frozen=True, kw_only=True):
    """The events of one frame, in their order, and what of it was passed over."""

    # Seconds since the epoch by the engine's clock; 0.0 where it says nothing.
    at_s: float
    events: tuple[Event, ...]
    dp_rank: int | None = None
    # Event types that nobody here knows, and fields, with how often each was met.
    skipped_types: dict[str, int]
    unknown_fields: dict[str, int]
    # Of each event; empty where none of them says anything of it.
    origins: tuple[Origin, ...] = ()

    def of_another(self, dp_rank: int) -> bool:
        """Whether the frame is another rank's. Where events say it of each, frames are one
        sequence over all ranks: it is the events that are left out.
        """
        return not self.origins and self.dp_rank not in (None, dp_rank)
