"""Which alternative is taken, and why the others were not. Pure: the same question, the same plan.

The soonest one is. State is only brought where the lower bound of the gain, against computing on
the same target, is more than the policy asks for; computing is always there. A target that the
policy holds for overloaded, or that is too late, is taken only where all of them are.
"""

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple

from msgspec import Struct, structs

from app.contract.enums import Word
from app.errors import ErrorCode, NexusError
from app.planner.pairs import BestPairs, priced_pairs
from app.planner.pricing import Priced, Waiting, bringing, computing, computing_us, waiting
from app.planner.question import PlanExclusion, Question, Source, Target

MAX_ALTERNATIVES: Final = 16
_LAST_RESORT: Final = frozenset({PlanExclusion.OVERLOADED, PlanExclusion.DEADLINE})


class PlanAction(Word):
    """What a plan does with the request."""

    # On the one target there is: nothing but the last token, or only the tail, is computed.
    FULL_REUSE = "full_reuse"
    PARTIAL_REUSE = "partial_reuse"
    # Of several targets one that has some of it.
    ROUTE_TO_STATE = "route_to_state"
    TRANSFER = "transfer"
    # What the target has is used, a middle is brought, the tail is computed.
    SPLIT = "split"
    RECOMPUTE = "recompute"


class Alternative(Struct, frozen=True):
    """One way to serve the request. `lost` is None for the one that is taken."""

    action: PlanAction
    target: Target
    priced: Priced
    source: Source | None = None
    lost: PlanExclusion | None = None


class Plan(Struct, frozen=True):
    """The choice. `fallback` is computing all of it on the chosen target. `margin_us` is to the
    best other one that could be taken, None without one. `late`: the deadline cannot be met.
    `explored`: it was taken to learn what it costs.

    `alternatives` are the best of each action and target, at most 16, the soonest first;
    `excluded` counts all that was not taken by its reason.
    """

    chosen: Alternative
    fallback: Alternative
    margin_us: float | None
    late: bool
    alternatives: tuple[Alternative, ...]
    excluded: dict[PlanExclusion, int]
    explored: bool = False


class _Way(NamedTuple):
    """An alternative before its terms are told. In this order the soonest is taken: names settle
    what times do not, so that replicas agree. `at` is the target's place, `source` -1 for none.
    """

    total_us: float
    engine_id: str
    source: int
    at: int
    lost: PlanExclusion | None


def plan(question: Question) -> Plan:
    """Raises NO_USABLE_TARGET without a target that may be used, INVALID_FIELD without a prompt."""
    if question.tokens < 1:
        raise NexusError(ErrorCode.INVALID_FIELD, "A plan needs a prompt of at least one token")
    targets = [one for one in question.targets if one.excluded is None]
    if not targets:
        raise NexusError(ErrorCode.NO_USABLE_TARGET, "None of the targets may be used")
    waits = [waiting(target) for target in targets]
    computes_us = [
        computing_us(question, target, wait) for target, wait in zip(targets, waits, strict=True)
    ]
    best, counts = priced_pairs(question, targets, waits, computes_us)
    ways = sorted(_ways(question, targets, waits, computes_us, best))
    able = [way for way in ways if way.lost is None]
    late = not able
    able = able or [way for way in ways if way.lost in _LAST_RESORT]
    taken, explored = able[0], False
    if question.explore and taken.source < 0:
        taken, explored = _to_learn(question, waits, ways, taken)
    _count(question, counts, ways, taken)
    told = _Told(question, targets, waits)
    return Plan(
        told.of(taken, None),
        told.fallback(taken.at),
        _margin_us(able, taken),
        late and taken.lost is PlanExclusion.DEADLINE,
        tuple(told.others(ways, taken)),
        {reason: count for reason, count in counts.items() if count},
        explored,
    )


def _ways(
    question: Question,
    targets: Sequence[Target],
    waits: Sequence[Waiting],
    computes_us: Sequence[float],
    best: Sequence[BestPairs],
) -> Iterator[_Way]:
    """Of each target computing, the best source that may be used, the best that could be if all
    were late, and the best that may not."""
    for at, target in enumerate(targets):
        name, pairs = target.engine_id, best[at]
        yield _Way(computes_us[at], name, -1, at, too_late(question, computes_us[at], waits[at]))
        if pairs.usable >= 0:
            yield _Way(pairs.usable_us, name, pairs.usable, at, None)
        if pairs.late >= 0:
            yield _Way(pairs.late_us, name, pairs.late, at, pairs.late_lost)
        if pairs.other >= 0:
            yield _Way(pairs.other_us, name, pairs.other, at, pairs.lost)


def _to_learn(
    question: Question, waits: Sequence[Waiting], ways: Sequence[_Way], taken: _Way
) -> tuple[_Way, bool]:
    """The soonest whose gain is uncertain, that is in time and at no overloaded target; else what
    would be taken anyway.
    """
    for way in ways:
        if way.lost is not PlanExclusion.GAIN_UNCERTAIN:
            continue
        if too_late(question, way.total_us, waits[way.at]) is None:
            return way, True
    return taken, False


def _margin_us(able: Sequence[_Way], taken: _Way) -> float | None:
    """Below zero where another one would be sooner, as when one is taken to learn."""
    others = [way for way in able if way is not taken]
    return others[0].total_us - taken.total_us if others else None


def _count(
    question: Question, counts: Counter[PlanExclusion], ways: Sequence[_Way], taken: _Way
) -> None:
    """Adds what is no pair. Pairs are counted, the one that is taken among them."""
    for target in question.targets:
        if target.excluded is not None:
            counts[target.excluded] += 1 + len(question.sources)
    for way in ways:
        if way.source < 0 and way is not taken:
            counts[way.lost or PlanExclusion.SLOWER] += 1
    if taken.source >= 0:
        counts[taken.lost or PlanExclusion.SLOWER] -= 1


class _Told:
    """Alternatives with their terms: only of those that are told of."""

    def __init__(
        self, question: Question, targets: Sequence[Target], waits: Sequence[Waiting]
    ) -> None:
        self._question = question
        self._targets = targets
        self._waits = waits
        self._computes: dict[int, Priced] = {}

    def of(self, way: _Way, lost: PlanExclusion | None) -> Alternative:
        question, target, wait = self._question, self._targets[way.at], self._waits[way.at]
        compute = self._computes.get(way.at)
        if compute is None:
            compute = self._computes[way.at] = computing(question, target, wait)
        if way.source < 0:
            return Alternative(self._action(way), target, compute, None, lost)
        source = question.sources[way.source]
        priced = bringing(question, target, wait, source, compute)
        assert isinstance(priced, Priced)
        return Alternative(self._action(way), target, priced, source, lost)

    def fallback(self, at: int) -> Alternative:
        """Should nothing be there after all: computing everything."""
        target, wait = self._targets[at], self._waits[at]
        bare = structs.replace(target, local_tokens=0)
        return Alternative(
            PlanAction.RECOMPUTE, target, computing(self._question, bare, wait), None, None
        )

    def others(self, ways: Sequence[_Way], taken: _Way) -> Iterator[Alternative]:
        """The best of each action and target, and of each target what may not be brought."""
        seen: set[tuple[PlanAction, int]] = set()
        for way in ways:
            key = (self._action(way), way.at)
            if way is taken or key in seen:
                continue
            seen.add(key)
            yield self.of(way, way.lost or PlanExclusion.SLOWER)
            if len(seen) == MAX_ALTERNATIVES:
                return

    def _action(self, way: _Way) -> PlanAction:
        local_tokens = self._targets[way.at].local_tokens
        if way.source >= 0:
            return PlanAction.SPLIT if local_tokens else PlanAction.TRANSFER
        if not local_tokens:
            return PlanAction.RECOMPUTE
        if len(self._question.targets) > 1:
            return PlanAction.ROUTE_TO_STATE
        whole = local_tokens >= self._question.tokens - 1
        return PlanAction.FULL_REUSE if whole else PlanAction.PARTIAL_REUSE


def too_late(question: Question, total_us: float, wait: Waiting) -> PlanExclusion | None:
    """Why a cost that is known is not to be had: its deadline, or the target's queue."""
    if question.deadline_us is not None and total_us > question.deadline_us:
        return PlanExclusion.DEADLINE
    most = question.bounds.max_queue_us
    return PlanExclusion.OVERLOADED if most and wait.known_us > most else None
