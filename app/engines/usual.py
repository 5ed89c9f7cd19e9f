"""Events as engines of today send them, read at once.

What takes a step for each field elsewhere is one conversion here. Any other event, and any that may
have to be refused, is left to be read field by field.
"""

from collections.abc import Mapping
from typing import Annotated, Any, Final

import msgspec
from msgspec import Meta, Struct

from app.engines.events import ENGINE_POOL, PackedHashes, Removed, Stored
from app.engines.fields import (
    MAX_HASHES,
    MAX_TEXT_CHARS,
    MAX_TOKENS,
    U64,
    entries,
    little_endian,
    plain,
)
from app.engines.variants import MAX_BLOCK_TOKENS, MAX_GROUP, MAX_WINDOW_TOKENS, all_told

_Text = Annotated[str, Meta(max_length=MAX_TEXT_CHARS)] | None
_Group = Annotated[int, Meta(ge=0, le=MAX_GROUP)] | None


class _Stored(Struct, tag_field="type", tag="BlockStored", forbid_unknown_fields=True, gc=False):
    block_hashes: Any
    token_ids: Any
    parent_block_hash: int | None = None
    block_size: Annotated[int, Meta(ge=0, le=MAX_BLOCK_TOKENS)] | None = None
    # An older engine's name of an adapter.
    lora_id: None = None
    medium: _Text = None
    lora_name: _Text = None
    extra_keys: Any = None
    # What multimodal blocks have in them is read field by field.
    block_mm_infos: None = None
    group_idx: _Group = None
    kv_cache_spec_kind: _Text = None
    kv_cache_spec_sliding_window: Annotated[int, Meta(ge=0, le=MAX_WINDOW_TOKENS)] | None = None
    cache_salt: _Text = None


class _Removed(Struct, tag_field="type", tag="BlockRemoved", forbid_unknown_fields=True, gc=False):
    block_hashes: Any
    medium: _Text = None
    group_idx: _Group = None


# A union of them would be made anew with each conversion.
_KINDS: Final[dict[object, type[_Stored | _Removed]]] = {
    "BlockStored": _Stored, "BlockRemoved": _Removed,
}  # fmt: skip


def usual(named: Mapping[Any, Any]) -> Stored | Removed | None:
    """None for an event that is to be read field by field. Raises WireError for its extra keys."""
    hashes = named.get("block_hashes")
    if not isinstance(hashes, memoryview) or len(hashes) > MAX_HASHES:
        return None
    kind = named.get("type")
    form = _KINDS.get(kind) if isinstance(kind, str) else None
    if form is None:
        return None
    try:
        read = msgspec.convert(named, form)
    except msgspec.ValidationError:
        return None
    if isinstance(read, _Removed):
        return Removed(
            hashes=PackedHashes(hashes),
            medium=(read.medium or ENGINE_POOL).lower(),
            group=read.group_idx or 0,
        )
    return _stored(read, hashes)


def _stored(read: _Stored, hashes: "memoryview[int]") -> Stored | None:
    numbers = read.token_ids
    if not isinstance(numbers, memoryview) or len(numbers) > MAX_TOKENS:
        return None
    tokens = little_endian(numbers)
    block_size = read.block_size or 0
    extra_keys = read.extra_keys
    # A tuple is of nulls alone.
    if not isinstance(extra_keys, tuple) or len(extra_keys) > MAX_HASHES:
        extra_keys = entries(plain(extra_keys))
    told = all_told(len(hashes), tokens, block_size, extra_keys)
    parent = read.parent_block_hash
    return Stored(
        hashes=PackedHashes(hashes),
        parent=None if parent is None else parent % U64,
        tokens=tokens if told else b"",
        block_size=block_size,
        medium=(read.medium or ENGINE_POOL).lower(),
        group=read.group_idx or 0,
        lora=read.lora_name,
        cache_salt=read.cache_salt,
        extra_keys=extra_keys if told else None,
        spec_kind=read.kv_cache_spec_kind,
        window_tokens=read.kv_cache_spec_sliding_window,
    )
