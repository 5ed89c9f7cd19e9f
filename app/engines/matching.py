"""Which engines have how much of a prompt: every location, and how far that is to be trusted."""

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Final

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
from app.engines.plans import Asked, EngineViews, Filter, Plan, Seen, Segment, Share, Stretch
from app.engines.reach import Reach, TierReach, reach
from app.engines.registration import EngineKey
from app.engines.search import Found, Place, Search, Searcher, Tokens, in_slices, whole
from app.engines.slices import Slices
from app.engines.spaces import Extra, Spaces
from app.engines.views import ViewState
from nexuskv_core import BlockIndex, BusyError, TokenText, chain

MAX_CANDIDATES: Final = 1_000
# Of one plan; there are many.
_STRETCHES: Final = 16_384
DEFAULT_STALE_AFTER_US: Final = 30_000_000


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
        self._search = Searcher(core, views, spaces, away)
        self._stale_after_us = stale_after_us
        # Queries in which a group of an unknown attention kind made blocks unusable.
        self.unusable_kinds = 0

    def follow(self, core: BlockIndex) -> None:
        """Read another index from now on: its numbers are others."""
        self._search.follow(core)

    def engines(self, wanted: Filter) -> Mapping[EngineKey, Seen]:
        """The engines that this filter may see, whatever they have. Not to be changed."""
        return self._search.plan(wanted).seen

    def knows(self, wanted: Filter) -> bool:
        """Whether any engine is registered that this filter may see."""
        return bool(self._search.plan(wanted).seen)

    def match(
        self,
        wanted: Filter,
        tokens: Tokens,
        *,
        now_us: int,
        extra_keys: Sequence[Extra | None] | None = None,
    ) -> Match:
        """`extra_keys` has an entry a block. Raises as TenantHashing before a secret is there."""
        return self._answer(whole(self._search.by_tokens(wanted, tokens, extra_keys)), now_us)

    async def match_in_slices(
        self,
        wanted: Filter,
        tokens: Tokens,
        slices: Slices,
        *,
        now_us: int,
        extra_keys: Sequence[Extra | None] | None = None,
    ) -> Match:
        """`match`; others have a turn in between where it is long. It is of one moment all the
        same: where the streams of engines changed meanwhile, nothing is known."""
        search = await in_slices(self._search.by_tokens(wanted, tokens, extra_keys), slices)
        return self._answer(search, now_us)

    async def reached_in_slices(
        self, wanted: Filter, tokens: Tokens, slices: Slices, *, now_us: int
    ) -> Reached:
        """For those to whom neither freshness nor the reason of a miss is anything."""
        usual = self._usual(wanted, tokens, now_us)
        if usual is not None:
            return usual
        search = await in_slices(self._search.by_tokens(wanted, tokens, None), slices)
        return self._reached(search, now_us)

    async def match_names_in_slices(
        self,
        wanted: Filter,
        names: Sequence[int],
        slices: Slices,
        *,
        now_us: int,
        block_tokens: int | None = None,
    ) -> Match:
        """Likewise for a chain by the engines' own names of its blocks, u64 each.

        Adapter and salt are in the names. `block_tokens`: only blocks of that many.
        """
        search = await in_slices(self._search.by_names(wanted, names, block_tokens), slices)
        return self._answer(search, now_us)

    async def reached_names_in_slices(
        self,
        wanted: Filter,
        names: Sequence[int],
        slices: Slices,
        *,
        now_us: int,
        block_tokens: int | None = None,
    ) -> Reached:
        """`match_names_in_slices`, for them."""
        search = await in_slices(self._search.by_names(wanted, names, block_tokens), slices)
        return self._reached(search, now_us)

    # ---- one query

    def _usual(self, wanted: Filter, tokens: Tokens, now_us: int) -> Reached | None:
        """Where each engine that has any of it has it in one stretch from its beginning on.

        As `_search` and `reach` would have it, in fewer steps; None for whatever is not that.
        """
        plan = self._search.plan(wanted)
        if len(plan.spaces) != 1 or self._search.away():
            return None
        _, _, (block, width), scope_key, first = plan.spaces[0]
        words = tokens if isinstance(tokens, TokenText) else memoryview(tokens).cast("I")
        segments = None
        if width == 1 and first is None:
            with suppress(BusyError):
                segments = self._search.core.find(chain(scope_key, words, block))
        if segments is None:
            return None
        found = self._stretches(segments, plan.asked)
        if found is None:
            return None
        if not found:
            engines = self._engines(plan, now_us)
            return Reached(no_hit(engines, plan, busy=False, unusable=False)[0], engines.asked, [])
        found.sort()
        return Reached(HIT, len(plan.seen), [share for _, _, share in found[:MAX_CANDIDATES]])

    def _stretches(self, segments: Sequence[Segment], asked: Asked) -> list[Stretch] | None:
        """None where there is more to say of an engine than how far it reaches."""
        known = asked.stretches
        found: list[Stretch] = []
        for segment in segments:
            stretch = known.get(segment)
            if stretch is None:
                place = self._search.place(segment[0])
                key = None if place is None else asked.streams.get(place.stream)
                if place is None or key is None:
                    continue
                stretch = self._stretch(segment, place, key, asked)
                if stretch is None:
                    return None
            found.append(stretch)
        return found if len({key for _, key, _ in found}) == len(found) else None

    @staticmethod
    def _stretch(segment: Segment, place: Place, key: EngineKey, asked: Asked) -> Stretch | None:
        _, start, end = segment
        seen = asked.seen[key]
        if start or place.group != seen.only_group:
            return None
        if len(asked.stretches) >= _STRETCHES:
            asked.stretches.clear()
        tokens = end * place.block_tokens
        share = Share(seen, Reach(tokens, {place.tier: TierReach(tokens, tokens)}))
        made = asked.stretches[segment] = Stretch(-tokens, key, share)
        return made

    def _reached(self, search: Search, now_us: int) -> Reached:
        plan, found, _, busy = search
        asked = len(plan.seen)
        if found is None:
            return Reached(UNKNOWN, asked, [])
        ordered, unusable = self._best(plan, found)
        if ordered:
            seen = plan.seen
            return Reached(
                HIT, asked, [Share(seen[key], one) for key, (one, _) in ordered[:MAX_CANDIDATES]]
            )
        engines = self._engines(plan, now_us)
        return Reached(no_hit(engines, plan, busy=busy, unusable=unusable)[0], asked, [])

    def _answer(self, search: Search, now_us: int) -> Match:
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
        self, plan: Plan, found: Found
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


def _longest_first(one: tuple[EngineKey, tuple[Reach, str | None]]) -> tuple[int, EngineKey]:
    return -one[1][0].tokens, one[0]
