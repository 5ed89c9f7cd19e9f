"""SGLang's Rust tree from its wheel, with torch's CPU build: `-m benchmarks.core_sglang CORE`.

It is a tree of one engine, so all workers' chains go into one of them, and of an answer only the
longest reach can be compared. A block is one key (`page_size` 1), and nothing is hashed. Only the
extension is loaded: the package around it wants a GPU's libraries.
"""

import importlib.util
from array import array
from collections.abc import Callable, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

import torch

from benchmarks import core_work as work
from benchmarks.core_child import serve

_I63 = (1 << 63) - 1


def extension() -> ModuleType:
    """The compiled module by its file. Raises ImportError where it does not fit torch."""
    package = importlib.util.find_spec("sglang")
    if package is None or not package.submodule_search_locations:
        raise ImportError("sglang is not installed")
    folder = Path(package.submodule_search_locations[0], "srt/mem_cache/rust_tree_core")
    files = sorted(folder.glob("mem_cache.*.so"))
    if not files:
        raise ImportError("the wheel of this version has no compiled tree")
    found = importlib.util.spec_from_file_location("mem_cache", files[0])
    if found is None or found.loader is None:
        raise ImportError("the compiled tree cannot be loaded")
    module = importlib.util.module_from_spec(found)
    found.loader.exec_module(module)
    return module


class SGLang:
    forms = ("array",)
    only_best = True

    def __init__(self) -> None:
        self.module = extension()
        self.fresh()

    def fresh(self) -> None:
        settings = self.module.TreeCoreInitParamsBinding(
            page_size=1, eviction_policy="lru", device="cpu"
        )
        self.tree = self.module.RustUnifiedTreeCoreBinding(settings, [0])

    def prepare(self, requests: Sequence[work.Request], block_tokens: int, how: str) -> Any:
        del block_tokens
        if how != "keys":
            raise ValueError("takes keys only")
        made = []
        for request in requests:
            keys = _keys(request.chain)
            for store in request.stores:
                # The whole chain down to the last block; what is there already is walked.
                slots = torch.arange(store.end, dtype=torch.int64)
                made.append(self.module.InsertParamsBinding(key=keys[: store.end], value=slots))
        return made

    def apply(self, prepared: Any) -> None:
        insert = self.tree.insert
        for each in prepared:
            insert(each)

    def question(self, query: work.Query, block_tokens: int, form: str) -> Any:
        del block_tokens, form
        return _keys(query.chain)

    def again(self, question: Any) -> Any:
        """As a view: an array itself costs it three times as much to take."""
        return memoryview(question[:])

    def ask(self, form: str) -> Callable[[Any], Any]:
        del form
        match, parameters = self.tree.match_prefix, self.module.MatchParamsBinding
        return lambda keys: match(parameters(key=keys))

    def answer(self, found: Any) -> dict[int, int]:
        return {-1: found.device_prefix_len} if found.device_prefix_len else {}

    def allocated(self) -> int:
        return 0  # it does not say


def _keys(chain: Sequence[work.Piece]) -> array:
    """A block's key is its name without the sign."""
    return array("q", [name & _I63 for name in work.names_of(work.chain_blocks(chain))])


if __name__ == "__main__":
    serve(SGLang)
