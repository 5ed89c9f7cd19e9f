"""What the planner chooses, from figures worked out by hand."""

import pytest

from app.contract.enums import TierKind
from app.errors import ErrorCode, NexusError
from app.planner.choose import MAX_ALTERNATIVES, Plan, PlanAction, plan
from app.planner.cost import Provenance
from app.planner.links import Link
from app.planner.question import CostBounds, PlanExclusion, Question
from tests.unit.planner.questions import PREFILL, links, question, source, target

X = PlanExclusion


def parts(found: Plan) -> dict[str, float]:
    return {part.name: part.value_us for part in found.chosen.priced.parts}


def test_state_elsewhere_is_brought_and_the_tail_computed() -> None:
    """4,000 of 5,000 tokens: 40 MB at 5 GB/s behind half a millisecond."""
    found = plan(question())
    assert found.chosen.action is PlanAction.TRANSFER
    assert parts(found) == {
        "lookup": 30.0,
        "queue": 0.0,
        "transfer": 500.0 + 40e6 / 5_000,
        "restore": 50.0,
        "sync": 10.0,
        "schedule": 100.0,
        # 1,000 tokens behind 4,000: 20 us each, and 0.001 for each of 4,500,000 pairs.
        "recompute": 1_000 * 20.0 + 0.001 * (1_000 * 4_000 + 1_000**2 / 2),
        "interference": 0.0,
    }
    assert found.chosen.priced.total_us == sum(parts(found).values())
    assert found.fallback.action is PlanAction.RECOMPUTE
    assert found.fallback.priced.total_us == 100 + 5_000 * 20.0 + 0.001 * 5_000**2 / 2
    assert found.margin_us == found.fallback.priced.total_us - found.chosen.priced.total_us
    assert [(one.action, one.lost) for one in found.alternatives] == [
        (PlanAction.RECOMPUTE, X.SLOWER)
    ]
    assert found.excluded == {X.SLOWER: 1}


def test_what_waits_in_a_queue_moves_meanwhile() -> None:
    busy = target(queued_prefill_tokens=200)
    found = plan(question(targets=(busy,)))
    queue_us = PREFILL.recompute_us(200, 0)
    assert parts(found)["queue"] == queue_us
    assert parts(found)["transfer"] == pytest.approx(8_500 - queue_us)


def test_a_target_that_has_the_prefix_needs_no_transfer() -> None:
    holder, idle = target("holder", local_tokens=4_500, node="node-9"), target("idle")
    found = plan(question(targets=(idle, holder)))
    assert (found.chosen.action, found.chosen.target.engine_id) == (
        PlanAction.ROUTE_TO_STATE,
        "holder",
    )
    # A queue of 5,000 tokens is longer than bringing the state to another one.
    full = target("holder", local_tokens=4_500, node="node-9", queued_prefill_tokens=5_000)
    found = plan(question(targets=(idle, full)))
    assert (found.chosen.action, found.chosen.target.engine_id) == (PlanAction.TRANSFER, "idle")


@pytest.mark.parametrize(
    ("local", "action"), [(4_999, PlanAction.FULL_REUSE), (2_000, PlanAction.PARTIAL_REUSE)]
)
def test_one_target_with_some_of_it(local: int, action: PlanAction) -> None:
    found = plan(question(targets=(target(local_tokens=local),), sources=()))
    assert found.chosen.action is action
    assert found.chosen.priced.tail_tokens == 5_000 - local
    assert found.fallback.action is PlanAction.RECOMPUTE


def test_a_middle_is_brought_between_what_is_there_and_the_tail() -> None:
    found = plan(question(targets=(target(local_tokens=1_000),)))
    assert found.chosen.action is PlanAction.SPLIT
    assert found.chosen.priced.moved_bytes == 3_000 * 10_000
    assert found.chosen.priced.tail_tokens == 1_000


def test_the_last_token_is_always_computed() -> None:
    found = plan(question(tokens=4_000))
    assert found.chosen.priced.tail_tokens == 1


def test_so_much_as_there_are_blocks_for() -> None:
    found = plan(question(targets=(target(free_tokens=3_000),)))
    assert found.chosen.priced.tail_tokens == 2_000


def test_equal_plans_are_the_same_on_every_replica() -> None:
    targets = tuple(target(name) for name in ("e3", "e1", "e2"))
    found = [plan(question(targets=order)) for order in (targets, targets[::-1])]
    assert [one.chosen.target.engine_id for one in found] == ["e1", "e1"]


EXCLUDED = {
    X.INCOMPATIBLE: question(sources=(source(excluded=X.INCOMPATIBLE),)),
    X.UNAVAILABLE: question(sources=(source(excluded=X.UNAVAILABLE),)),
    X.POLICY_DENIED: question(sources=(source(excluded=X.POLICY_DENIED),)),
    X.QUOTA: question(sources=(source(excluded=X.QUOTA),)),
    X.UNKNOWN_GENERATION: question(targets=(target("e0", excluded=X.UNKNOWN_GENERATION), target())),
    X.NOT_LONGER: question(targets=(target(local_tokens=4_000),)),
    X.NO_PATH: question(sources=(source(tier=TierKind.OBJECT_STORE),)),
    X.LINK_BUSY: question(links=links(to_1=Link(in_flight=2, max_in_flight=2))),
    X.NO_CAPACITY: question(targets=(target(free_tokens=0),)),
    X.OVERLOADED: question(
        targets=(target("e0", queued_prefill_tokens=1_000), target()),
        bounds=CostBounds(max_queue_us=1_000),
    ),
    X.DEADLINE: question(deadline_us=50_000.0),
    X.GAIN_UNCERTAIN: question(bounds=CostBounds(deviations=100.0)),
    X.SLOWER: question(sources=(source(), source("s2", tokens=100))),
}


@pytest.mark.parametrize("reason", PlanExclusion)
def test_each_reason_is_told(reason: PlanExclusion) -> None:
    found = plan(EXCLUDED[reason])
    assert found.excluded[reason] >= 1
    shown = {one.lost for one in found.alternatives}
    assert shown <= set(found.excluded)


def test_state_is_brought_only_where_the_gain_is_sure() -> None:
    """A transfer of 1,000 tokens gains little, and is as uncertain as the link."""
    asked = question(sources=(source(tokens=1_000, bytes_per_token=80_000.0),))
    sure, unsure = (
        plan(asked),
        plan(
            Question(asked.tokens, asked.targets, asked.sources, bounds=CostBounds(deviations=2.0))
        ),
    )
    assert sure.chosen.action is PlanAction.TRANSFER
    assert unsure.chosen.action is PlanAction.RECOMPUTE
    assert unsure.excluded == {X.GAIN_UNCERTAIN: 1}
    (lost,) = unsure.alternatives
    assert lost.priced.gain_us > 0
    assert lost.priced.gain_us < 2 * lost.priced.gain_deviation_us


def test_what_nobody_said_is_uncertain_and_says_so() -> None:
    silent = target(queue_depth=None, queued_prefill_tokens=None)
    queue = plan(question(targets=(silent,))).chosen.priced.parts[1]
    # As one request of 1,000 tokens: what is not known draws nobody.
    assert (queue.value_us, queue.provenance) == (20_500.0, Provenance.UNKNOWN)
    assert plan(question(targets=(silent, target("e2")))).chosen.target.engine_id == "e2"
    assert queue.deviation_us == PREFILL.recompute_us(1_000, 0)
    deep = target(queue_depth=2, queued_prefill_tokens=None)
    queue = plan(question(targets=(deep,))).chosen.priced.parts[1]
    assert queue.value_us == 2 * PREFILL.recompute_us(1_000, 0) + 200
    assert queue.provenance is Provenance.DEFAULT
    guessed = plan(question(sources=(source(bytes_known=False),)))
    assert guessed.chosen.priced.parts[2].provenance is Provenance.DEFAULT


def test_a_deadline_that_nobody_meets_is_told() -> None:
    found = plan(question(deadline_us=1.0))
    assert found.late
    assert found.chosen.action is PlanAction.TRANSFER
    assert found.excluded == {X.DEADLINE: 1}


def test_at_most_sixteen_alternatives_are_shown() -> None:
    many = question(targets=tuple(target(f"e{n:02}") for n in range(20)))
    assert len(plan(many).alternatives) == MAX_ALTERNATIVES


@pytest.mark.parametrize(
    "asked",
    [
        question(targets=()),
        question(targets=(target(excluded=X.UNKNOWN_GENERATION),)),
        question(tokens=0),
    ],
)
def test_a_question_without_an_answer_is_refused(asked: Question) -> None:
    with pytest.raises(NexusError) as caught:
        plan(asked)
    none = ErrorCode.INVALID_FIELD if not asked.tokens else ErrorCode.NO_USABLE_TARGET
    assert caught.value.code is none
