"""What an engine says of its cache, in one form for every wire format."""

from enum import StrEnum
from typing import Final

from msgspec import Struct

# An engine's own name of a block: the low 64 bits of its hash, unsigned, or the hash itself. A
# name for removal and for queries by hash; never an identity, two blocks may have the same.
EngineHash = int | bytes

# Where vLLM's own pool is, on whatever device it runs; also meant by events without a medium.
ENGINE_POOL: Final = "gpu"


class Locality(StrEnum):
    """Whether a block in shared storage is this engine's own."""

    LOCAL = "local"
    REMOTE = "remote"


class Stored(Struct, frozen=True, kw_only=True):
    """Blocks that are there now, each the child of the one before it."""

    hashes: tuple[EngineHash, ...]
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


class Removed(Struct, frozen=True, kw_only=True):
    """Blocks that are no more at this medium."""

    hashes: tuple[EngineHash, ...]
    medium: str = ENGINE_POOL
    group: int = 0
    locality: Locality | None = None


class Cleared(Struct, frozen=True, kw_only=True):
    """Nothing is there any more; at one medium where it names one."""

    medium: str | None = None


Event = Stored | Removed | Cleared


class Batch(Struct, frozen=True, kw_only=True):
    """The events of one frame, in their order, and what of it was passed over."""

    # Seconds since the epoch by the engine's clock; 0.0 where it says nothing.
    at_s: float
    events: tuple[Event, ...]
    dp_rank: int | None = None
    # Event types that nobody here knows, and fields, with how often each was met.
    skipped_types: dict[str, int]
    unknown_fields: dict[str, int]
