"""The stores of the work as engines tell them: names, tokens, and vLLM's frames of both."""

from array import array
from collections.abc import Iterator
from typing import Any

import msgspec

from benchmarks import core_work as work

Told = tuple[int, array, array, int | None]


def stored(request: work.Request) -> Iterator[tuple[work.Store, array, int | None]]:
    """(store, names of its blocks, name of their parent) of each."""
    numbers = work.chain_blocks(request.chain)
    for store in request.stores:
        names = work.names_of(numbers[max(store.begin - 1, 0) : store.end])
        yield (store, names[1:], names[0]) if store.begin else (store, names, None)


def with_tokens(request: work.Request, block_tokens: int) -> Iterator[Told]:
    """(worker, names, tokens, name of the parent) of each."""
    if request.stores:
        tokens = work.chain_tokens(request.chain, block_tokens)
        for store, names, parent in stored(request):
            part = tokens[store.begin * block_tokens : store.end * block_tokens]
            yield store.worker, names, part, parent


def frames(request: work.Request, block_tokens: int) -> Iterator[tuple[int, bytes]]:
    """(worker, frame) as vLLM 0.32 sends it: an event is a map, defaults are left out."""
    encode = msgspec.msgpack.Encoder().encode
    for worker, names, tokens, parent in with_tokens(request, block_tokens):
        yield worker, encode(frame_content(names, tokens, parent, block_tokens))


def frame_content(names: array, tokens: array, parent: int | None, block_tokens: int) -> list[Any]:
    event = {
        "type": "BlockStored",
        "block_hashes": names.tolist(),
        "parent_block_hash": parent,
        "token_ids": tokens.tolist(),
        "block_size": block_tokens,
        "lora_id": None,
        "medium": "GPU",
        "lora_name": None,
        "extra_keys": [None] * len(names),
        "group_idx": 0,
        "kv_cache_spec_kind": "full_attention",
    }
    return [1_790_000_000.0, [event], 0]
