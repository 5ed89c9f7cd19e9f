"""Engines that tell of their blocks, and prompts that are asked for, without a service."""

from array import array
from collections.abc import Coroutine, Sequence
from typing import Any, TypeVar

from app.engines.answers import Match
from app.engines.matching import EngineMatcher
from app.engines.plans import Filter
from app.engines.registration import EngineSpec
from app.engines.spaces import Spaces
from app.engines.stream import Taken
from app.engines.views import EngineView
from app.index.scopes import TenantHashing
from nexuskv_core import BlockIndex
from tests.engines.wires import packed, stored

BLOCK = 4
NOW_US = 1_000_000_000
SECRET = bytes(range(32))
T = TypeVar("T")


def prompt(blocks: int, seed: int = 0, block: int = BLOCK) -> list[int]:
    return [1_000 * seed + position for position in range(blocks * block)]


def told(
    tokens: Sequence[int], first_name: int = 1, *, block: int = BLOCK, **fields: Any
) -> dict[str, Any]:
    """A store of a prompt's whole blocks, with names that ascend."""
    count = len(tokens) // block
    names = list(range(first_name, first_name + count))
    return stored(names, block_size=block, token_ids=list(tokens[: count * block]), **fields)


def at_once(work: Coroutine[Any, Any, T]) -> T:
    """What is done in one slice."""
    try:
        work.send(None)
    except StopIteration as done:
        found: T = done.value
        return found
    work.close()
    raise AssertionError("it would let others have a turn")


class Rig:
    """Engines around one index. It is the directory that a matcher reads, too."""

    def __init__(self, core: BlockIndex | None = None, secret: bytes = SECRET) -> None:
        self.core = BlockIndex() if core is None else core
        self.spaces = Spaces(TenantHashing(secret))
        self.views: list[EngineView] = []
        self.matcher = EngineMatcher(self.core, self, self.spaces)
        self._sequences: dict[str, int] = {}

    def views_of(self, model: str) -> list[EngineView]:
        return [view for view in self.views if view.spec.model == model]

    def engine(self, instance_id: str = "a", **fields: Any) -> EngineView:
        given = {"model": "m", "block_tokens": BLOCK, "tenants": ("t",)} | fields
        view = EngineView(EngineSpec(instance_id=instance_id, **given), self.core, self.spaces)
        self.views.append(view)
        return view

    def tell(self, view: EngineView, *events: Any, now_us: int = NOW_US) -> Taken:
        """The next frame of it."""
        number = 0 if view.last_sequence is None else view.last_sequence + 1
        return view.take(number, packed(*events, at_s=number + 0.5), now_us=now_us)

    def ask(self, tokens: Sequence[int], *, now_us: int = NOW_US, **wanted: Any) -> Match:
        extra_keys = wanted.pop("extra_keys", None)
        asked = Filter(**({"tenant": "t", "model": "m"} | wanted))
        packed_tokens = array("I", tokens).tobytes()
        return self.matcher.match(asked, packed_tokens, now_us=now_us, extra_keys=extra_keys)

    def reach(self, tokens: Sequence[int], **wanted: Any) -> dict[str, int]:
        """Usable tokens by instance."""
        return {
            each.instance_id: each.matched_tokens for each in self.ask(tokens, **wanted).candidates
        }
