"""Which alternative is taken, and why the others were not. Pure: the same question, the same plan.

The soonest one is. State is only brought where the lower bound of the gain, against computing on the
same target, is more than the policy asks for; computing is always there. A target that the policy
holds for overloaded, or that is too late, is taken only where all of them are.
"""

from collections import Counter
from collections.abc import Iterator
from typing import Final

from msgspec import Struct

from app.contract.enums import Word
from app.errors import ErrorCode, NexusError
from app.planner.pricing import Priced, Waiting, bringing, computing, waiting
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
    """The choice. `fallback` is computing on the chosen target. `margin_us` is to the best other
    one that could be taken, None without one. `late`: the deadline cannot be met.

    `alternatives` are the best of each action and target, at most 16, the soonest first;
    `excluded` counts all that was not taken by its reason.
    """

    chosen: Alternative
    fallback: Alternative
    margin_us: float | None
    late: bool
    alternatives: tuple[Alternative, ...]
    excluded: dict[PlanExclusion, int]


def plan(question: Question) -> Plan:
    """Raises INVALID_FIELD without a target that may be used, or a prompt."""
    if question.tokens < 1:
        raise NexusError(ErrorCode.INVALID_FIELD, "A plan needs a prompt of at least one token")
    found, counts = _alternatives(question)
    if not found:
        raise NexusError(
            ErrorCode.INVALID_FIELD, "No target may be used: each one is excluded or unknown"
        )
    # Names settle what times do not, so that replicas agree.
    found.sort(key=lambda one: (one.priced.total_us, one.target.engine_id, one.action.value))
    open_ones = [one for one in found if one.lost is None]
    late = not open_ones
    usable = open_ones or [one for one in found if one.lost in _LAST_RESORT]
    chosen = usable[0]
    rest = [one for one in usable if one is not chosen]
    counts.update(one.lost or PlanExclusion.SLOWER for one in found if one is not chosen)
    fallback = next(
        one for one in found if one.source is None and one.target is chosen.target
    )
    return Plan(
        _taken(chosen),
        fallback,
        rest[0].priced.total_us - chosen.priced.total_us if rest else None,
        late and chosen.lost is PlanExclusion.DEADLINE,
        tuple(_shown(found, chosen)),
        dict(counts),
    )


def _alternatives(question: Question) -> tuple[list[Alternative], Counter[PlanExclusion]]:
    """All that could be priced, and how many could not, by reason."""
    counts: Counter[PlanExclusion] = Counter()
    found: list[Alternative] = []
    for target in question.targets:
        if target.excluded is not None:
            counts[target.excluded] += 1 + len(question.sources)
            continue
        wait = waiting(target)
        compute = computing(question, target, wait)
        found.append(
            Alternative(
                _local(question, target), target, compute, None, _too_late(question, compute, wait)
            )
        )
        for source in question.sources:
            priced = bringing(question, target, wait, source, compute)
            if isinstance(priced, PlanExclusion):
                counts[priced] += 1
                continue
            action = PlanAction.SPLIT if target.local_tokens else PlanAction.TRANSFER
            lost = _uncertain(question, priced) or _too_late(question, priced, wait)
            found.append(Alternative(action, target, priced, source, lost))
    return found, counts


def _local(question: Question, target: Target) -> PlanAction:
    if not target.local_tokens:
        return PlanAction.RECOMPUTE
    if len(question.targets) > 1:
        return PlanAction.ROUTE_TO_STATE
    whole = target.local_tokens >= question.tokens - 1
    return PlanAction.FULL_REUSE if whole else PlanAction.PARTIAL_REUSE


def _uncertain(question: Question, priced: Priced) -> PlanExclusion | None:
    bounds = question.bounds
    least = priced.gain_us - bounds.deviations * priced.gain_deviation_us
    return None if least > bounds.min_gain_us else PlanExclusion.GAIN_UNCERTAIN


def _too_late(question: Question, priced: Priced, wait: Waiting) -> PlanExclusion | None:
    if question.deadline_us is not None and priced.total_us > question.deadline_us:
        return PlanExclusion.DEADLINE
    most = question.bounds.max_queue_us
    return PlanExclusion.OVERLOADED if most and wait.queue.value_us > most else None


def _taken(chosen: Alternative) -> Alternative:
    return Alternative(chosen.action, chosen.target, chosen.priced, chosen.source, None)


def _shown(found: list[Alternative], chosen: Alternative) -> Iterator[Alternative]:
    """The best of each action and target; of those whose state may not be brought, too."""
    seen: set[tuple[PlanAction, str, int]] = set()
    for one in found:
        key = (one.action, one.target.engine_id, one.target.generation)
        if one is not chosen and key not in seen and len(seen) < MAX_ALTERNATIVES:
            seen.add(key)
            lost = one.lost or PlanExclusion.SLOWER
            yield Alternative(one.action, one.target, one.priced, one.source, lost)

