"""The plan against all pairs priced one by one."""

from collections import Counter
from math import isclose, isfinite
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import structs

from app.contract.enums import TierKind
from app.planner.choose import Plan, plan
from app.planner.explain import considered
from app.planner.links import Link, Links
from app.planner.pricing import bringing, computing, waiting
from app.planner.profile import Path, Prefill, Profile
from app.planner.question import (
    PAIR_EXCLUSIONS,
    CostBounds,
    PlanExclusion,
    Question,
    Source,
    Target,
)
from tests.unit.planner.questions import PROFILE

NODES = ("n1", "n2", "n3", "elsewhere")
COST = st.floats(0, 1e6)
RATE = st.floats(1, 1e6)
PART = st.floats(0, 2)
COUNT = st.integers(0, 10_000)
PREFILLS = st.builds(Prefill, COST, st.floats(0, 1e3), st.floats(0, 1), PART)
PATHS = st.builds(Path, st.sampled_from(TierKind), COST, RATE, PART, st.none() | st.booleans())
PROFILES = st.just(PROFILE) | st.builds(
    Profile,
    st.just("nexuskv.cost_profile.v1"),
    st.just("drawn"),
    st.just(""),
    PREFILLS,
    st.lists(PATHS, max_size=6).map(tuple),
    COST,
    RATE,
    lookup_us=COST,
    sync_us=COST,
    decode_slowdown=st.floats(0, 1e-3),
    queued_tokens=st.floats(0, 1e4),
)
LINKS = st.dictionaries(
    st.tuples(st.sampled_from(NODES[:3]), st.sampled_from(NODES[:3])),
    st.builds(Link, COST, st.just(0.0) | RATE, st.integers(0, 3), st.integers(0, 3)),
).map(lambda known: Links(NODES[:3], known))
UNKNOWN = st.none() | COUNT
TARGETS = st.builds(
    Target,
    st.sampled_from(["e1", "e2", "e3"]),
    st.integers(1, 9),
    st.sampled_from(NODES),
    PROFILES,
    COUNT,
    UNKNOWN,
    UNKNOWN,
    UNKNOWN,
    UNKNOWN,
    st.none() | st.none() | st.just(PlanExclusion.UNKNOWN_GENERATION),
)
SOURCES = st.builds(
    Source,
    st.sampled_from(["s1", "s2", "s3", "s4"]),
    st.sampled_from(NODES),
    st.sampled_from(TierKind),
    COUNT,
    st.floats(0, 1e6),
    st.floats(0, 1e9),
    st.booleans(),
    st.booleans(),
    st.none() | st.none() | st.sampled_from([PlanExclusion.QUOTA, PlanExclusion.INCOMPATIBLE]),
)
QUESTIONS = st.builds(
    Question,
    st.integers(1, 10_000),
    st.lists(TARGETS, min_size=1, max_size=4).map(tuple),
    st.lists(SOURCES, max_size=5).map(tuple),
    LINKS,
    st.none() | st.floats(0, 1e8),
    st.builds(CostBounds, st.floats(0, 3), st.floats(0, 1e5), st.just(0.0) | COST),
)
BARRED = st.dictionaries(
    st.tuples(st.integers(0, 3), st.integers(0, 4)), st.sampled_from(PAIR_EXCLUSIONS), max_size=6
)


def barring(question: Question, barred: dict[tuple[int, int], PlanExclusion]) -> Question:
    """Only pairs that there are."""
    kept = {
        (target, source): reason
        for (target, source), reason in barred.items()
        if target < len(question.targets) and source < len(question.sources)
    }
    return structs.replace(question, barred=kept)


def usable(question: Question) -> bool:
    return any(target.excluded is None for target in question.targets)


def all_pairs(question: Question) -> tuple[float, Counter[PlanExclusion], bool]:
    """The least cost of all that may be done, how everything ended, and whether anything may be."""
    bounds, ended, open_us, late_us = question.bounds, Counter[PlanExclusion](), [], []
    for at, target in enumerate(question.targets):
        if target.excluded is not None:
            ended[target.excluded] += 1 + len(question.sources)
            continue
        wait = waiting(target)
        compute = computing(question, target, wait)
        for place, source in enumerate((None, *question.sources), -1):
            found: Any = compute
            if source is not None:
                barred = source.excluded or question.barred.get((at, place))
                found = barred or bringing(question, target, wait, source, compute)
            if isinstance(found, PlanExclusion):
                ended[found] += 1
                continue
            least = found.gain_us - bounds.deviations * found.gain_deviation_us
            if source is not None and not least > bounds.min_gain_us:
                ended[PlanExclusion.GAIN_UNCERTAIN] += 1
            elif question.deadline_us is not None and found.total_us > question.deadline_us:
                ended[PlanExclusion.DEADLINE] += 1
                late_us.append(found.total_us)
            elif 0 < bounds.max_queue_us < wait.known_us:
                ended[PlanExclusion.OVERLOADED] += 1
                late_us.append(found.total_us)
            else:
                ended[PlanExclusion.SLOWER] += 1
                open_us.append(found.total_us)
    return min(open_us or late_us), ended, bool(open_us)


def everything_finite(found: Plan) -> bool:
    shown = [found.chosen, found.fallback, *found.alternatives]
    return all(
        isfinite(value)
        for one in shown
        for value in (
            one.priced.total_us,
            one.priced.gain_us,
            one.priced.gain_deviation_us,
            *(part.value_us for part in one.priced.parts),
            *(part.deviation_us for part in one.priced.parts),
        )
    )


@settings(max_examples=400, deadline=None)
@given(question=st.builds(barring, QUESTIONS.filter(usable), BARRED))
def test_the_plan_is_the_best_of_all_pairs(question: Question) -> None:
    found = plan(question)
    least_us, ended, _ = all_pairs(question)
    assert isclose(found.chosen.priced.total_us, least_us, rel_tol=1e-9, abs_tol=1e-6)
    # The one that is taken is no exclusion.
    assert sum(found.excluded.values()) == sum(ended.values()) - 1
    differing = {
        reason
        for reason in ended | found.excluded
        if ended[reason] != found.excluded.get(reason, 0)
    }
    assert len(differing) == 1
    assert everything_finite(found)
    for one in (found.chosen, *found.alternatives):
        parts = sum(part.value_us for part in one.priced.parts)
        assert isclose(parts, one.priced.total_us, rel_tol=1e-9, abs_tol=1e-6)
        assert all(part.value_us >= 0 and part.deviation_us >= 0 for part in one.priced.parts)
    assert found.margin_us is None or found.margin_us >= 0


@settings(max_examples=200, deadline=None)
@given(question=QUESTIONS.filter(usable))
def test_more_choice_is_never_worse(question: Question) -> None:
    """Without a source the best of the rest is at most as good."""
    found = plan(question)
    fewer = Question(
        question.tokens, question.targets, question.sources[1:], question.links,
        question.deadline_us, question.bounds,
    )  # fmt: skip
    if not found.late and not plan(fewer).late:
        least, least_fewer = found.chosen.priced.total_us, plan(fewer).chosen.priced.total_us
        open_now, open_fewer = all_pairs(question)[2], all_pairs(fewer)[2]
        assert least <= least_fewer * (1 + 1e-9) or open_now > open_fewer


@settings(max_examples=300, deadline=None)
@given(question=st.builds(barring, QUESTIONS.filter(usable), BARRED), explore=st.booleans())
def test_every_alternative_is_told_as_it_was_counted(question: Question, *, explore: bool) -> None:
    question = structs.replace(question, explore=explore)
    found = plan(question)
    told = list(considered(question, found))
    assert len(told) == len(question.targets) * (1 + len(question.sources))
    (taken,) = (one for one in told if one.lost is None)
    assert taken.priced == found.chosen.priced
    assert Counter(one.lost for one in told if one.lost is not None) == found.excluded
    shown = {(id(one.target), id(one.source)): one for one in told}
    for one in found.alternatives:
        same = shown[id(one.target), id(one.source)]
        assert (same.priced, same.lost) == (one.priced, one.lost)


@settings(max_examples=200, deadline=None)
@given(question=QUESTIONS.filter(usable))
def test_only_what_is_uncertain_and_in_time_is_taken_to_learn(question: Question) -> None:
    as_usual, learning = plan(question), plan(structs.replace(question, explore=True))
    if not learning.explored:
        assert learning == as_usual
        return
    assert as_usual.chosen.source is None
    chosen = learning.chosen
    assert chosen.source is not None
    bounds, priced = question.bounds, chosen.priced
    least_us = priced.gain_us - bounds.deviations * priced.gain_deviation_us
    assert least_us <= bounds.min_gain_us
    assert question.deadline_us is None or priced.total_us <= question.deadline_us
