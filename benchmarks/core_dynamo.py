"""Dynamo's `RadixTree` as its wheel has it: `python -m benchmarks.core_dynamo CORE`.

Its argument is a list of hashes of single blocks; a list is also what its hash function is quicker
with than with a buffer.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import msgspec
import orjson
from dynamo._core import RadixTree, compute_block_hash_for_seq

from benchmarks import core_work as work
from benchmarks.core_child import serve
from benchmarks.core_frames import frames, with_tokens

Told = tuple[int, int | None, list[int], list[int]]


def event(number: int, parent: int | None, names: list[int], hashes: list[int]) -> bytes:
    blocks = [
        {"block_hash": name, "tokens_hash": tokens_hash}
        for name, tokens_hash in zip(names, hashes, strict=True)
    ]
    stored = {"parent_hash": parent, "blocks": blocks}
    return orjson.dumps({"event_id": number, "data": {"stored": stored}, "dp_rank": 0})


class Dynamo:
    forms = ("list", "tokens")
    only_best = False

    def __init__(self) -> None:
        self.fresh()

    def fresh(self) -> None:
        self.tree = RadixTree()

    def prepare(self, requests: Sequence[work.Request], block_tokens: int, how: str) -> Any:
        made = frames if how == "wire" else _events
        return how, block_tokens, [each for one in requests for each in made(one, block_tokens)]

    def apply(self, prepared: Any) -> None:
        how, block_tokens, stores = prepared
        apply = self.tree.apply_event
        if how == "keys":
            for worker, text in stores:
                apply(worker, text)
            return
        decode = msgspec.msgpack.Decoder().decode
        for number, (worker, frame) in enumerate(stores):
            for told in decode(frame)[1]:
                hashes = compute_block_hash_for_seq(told["token_ids"], block_tokens)
                apply(
                    worker,
                    event(number, told["parent_block_hash"], told["block_hashes"], hashes),
                )

    def question(self, query: work.Query, block_tokens: int, form: str) -> Any:
        tokens = work.chain_tokens(query.chain, block_tokens).tolist()
        return tokens if form == "tokens" else compute_block_hash_for_seq(tokens, block_tokens)

    def again(self, question: Any) -> Any:
        return list(question)

    def ask(self, form: str) -> Callable[[Any], Any]:
        find = self.tree.find_matches
        if form == "tokens":
            return lambda tokens: find(compute_block_hash_for_seq(tokens, work.BLOCK_TOKENS))
        return find

    def answer(self, found: Any) -> dict[int, int]:
        return {worker: blocks for (worker, _), blocks in found.scores.items()}

    def allocated(self) -> int:
        return 0  # it does not say


def _events(request: work.Request, block_tokens: int) -> Iterator[tuple[int, bytes]]:
    for number, (worker, names, tokens, parent) in enumerate(with_tokens(request, block_tokens)):
        hashes = compute_block_hash_for_seq(tokens.tolist(), block_tokens)
        yield worker, event(number, parent, names.tolist(), hashes)


if __name__ == "__main__":
    serve(Dynamo)
