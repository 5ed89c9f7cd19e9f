"""Which engines have how much of a prompt: every location, and how far that is to be trusted."""

from array import array
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from typing import Final, NamedTuple, TypeAlias

import msgspec

from app.engines.answers import (
    HIT,
    UNKNOWN,
    Candidate,
    Engines,
    Match,
    Reached,
    no_hit,
    nothing_known,
)
from app.engines.plans import Asked, EngineViews, Filter, Plan, Planner, Seen, Space, Spot
from app.engines.reach import Held, Reach, Tier, TierReach, reach, tier_of
from app.engines.registration import EngineKey
from app.engines.shelves import Shelf, shelf_of
from app.engines.spaces import Extra, Owner, Spaces, salted, without
from app.engines.views import ViewState
from nexuskv_core import BlockIndex, BusyError, TokenText, chain

MAX_CANDIDATES: Final = 1_000
_PLACE_CACHE_ENTRIES: Final = 262_144
# Of one plan; there are many.
_SPOTS: Final = 16_384
DEFAULT_STALE_AFTER_US: Final = 30_000_000
# Little-endian u32 each, where they are bytes.
Tokens = TokenText | bytes
_Words: TypeAlias = "TokenText | memoryview[int]"


class _Place(NamedTuple):
    """A holder of the index, as far as queries know it."""

    stream: int
    tier: Tier
    group: int
    block_tokens: int


class _Prompt(NamedTuple):
    """`rest`: of the first block's extra keys what is neither adapter nor salt."""

    tokens: _Words
    tokens_count: int
    lora: str | None
    extra_keys: Sequence[Extra | None] | None
    rest: Extra | None


# The owner and the salt of a chain: what an engine has of one is no part of another.
_Chain = tuple[Owner, str | None]
_Found = dict[tuple[EngineKey, _Chain], list[Held]]


class _Search(NamedTuple):
    """What the index said. `found` is None where it is away."""

    plan: Plan
    found: _Found | None
    query_tokens: int | None
    busy: bool = False


class EngineMatcher:
    """Answers queries from the index, changing nothing. On the event loop's thread."""

    def __init__(
        self,
        core: BlockIndex,
        views: EngineViews,
        spaces: Spaces,
        *,
        stale_after_us: int = DEFAULT_STALE_AFTER_US,
        away: Callable[[], bool] | None = None,
    ) -> None:
        self._core = core
        self._away = away
        self._spaces = spaces
        self._planner = Planner(views, spaces)
        self._stale_after_us = stale_after_us
        self._places: dict[int, _Place] = {}
        # Candidates that a group of an unknown attention type made unusable.
        self.unusable_kinds = 0

    def follow(self, core: BlockIndex) -> None:
        """Read another index from now on: its numbers are others."""
        self._core = core
        self._places.clear()
        # Plans hold views, and these the index that was read before.
        self._spaces.changes += 1

    def knows(self, wanted: Filter) -> bool:
        """Whether any engine is registered that this filter may see."""
        return bool(self._planner.plan(wanted).seen)

    def match(
        self,
        wanted: Filter,
        tokens: Tokens,
        *,
        now_us: int,
        extra_keys: Sequence[Extra | None] | None = None,
    ) -> Match:
        """`extra_keys` has an entry a block. Raises as TenantHashing before a secret is there."""
        return self._answer(self._search(wanted, tokens, extra_keys), now_us)

    def reached(self, wanted: Filter, tokens: Tokens, *, now_us: int) -> Reached:
        """`match` for those to whom neither freshness nor the reason of a miss is anything."""
        usual = self._usual(wanted, tokens, now_us)
        return usual or self._reached(self._search(wanted, tokens, None), now_us)

    def match_names(
        self, wanted: Filter, names: Sequence[int], *, now_us: int, block_tokens: int | None = None
    ) -> Match:
        """Likewise for a chain by the engines' own names of its blocks, u64 each.

        Adapter and salt are in the names. `block_tokens`: only blocks of that many.
        """
        return self._answer(self._search_names(wanted, names, block_tokens), now_us)

    def reached_names(
        self, wanted: Filter, names: Sequence[int], *, now_us: int, block_tokens: int | None = None
    ) -> Reached:
        """As `reached` is to `match`."""
        return self._reached(self._search_names(wanted, names, block_tokens), now_us)

    # ---- one query

    def _usual(self, wanted: Filter, tokens: Tokens, now_us: int) -> Reached | None:
        """Where each engine that has any of it has it in one stretch from its beginning on.

        As `_search` and `reach` would have it, in fewer steps; None for whatever is not that.
        """
        plan = self._planner.plan(wanted)
        if len(plan.spaces) != 1 or (self._away is not None and self._away()):
            return None
        _, _, (block, width), scope_key, first = plan.spaces[0]
        words = tokens if isinstance(tokens, TokenText) else memoryview(tokens).cast("I")
        segments = None
        if width == 1 and first is None:
            with suppress(BusyError):
                segments = self._core.find(chain(scope_key, words, block))
        if segments is None:
            return None
        spots = plan.asked.spots
        found: dict[EngineKey, tuple[Seen, Reach]] = {}
        for holder, start, end in segments:
            spot = spots.get(holder) or self._spot(holder, plan.asked)
            if spot is None:
                continue
            seen, key, tier, group, block_tokens = spot
            if start or group != seen.only_group or key in found:
                return None
            reached = end * block_tokens
            found[key] = seen, Reach(reached, {tier: TierReach(reached, reached)})
        if not found:
            engines = self._engines(plan, now_us)
            return Reached(no_hit(engines, plan, busy=False, unusable=False)[0], engines.asked, [])
        if len(found) > 1:
            ordered = sorted(found.items(), key=_farthest_first)[:MAX_CANDIDATES]
            return Reached(HIT, len(plan.seen), [one for _, one in ordered])
        return Reached(HIT, len(plan.seen), list(found.values()))

    def _spot(self, holder: int, asked: Asked) -> Spot | None:
        place = self._places.get(holder) or self._place(holder)
        key = None if place is None else asked.streams.get(place.stream)
        if place is None or key is None:
            return None
        if len(asked.spots) >= _SPOTS:
            asked.spots.clear()
        made = asked.spots[holder] = Spot(
            asked.seen[key], key, place.tier, place.group, place.block_tokens
        )
        return made

    def _search(
        self, wanted: Filter, tokens: Tokens, extra_keys: Sequence[Extra | None] | None
    ) -> _Search:
        rest = None
        if extra_keys:
            salt, rest = salted(wanted.salt, without(wanted.lora, extra_keys[0]), ())
            wanted = wanted if salt == wanted.salt else wanted._replace(salt=salt)
        plan = self._planner.plan(wanted)
        words = tokens if isinstance(tokens, TokenText) else memoryview(tokens).cast("I")
        count = len(words)
        if self._away is not None and self._away():
            return _Search(plan, None, count)
        found: _Found = {}
        prompt = _Prompt(words, count, wanted.lora, extra_keys, rest)
        try:
            for space in plan.spaces:
                keys = self._keys(space, prompt)
                self._collect(self._core.find(keys), plan, (space.owner, space.salt), found)
        except BusyError:
            return _Search(plan, found, count, busy=True)
        return _Search(plan, found, count)

    def _search_names(
        self, wanted: Filter, names: Sequence[int], block_tokens: int | None
    ) -> _Search:
        plan = self._planner.plan(wanted)
        if self._away is not None and self._away():
            return _Search(plan, None, None)
        found: _Found = {}
        busy = False
        for seen in plan.seen.values():
            for lane in seen.view.lanes:
                if wanted.tenant not in lane.owner:
                    continue
                if block_tokens not in (None, lane.shape.block_tokens):
                    continue
                try:
                    segments = self._core.find_names(lane.stream, names)
                except BusyError:
                    busy = True
                except ValueError:
                    # Closed meanwhile by another process; its view says that it is not known.
                    continue
                else:
                    self._collect(segments, plan, (lane.owner, None), found)
        return _Search(plan, found, None, busy=busy)

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
        found: _Found,
    ) -> None:
        streams = plan.asked.streams
        for holder, start, end in segments:
            place = self._places.get(holder) or self._place(holder)
            engine = None if place is None else streams.get(place.stream)
            if place is not None and engine is not None:
                held = Held(place.tier, place.group, place.block_tokens, start, end)
                found.setdefault((engine, of), []).append(held)

    def _place(self, holder: int) -> _Place | None:
        """None where it was closed meanwhile. Numbers are never used again."""
        try:
            shelf: Shelf = shelf_of(self._core.label(holder))
            # Still open: the label was whole when it was read, also beside another process.
            stream = self._core.stream_of(holder)
        except (ValueError, msgspec.DecodeError):
            return None
        if len(self._places) >= _PLACE_CACHE_ENTRIES:
            self._places.clear()
        made = self._places[holder] = _Place(
            stream, tier_of(shelf.medium), shelf.group, shelf.block_tokens
        )
        return made

    def _reached(self, search: _Search, now_us: int) -> Reached:
        plan, found, _, busy = search
        asked = len(plan.seen)
        if found is None:
            return Reached(UNKNOWN, asked, [])
        ordered, unusable = self._best(plan, found)
        if ordered:
            seen = plan.seen
            return Reached(
                HIT, asked, [(seen[key], one) for key, (one, _) in ordered[:MAX_CANDIDATES]]
            )
        engines = self._engines(plan, now_us)
        return Reached(no_hit(engines, plan, busy=busy, unusable=unusable)[0], asked, [])

    def _answer(self, search: _Search, now_us: int) -> Match:
        plan, found, count, busy = search
        if found is None:
            return nothing_known(plan, count)
        ordered, unusable = self._best(plan, found)
        candidates = [
            self._candidate(plan.seen[key], reached, salt, now_us)
            for key, (reached, salt) in ordered[:MAX_CANDIDATES]
        ]
        engines = self._engines(plan, now_us)
        result, reason = HIT, None
        if not candidates:
            result, reason = no_hit(engines, plan, busy=busy, unusable=unusable)
        return Match(
            result=result,
            reason=reason,
            matched_tokens=candidates[0].matched_tokens if candidates else 0,
            query_tokens=count,
            candidates=candidates,
            left_off=len(ordered) - len(candidates),
            engines=engines,
        )

    def _best(
        self, plan: Plan, found: _Found
    ) -> tuple[list[tuple[EngineKey, tuple[Reach, str | None]]], bool]:
        """Of each engine the chain that reaches farthest, the longest first; and whether groups of
        an unknown attention type made anything unusable.
        """
        best: dict[EngineKey, tuple[Reach, str | None]] = {}
        unusable = False
        for (key, (_, salt)), held in found.items():
            seen = plan.seen[key]
            if not seen.usable:
                unusable = True
                continue
            reached = reach(held, seen.groups)
            if reached.tokens and (key not in best or reached.tokens > best[key][0].tokens):
                best[key] = reached, salt
        self.unusable_kinds += unusable
        ordered = list(best.items())
        if len(ordered) > 1:
            ordered.sort(key=_longest_first)
        return ordered, unusable

    def _candidate(self, seen: Seen, reached: Reach, salt: str | None, now_us: int) -> Candidate:
        view = seen.view
        heard = view.last_frame_at_us
        return Candidate(
            instance_id=view.spec.instance_id,
            dp_rank=view.spec.dp_rank,
            node=view.spec.node,
            matched_tokens=reached.tokens,
            block_tokens=seen.block_tokens,
            tiers=reached.tiers,
            cache_salt=salt,
            state=view.state_at(now_us, self._stale_after_us),
            epoch=view.epoch,
            last_sequence=view.last_sequence,
            lag_us=view.lag_us,
            age_us=None if heard is None else max(0, now_us - heard),
            gap=view.state is ViewState.UNKNOWN,
        )

    def _engines(self, plan: Plan, now_us: int) -> Engines:
        if len(plan.seen) == 1:
            (one,) = plan.seen.values()
            states = [one.view.state_at(now_us, self._stale_after_us)]
        else:
            stale_after_us = self._stale_after_us
            states = [seen.view.state_at(now_us, stale_after_us) for seen in plan.seen.values()]
        return Engines(
            asked=len(states),
            live=states.count(ViewState.LIVE),
            pending=states.count(ViewState.PENDING),
            unknown=states.count(ViewState.UNKNOWN),
            stale=states.count(ViewState.STALE),
        )


def _farthest_first(one: tuple[EngineKey, tuple[Seen, Reach]]) -> tuple[int, EngineKey]:
    return -one[1][1].tokens, one[0]


def _longest_first(one: tuple[EngineKey, tuple[Reach, str | None]]) -> tuple[int, EngineKey]:
    return -one[1][0].tokens, one[0]


def _pairs(tokens: _Words) -> _Words:
    """Each token with the next one: the positions of engines that speculate with pairs."""
    plain = array("I", bytes(memoryview(tokens)))
    pairs = array("I", bytes(8 * max(0, len(plain) - 1)))
    pairs[0::2] = plain[:-1]
    pairs[1::2] = plain[1:]
    return memoryview(pairs)
