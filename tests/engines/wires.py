"""Events as each producer writes them, in every format that has been sent."""

from collections.abc import Callable
from typing import Any

import msgspec

Wire = dict[str, Any]


def packed(*events: Any, at_s: float = 1.5, rank: int | None = 0) -> bytes:
    """A batch of an engine; without a rank, as where it is omitted."""
    return msgspec.msgpack.encode([at_s, list(events), *([] if rank is None else [rank])])


def stored(hashes: Any, **fields: Any) -> Wire:
    """A map, as current engines send it, with tokens of its own for each block."""
    block_size = fields.pop("block_size", 2)
    tokens = list(range(len(hashes or ()) * block_size))
    return {
        "type": "BlockStored",
        "block_hashes": hashes,
        "parent_block_hash": None,
        "token_ids": tokens,
        "block_size": block_size,
        "lora_id": None,
        "medium": "GPU",
        "lora_name": None,
        **fields,
    }


def removed(hashes: Any, **fields: Any) -> Wire:
    return {"type": "BlockRemoved", "block_hashes": hashes, "medium": "GPU", **fields}


CLEARED: Wire = {"type": "AllBlocksCleared"}

_PLACES = {
    "BlockStored": (
        "block_hashes", "parent_block_hash", "token_ids", "block_size", "lora_id", "medium",
        "lora_name", "extra_keys", "group_idx", "kv_cache_spec_kind",
        "kv_cache_spec_sliding_window",
    ),
    "BlockRemoved": ("block_hashes", "medium", "group_idx"),
    "AllBlocksCleared": (),
}  # fmt: skip


def as_array(event: Wire, *, places: int | None = None) -> list[Any]:
    """As engines of before mid-2026 send it; by default with all places that say anything."""
    names = _PLACES[event["type"]]
    if places is None:
        places = max(
            (n + 1 for n, name in enumerate(names) if event.get(name) is not None), default=0
        )
    return [event["type"], *(event.get(name) for name in names[:places])]


def as_salted_array(event: Wire) -> list[Any]:
    """As SGLang sent it for a while: a map where others have the adapter's name."""
    return [*as_array(event, places=6), {"cache_salt": event["cache_salt"]}]


def as_envelope(event: Wire, number: int = 7) -> Wire:
    """As stores send it by the KV events RFC."""
    kinds = {"BlockStored": "stored", "BlockRemoved": "removed", "AllBlocksCleared": "cleared"}
    envelope = {
        "event_id": number,
        "timestamp": 1_500,
        "event_type": kinds[event["type"]],
        "model_name": "m",
        "block_size": event.get("block_size"),
        "additional_salt": "",
        "lora_name": event.get("lora_name"),
        "tenant_id": "default",
        "backend_id": "b",
        "medium": event.get("medium"),
        "dp_rank": 0,
    }
    if event["type"] != "AllBlocksCleared":
        envelope["seq_hashes"] = event["block_hashes"]
    if event["type"] == "BlockStored":
        envelope |= {"parent_hash": event["parent_block_hash"], "token_ids": event["token_ids"]}
    return envelope


Form = Callable[[Wire], Any]
