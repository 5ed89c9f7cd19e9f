"""Every alternative of a question, priced on its own: what a plan was chosen among. Pure.

Slow beside `choose.plan`, which tells of the best few; both end every pair in the same way.
"""

from collections.abc import Iterator

from msgspec import Struct

from app.planner.choose import Plan, too_late
from app.planner.pricing import Priced, Waiting, bringing, computing, waiting
from app.planner.question import PlanExclusion, Question, Source, Target


class Considered(Struct, frozen=True):
    """One target, and a source or None for computing. `lost` is None for what was taken; without a
    price it was not priced, for the reason that `lost` says.
    """

    target: Target
    source: Source | None
    priced: Priced | None
    lost: PlanExclusion | None


def considered(question: Question, plan: Plan) -> Iterator[Considered]:
    """Each target's computing, then its pairs, in the order of the question."""
    for at, target in enumerate(question.targets):
        if target.excluded is not None:
            for source in (None, *question.sources):
                yield Considered(target, source, None, target.excluded)
            continue
        wait = waiting(target)
        compute = computing(question, target, wait)
        lost = too_late(question, compute.total_us, wait) or PlanExclusion.SLOWER
        taken = plan.chosen.target is target
        yield Considered(
            target, None, compute, None if taken and plan.chosen.source is None else lost
        )
        for place in range(len(question.sources)):
            yield _pair(question, (at, place), wait, compute, plan)


def _pair(
    question: Question, at: tuple[int, int], wait: Waiting, compute: Priced, plan: Plan
) -> Considered:
    target, source = question.targets[at[0]], question.sources[at[1]]
    barred = source.excluded or question.barred.get(at)
    if barred is not None:
        return Considered(target, source, None, barred)
    priced = bringing(question, target, wait, source, compute)
    if isinstance(priced, PlanExclusion):
        return Considered(target, source, None, priced)
    if plan.chosen.target is target and plan.chosen.source is source:
        return Considered(target, source, priced, None)
    return Considered(target, source, priced, _why(question, priced, wait))


def _why(question: Question, priced: Priced, wait: Waiting) -> PlanExclusion:
    bounds = question.bounds
    if not priced.gain_us - bounds.deviations * priced.gain_deviation_us > bounds.min_gain_us:
        return PlanExclusion.GAIN_UNCERTAIN
    return too_late(question, priced.total_us, wait) or PlanExclusion.SLOWER
