"""Our side of `benchmarks.core`: `python -m benchmarks.core_nexus CORE`."""

from collections.abc import Callable, Sequence
from typing import Any

from app.engines.events import Stored
from app.engines.spaces import names_of
from app.engines.wire import decode_batch
from benchmarks import core_work as work
from benchmarks.core_child import serve
from benchmarks.core_frames import frames, stored, with_tokens
from nexuskv_core import BlockIndex, chain

SCOPE_KEY = bytes(range(16))
KEY_BYTES = 16


class Nexus:
    forms = ("packed", "list", "tokens", "batch")
    only_best = False

    def __init__(self, *, shared: bool = False) -> None:
        self.shared = shared
        self.fresh()

    def fresh(self) -> None:
        self.index = BlockIndex(shared=True) if self.shared else BlockIndex()
        self.holders = [
            self.index.open_holder(self.index.open_stream()) for _ in range(work.WORKERS)
        ]
        self.workers = {holder: worker for worker, holder in enumerate(self.holders)}

    def prepare(self, requests: Sequence[work.Request], block_tokens: int, how: str) -> Any:
        made = {"keys": _with_keys, "tokens": with_tokens, "wire": frames}[how]
        return how, block_tokens, [each for one in requests for each in made(one, block_tokens)]

    def apply(self, prepared: Any) -> None:
        how, block_tokens, stores = prepared
        index, holders = self.index, self.holders
        if how == "keys":
            for worker, names, keys, parent in stores:
                if index.store(holders[worker], names, keys, parent=parent) is None:
                    raise LookupError("a parent is not there")
        elif how == "tokens":
            for worker, names, tokens, parent in stores:
                index.store_tokens(
                    holders[worker], SCOPE_KEY, names, tokens, block_tokens, parent=parent
                )
        else:
            for worker, frame in stores:
                for event in decode_batch(frame).events:
                    if isinstance(event, Stored):
                        index.store_tokens(
                            holders[worker],
                            SCOPE_KEY,
                            names_of(event.hashes),
                            memoryview(event.tokens).cast("I"),
                            event.block_size,
                            parent=event.parent,
                        )

    def question(self, query: work.Query, block_tokens: int, form: str) -> Any:
        tokens = work.chain_tokens(query.chain, block_tokens)
        if form == "tokens":
            return tokens
        keys = chain(SCOPE_KEY, tokens, block_tokens)
        if form == "list":
            return [keys[at : at + KEY_BYTES] for at in range(0, len(keys), KEY_BYTES)]
        return keys

    def again(self, question: Any) -> Any:
        """Another object with the same content, touched by being made."""
        if isinstance(question, bytes):
            return bytes(memoryview(question))
        return question[:]

    def ask(self, form: str) -> Callable[[Any], Any]:
        reach = self.index.reach
        if form == "tokens":
            return lambda tokens: reach(chain(SCOPE_KEY, tokens, work.BLOCK_TOKENS))
        return self.index.reach_many if form == "batch" else reach

    def answer(self, found: dict[int, int]) -> dict[int, int]:
        return {self.workers[holder]: blocks for holder, blocks in found.items()}

    def allocated(self) -> int:
        return self.index.stats()["memory_bytes"]


def _with_keys(request: work.Request, block_tokens: int) -> Any:
    if not request.stores:
        return
    keys = chain(SCOPE_KEY, work.chain_tokens(request.chain, block_tokens), block_tokens)
    for store, names, parent in stored(request):
        part = keys[store.begin * KEY_BYTES : store.end * KEY_BYTES]
        yield store.worker, names, part, parent


if __name__ == "__main__":
    serve(Nexus)
