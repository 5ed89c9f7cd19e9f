"""The three events, read from the fields that any of the formats has for them."""

from collections.abc import Sequence
from typing import Final

from app.engines.events import (
    NOWHERE,
    Cleared,
    EngineHash,
    Locality,
    Origin,
    Removed,
    Stored,
)
from app.engines.fields import (
    MAX_TEXT_CHARS,
    TOKEN_BYTES,
    U64,
    Fields,
    WireError,
    beside,
    engine_hash,
    objects,
)

MAX_BLOCK_TOKENS: Final = 1 << 20
MAX_GROUP: Final = 1 << 16
MAX_WINDOW_TOKENS: Final = 1 << 40
# Known, and of no use here: who caused it, and what it costs.
_NOT_USED: Final = (
    "type", "event_type", "timestamp", "session_id", "ownership", "source_kind", "object_key",
)  # fmt: skip
# What an envelope says when it names no tenant.
_NO_TENANT: Final = "default"
MAX_DP_RANK: Final = 1 << 31


def stored(fields: Fields) -> Stored:
    """Without its tokens where their number is not that of the blocks. Raises WireError."""
    fields.value(*_NOT_USED)
    hashes = fields.hashes("block_hashes", "seq_hashes")
    tokens, width = fields.tokens("token_ids")
    block_size = fields.number("block_size", 0, MAX_BLOCK_TOKENS) or 0
    extra_keys = fields.extra_keys()
    told = all_told(len(hashes), tokens, block_size * width, extra_keys)
    unclear = False
    infos = fields.value("block_mm_infos")
    if infos is not None and told:
        inside = objects(infos, len(hashes))
        unclear = inside is None
        extra_keys = beside(extra_keys, inside) if inside is not None else None
    return Stored(
        hashes=hashes,
        parent=_parent(fields),
        tokens=tokens if told else b"",
        block_size=block_size,
        token_width=width,
        medium=fields.medium(),
        group=fields.number("group_idx", 0, MAX_GROUP) or 0,
        lora=_lora(fields),
        cache_salt=fields.text("cache_salt"),
        extra_keys=extra_keys if told else None,
        spec_kind=fields.text("kv_cache_spec_kind"),
        window_tokens=fields.number("kv_cache_spec_sliding_window", 0, MAX_WINDOW_TOKENS),
        locality=_locality(fields),
        base_block=fields.number("base_block_idx", 0, 1 << 40),
        unclear=unclear,
    )


def all_told(
    blocks: int, tokens: bytes, block_tokens: int, extra_keys: Sequence[object] | None
) -> bool:
    """Whether tokens and extra keys are those of the blocks.

    Offloading connectors give their own block size. The names are there all the same; what the
    blocks hold is not known from such an event.
    """
    return len(tokens) == TOKEN_BYTES * blocks * block_tokens and (
        extra_keys is None or len(extra_keys) == blocks
    )


def removed(fields: Fields) -> Removed:
    """Raises WireError."""
    fields.value(*_NOT_USED, "base_block_idx", "block_size", "lora_name")
    fields.value("kv_cache_spec_kind", "kv_cache_spec_sliding_window")
    return Removed(
        hashes=fields.hashes("block_hashes", "seq_hashes"),
        medium=fields.medium(),
        group=fields.number("group_idx", 0, MAX_GROUP) or 0,
        locality=_locality(fields),
    )


def cleared(fields: Fields) -> Cleared:
    """Raises WireError."""
    fields.value(*_NOT_USED, "block_size", "lora_name")
    medium = fields.text("medium")
    return Cleared(medium=None if medium is None else medium.lower())


def origin(fields: Fields) -> Origin | None:
    """Whose event it says that it is, None where it says nothing of it. Raises WireError."""
    backend = fields.value("backend_id")
    if backend is not None and (isinstance(backend, bool) or not isinstance(backend, (int, str))):
        raise WireError("backend_id is a text or an integer")
    tenant = fields.text("tenant_id")
    event_id = fields.number("event_id", 0, U64 - 1)
    found = Origin(
        event_id=event_id,
        lora=None if event_id is None else fields.text("lora_name"),
        block_size=None if event_id is None else fields.number("block_size", 0, MAX_BLOCK_TOKENS),
        dp_rank=fields.number("dp_rank", 0, MAX_DP_RANK),
        model=fields.text("model_name") or None,
        tenant=None if tenant in ("", _NO_TENANT) else tenant,
        additional_salt=fields.text("additional_salt", "additionalsalt") or None,
        backend=None if backend is None else str(backend)[:MAX_TEXT_CHARS] or None,
    )
    return None if found == NOWHERE else found


def _parent(fields: Fields) -> EngineHash | None:
    found = fields.value("parent_block_hash", "parent_hash")
    return None if found is None else engine_hash(found)


def _lora(fields: Fields) -> str | None:
    """The adapter's name; its number where an older engine sends no name."""
    number = fields.value("lora_id")
    name = fields.text("lora_name")
    if name is not None or number is None:
        return name
    if isinstance(number, bool) or not isinstance(number, (int, str)):
        raise WireError("lora_id is an integer")
    return str(number)


def _locality(fields: Fields) -> Locality | None:
    found = fields.text("locality")
    try:
        return None if found is None else Locality(found.lower())
    except ValueError:
        return None
