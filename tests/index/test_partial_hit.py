"""What to reuse of the best match, and what is left to compute."""

import pytest

from app.contract.enums import PlanDisposition, TierKind
from app.index.partial_hit import plan_partial_hit
from tests.fixtures.wire import TOKENS
from tests.index.rows import row, scope

MORE = [*TOKENS, 1, 2, 3]


def test_a_miss_has_no_plan(index):
    index.upsert(row("t"))
    assert plan_partial_hit(index, scope("t"), [1, 2, 3]) is None
    assert plan_partial_hit(index, scope("t"), []) is None
    assert plan_partial_hit(index, scope("u"), TOKENS) is None


@pytest.mark.parametrize(
    ("tier", "fetch_required"), [("host_dram", True), ("object_store", True), ("device", False)]
)
def test_a_full_hit_leaves_nothing_to_compute(index, tier, fetch_required):
    index.upsert(row("t", tier=tier))
    plan = plan_partial_hit(index, scope("t"), TOKENS)
    assert plan.disposition is PlanDisposition.FULL_REUSE
    assert plan.reusable.tokens == plan.entry.identity.key.tokens == TOKENS
    assert plan.reusable.source_tier is TierKind(tier)
    assert plan.remaining.tokens == []
    assert plan.remaining.fetch_required is fetch_required
    assert plan.remaining.recompute_required is False


def test_the_tokens_after_a_prefix_are_computed(index):
    index.upsert(row("t", tier="device"))
    plan = plan_partial_hit(index, scope("t"), MORE)
    assert plan.disposition is PlanDisposition.PARTIAL_REUSE
    assert (plan.reusable.tokens, plan.remaining.tokens) == (TOKENS, [1, 2, 3])
    assert plan.remaining.recompute_required is True
    assert plan.remaining.fetch_required is False


def test_a_plan_shows_no_token_beyond_the_match(index):
    index.upsert(row("t", capabilities=["full", "partial"]))
    query = [*TOKENS[:25], 7, 7]
    plan = plan_partial_hit(index, scope("t"), query)
    assert plan.entry.identity.key.tokens == plan.reusable.tokens == TOKENS[:25]
    assert plan.remaining.tokens == [7, 7]


def test_an_extent_is_floored_to_the_blocks_of_the_state(index):
    index.upsert(row("t", capabilities=["full", "partial"], granularity="block", block_tokens=16))
    plan = plan_partial_hit(index, scope("t"), TOKENS[:39])
    assert (len(plan.reusable.tokens), len(plan.remaining.tokens)) == (32, 7)
    assert plan_partial_hit(index, scope("t"), TOKENS[:15]) is None


def test_the_longest_candidate_is_planned(index):
    index.upsert(row("t", "short", tier="device", tokens=TOKENS[:10]))
    index.upsert(row("t", "long", tokens=TOKENS[:30]))
    assert plan_partial_hit(index, scope("t"), TOKENS).entry.identity.entry_id == "long"
