"""The longest, the shortest and the emptest there are: nothing infinite reaches an answer."""

import json
from math import isfinite
from typing import Any

import msgspec
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import structs

from app.contract.enums import TierKind
from app.contract.limits import MAX_I63
from app.lifecycle.plan_question import Asked, Origin
from app.lifecycle.plan_told import Teller, ToldPlan, start_by_us
from app.planner.choose import plan
from app.planner.explain import considered
from app.planner.links import Link, Links
from app.planner.pricing import MAX_US
from app.planner.profile import Path, Prefill, Profile
from app.planner.question import CostBounds, Question, Source, Target
from app.policy.document import load_policy
from app.settings import DEFAULT_POLICY_FILE
from tests.unit.planner.test_planner_oracle import everything_finite

POLICY = load_policy(DEFAULT_POLICY_FILE.read_bytes())
MOST = 1e15
# What documents and bodies accept at most, at least, and the next to nothing in between.
COST = st.sampled_from([0.0, 5e-324, 1.0, MOST])
RATE = st.sampled_from([5e-324, 1e-300, 1.0, MOST])
PART = st.sampled_from([0.0, 10.0])
TOKENS = st.sampled_from([0, 1, 2, 2**20, 2**40])
LOAD = st.none() | st.sampled_from([0, 1, 10**6, 2**40, 2**60])
PROFILES = st.builds(
    Profile,
    st.just("nexuskv.cost_profile.v1"),
    st.just("extreme"),
    st.just(""),
    st.builds(Prefill, COST, COST, COST, PART),
    st.lists(
        st.builds(Path, st.sampled_from(TierKind), COST, RATE, PART, st.none() | st.booleans()),
        max_size=3,
    ).map(tuple),
    COST,
    RATE,
    lookup_us=COST,
    sync_us=COST,
    decode_slowdown=PART,
    queued_tokens=COST,
)
TARGETS = st.builds(
    Target, st.sampled_from(["e1", "e2/3"]), st.just(1), st.sampled_from(["a", "b"]), PROFILES,
    TOKENS, LOAD, LOAD, LOAD, LOAD,
)  # fmt: skip
SOURCES = st.builds(
    Source, st.just("s"), st.sampled_from(["a", "b"]), st.sampled_from(TierKind), TOKENS,
    COST, st.sampled_from([0.0, 2.0**63]), st.booleans(), st.booleans(),
)  # fmt: skip
LINKS = st.builds(
    lambda link: Links(("a", "b"), {("a", "b"): link}),
    st.builds(Link, COST, st.just(0.0) | RATE, st.sampled_from([0, 65_536]), st.just(0)),
)
QUESTIONS = st.builds(
    Question,
    st.sampled_from([1, 2, 10**6]),
    st.lists(TARGETS, min_size=1, max_size=3).map(tuple),
    st.lists(SOURCES, max_size=3).map(tuple),
    LINKS,
    st.none() | st.sampled_from([1.0, 1e12]),
    st.builds(CostBounds, PART, COST, COST),
)


def every_number(value: Any) -> list[float]:
    if isinstance(value, dict):
        value = list(value.values())
    if isinstance(value, list):
        return [number for each in value for number in every_number(each)]
    return [value] if isinstance(value, int | float) and not isinstance(value, bool) else []


def told(question: Question) -> ToldPlan:
    origins = tuple(Origin("state", one.entry_id) for one in question.sources)
    teller = Teller(Asked(question, origins, ()), POLICY, [None] * len(question.targets))
    found = plan(question)
    return teller.plan(found, considered(question, found))


@settings(max_examples=400, deadline=None)
@given(question=QUESTIONS, explore=st.booleans())
def test_no_input_makes_a_cost_infinite(question: Question, *, explore: bool) -> None:
    found = plan(structs.replace(question, explore=explore))
    assert everything_finite(found)
    assert found.margin_us is None or isfinite(found.margin_us)


@settings(max_examples=400, deadline=None)
@given(question=QUESTIONS)
def test_what_is_told_is_whole_numbers_that_every_reader_holds(question: Question) -> None:
    answer = told(question)
    # As JSON has it: no NaN, no Infinity, and nothing beyond what a database's integer takes.
    text = msgspec.json.encode(answer)
    numbers = every_number(json.loads(text, parse_constant=lambda name: (_ for _ in ()).throw(
        AssertionError(name))))  # fmt: skip
    assert all(isinstance(number, int) and abs(number) <= MAX_I63 for number in numbers)
    for way in (answer.chosen, answer.fallback, *answer.alternatives):
        assert 0 <= way.total_us <= MAX_US
        assert 0 <= start_by_us(way) <= MAX_US
        assert all(0 <= term.value_us <= MAX_US for term in way.terms)
    assert msgspec.json.decode(text, type=ToldPlan) == answer


def test_an_overloaded_target_is_not_taken_to_learn() -> None:
    """What is uncertain there is no reason to make its queue longer."""
    prefill = Prefill(100.0, 5.0, 0.0, 0.1)
    path = Path(TierKind.HOST_DRAM, 0.0, 1.0, 10.0)
    profile = Profile(
        "nexuskv.cost_profile.v1", "p", "", prefill, (path,), 50.0, 1.0
    )  # fmt: skip
    busy = Target("busy", 1, "a", profile, 0, 1, 10_000)
    idle = Target("idle", 1, "b", profile, 0, 0, 0, free_tokens=0)
    state = Source("s", "a", TierKind.HOST_DRAM, 3_000, 1.0)
    asked = Question(4_000, (busy, idle), (state,), bounds=CostBounds(9.0, 0.0, 1_000.0))
    found = plan(structs.replace(asked, explore=True))
    assert (found.chosen.target.engine_id, found.explored) == ("idle", False)
    free = structs.replace(asked, bounds=CostBounds(9.0), explore=True)
    assert (plan(free).chosen.target.engine_id, plan(free).explored) == ("busy", True)
