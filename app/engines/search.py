"""What the index has of a prompt, step by step: a step is one hash of the prompt and one find.

Between steps others may have a turn. What was found then still holds together: where streams of
engines began or ended meanwhile, all of it is given up.
"""

from array import array
from collections.abc import Callable, Generator, Iterable, Sequence
from typing import Final, NamedTuple, TypeAlias, TypeVar

import msgspec

from app.engines.plans import EngineViews, Filter, Plan, Planner, Space
from app.engines.reach import Held, Tier, tier_of
from app.engines.registration import EngineKey
from app.engines.shelves import Shelf, shelf_of
from app.engines.slices import Slices
from app.engines.spaces import Extra, Owner, Spaces, salted, without
from nexuskv_core import BlockIndex, BusyError, TokenText, chain

# Little-endian u32 each, where they are bytes.
Tokens = TokenText | bytes
Words: TypeAlias = "TokenText | memoryview[int]"
_PLACE_CACHE_ENTRIES: Final = 262_144
_T = TypeVar("_T")
# What is done between two turns of the event loop, with how much of it there is; it is told whether
# others had a turn.
Steps = Generator[int, bool, _T]
# What one of them costs, in hashed tokens.
_NAME_COST: Final = 50
_EXTRA_COST: Final = 100
_ENGINE_COST: Final = 1_500


class Place(NamedTuple):
    """A holder of the index, as far as queries know it."""

    stream: int
    tier: Tier
    group: int
    block_tokens: int


class _Prompt(NamedTuple):
    """`rest`: of the first block's extra keys what is neither adapter nor salt."""

    tokens: Words
    tokens_count: int
    lora: str | None
    extra_keys: Sequence[Extra | None] | None
    rest: Extra | None


# The owner and the salt of a chain: what an engine has of one is no part of another.
_Chain = tuple[Owner, str | None]
Found = dict[tuple[EngineKey, _Chain], list[Held]]


class Search(NamedTuple):
    """What the index said. `found` is None where it is away."""

    plan: Plan
    found: Found | None
    query_tokens: int | None
    busy: bool = False


class Searcher:
    """Reads the index, on the event loop's thread."""

    def __init__(
        self,
        core: BlockIndex,
        views: EngineViews,
        spaces: Spaces,
        away: Callable[[], bool] | None,
    ) -> None:
        self.core = core
        self._away = away
        self._spaces = spaces
        self._planner = Planner(views, spaces)
        self._places: dict[int, Place] = {}

    def follow(self, core: BlockIndex) -> None:
        """Read another index from now on: its numbers are others."""
        self.core = core
        self._places.clear()
        # Plans hold views, and these the index that was read before.
        self._spaces.changes += 1

    def plan(self, wanted: Filter) -> Plan:
        """Raises as TenantHashing before a secret is there."""
        return self._planner.plan(wanted)

    def away(self) -> bool:
        """Whether what the index says does not hold now."""
        return self._away is not None and self._away()

    def _changed(self, plan: Plan, wanted: Filter) -> bool:
        """Whether what others did may have put an end to what was found before."""
        return self.plan(wanted) is not plan

    def by_tokens(
        self, wanted: Filter, tokens: Tokens, extra_keys: Sequence[Extra | None] | None
    ) -> Steps[Search]:
        """Who has what of a prompt. Raises as TenantHashing before a secret is there."""
        rest = None
        if extra_keys:
            salt, rest = salted(wanted.salt, without(wanted.lora, extra_keys[0]), ())
            wanted = wanted if salt == wanted.salt else wanted._replace(salt=salt)
        plan = self.plan(wanted)
        words = tokens if isinstance(tokens, TokenText) else memoryview(tokens).cast("I")
        count = len(words)
        if self.away():
            return Search(plan, None, count)
        found: Found = {}
        cost = count + _EXTRA_COST * len(extra_keys or ())
        prompt = _Prompt(words, count, wanted.lora, extra_keys, rest)
        try:
            for space in plan.spaces:
                keys = self._keys(space, prompt)
                self._collect(self.core.find(keys), plan, (space.owner, space.salt), found)
                if (yield cost) and self._changed(plan, wanted):
                    return Search(plan, {}, count, busy=True)
        except BusyError:
            return Search(plan, found, count, busy=True)
        if (yield _ENGINE_COST * len(plan.seen)) and self._changed(plan, wanted):
            return Search(plan, {}, count, busy=True)
        return Search(plan, found, count)

    def by_names(
        self, wanted: Filter, names: Sequence[int], block_tokens: int | None
    ) -> Steps[Search]:
        """Likewise of a chain by its blocks' names."""
        plan = self.plan(wanted)
        if self.away():
            return Search(plan, None, None)
        found: Found = {}
        busy = False
        for seen in plan.seen.values():
            for lane in seen.view.lanes:
                if wanted.tenant not in lane.owner:
                    continue
                if block_tokens not in (None, lane.shape.block_tokens):
                    continue
                try:
                    segments = self.core.find_names(lane.stream, names)
                except BusyError:
                    busy = True
                except ValueError:
                    # Closed meanwhile by another process; its view says that it is not known.
                    continue
                else:
                    self._collect(segments, plan, (lane.owner, None), found)
                    known = max((end for _, _, end in segments), default=0)
                    if (yield _ENGINE_COST + _NAME_COST * known) and self._changed(plan, wanted):
                        return Search(plan, {}, None, busy=True)
        return Search(plan, found, None, busy=busy)

    def _keys(self, space: Space, prompt: _Prompt) -> bytes:
        """Of the prompt's whole blocks; none where the extra keys are for other blocks."""
        tokens, count, lora, extra_keys, rest = prompt
        block, width = space.shape
        if width == 2:
            tokens, count = _pairs(tokens), max(0, count - 1)
        blocks = count // block
        if not blocks:
            return b""
        extras = None
        if extra_keys is not None:
            if len(extra_keys) != blocks:
                return b""
            first = self._spaces.digest(space.owner, lora, space.salt, rest)
            extras = self._spaces.extras(
                space.owner, lora, extra_keys, first=first, blocks=blocks, begins=True
            )
        elif space.first is not None:
            extras = [space.first, *[None] * (blocks - 1)]
        return chain(space.scope_key, tokens, block * width, extras=extras)

    def _collect(
        self,
        segments: Iterable[tuple[int, int, int]],
        plan: Plan,
        of: _Chain,
        found: Found,
    ) -> None:
        streams = plan.asked.streams
        for holder, start, end in segments:
            place = self.place(holder)
            engine = None if place is None else streams.get(place.stream)
            if place is not None and engine is not None:
                held = Held(place.tier, place.group, place.block_tokens, start, end)
                found.setdefault((engine, of), []).append(held)

    def place(self, holder: int) -> Place | None:
        """None where it was closed meanwhile. Numbers are never used again."""
        known = self._places.get(holder)
        if known is not None:
            return known
        try:
            shelf: Shelf = shelf_of(self.core.label(holder))
            # Still open: the label was whole when it was read, also beside another process.
            stream = self.core.stream_of(holder)
        except (ValueError, msgspec.DecodeError):
            return None
        if len(self._places) >= _PLACE_CACHE_ENTRIES:
            self._places.clear()
        made = self._places[holder] = Place(
            stream, tier_of(shelf.medium), shelf.group, shelf.block_tokens
        )
        return made


def _pairs(tokens: Words) -> Words:
    """Each token with the next one: the positions of engines that speculate with pairs."""
    plain = array("I", bytes(memoryview(tokens)))
    pairs = array("I", bytes(8 * max(0, len(plain) - 1)))
    pairs[0::2] = plain[:-1]
    pairs[1::2] = plain[1:]
    return memoryview(pairs)


def whole(steps: Steps[_T]) -> _T:
    """What they come to, in one go."""
    try:
        while True:
            next(steps)
    except StopIteration as done:
        found: _T = done.value
        return found


async def in_slices(steps: Steps[Search], slices: Slices) -> Search:
    """What they come to; others have a turn where it takes long."""
    try:
        cost = next(steps)
        while True:
            cost = steps.send(await slices.spend(cost))
    except StopIteration as done:
        found: Search = done.value
        return found
