"""How far a prefix can be reused, by attention type: worked examples, and a brute force."""

from collections.abc import Mapping, Sequence
from math import lcm

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.engines.reach import (
    RULES,
    GroupRule,
    Held,
    Rule,
    Tier,
    TierReach,
    group_rule,
    reach,
    tier_of,
)

FULL = GroupRule(Rule.PREFIX_CLOSED)
GPU, CPU, DISK = Tier.GPU, Tier.CPU, Tier.DISK


def held(
    *stretches: tuple[int, int], group: int = 0, tier: Tier = GPU, block: int = 16
) -> list[Held]:
    return [Held(tier, group, block, start, end) for start, end in stretches]


def tokens(blocks: Sequence[Held], groups: Mapping[int, GroupRule]) -> int:
    return reach(blocks, groups).tokens


@pytest.mark.parametrize(
    ("stretches", "usable"),
    [
        ([(0, 4)], 64),
        # What is behind a hole depends on what is in it.
        ([(0, 2), (3, 9)], 32),
        ([(1, 9)], 0),
        ([(0, 2), (2, 5)], 80),
        ([], 0),
    ],
)
@pytest.mark.parametrize("rule", [Rule.PREFIX_CLOSED, Rule.DEPENDENCY_COMPLETE])
def test_attention_to_everything_needs_every_block_from_the_first(rule, stretches, usable) -> None:
    assert tokens(held(*stretches), {0: GroupRule(rule)}) == usable


@pytest.mark.parametrize(
    ("stretches", "usable"),
    [
        # A window of 32 tokens is two blocks of 16: (5, 7) is one that ends at 7 * 16.
        ([(5, 7)], 112),
        ([(5, 6)], 0),
        # At the front there is no more to need than there is.
        ([(0, 1)], 16),
        ([(0, 1), (5, 6)], 16),
        ([(0, 3), (9, 20)], 320),
    ],
)
def test_a_window_needs_its_last_tokens_only(stretches, usable) -> None:
    assert tokens(held(*stretches), {0: GroupRule(Rule.WINDOW, 32)}) == usable


def test_a_window_that_ends_within_a_block_needs_the_whole_block() -> None:
    groups = {0: GroupRule(Rule.WINDOW, 17)}
    assert tokens(held((5, 6)), groups) == 0
    assert tokens(held((5, 7)), groups) == 112


def test_of_a_window_without_a_length_all_is_needed() -> None:
    groups = {0: group_rule("sliding_window", None)}
    assert tokens(held((5, 9)), groups) == 0
    assert tokens(held((0, 9)), groups) == 144


def test_a_recurrent_state_is_of_its_boundary_alone() -> None:
    groups = {0: GroupRule(Rule.CHECKPOINT_ONLY)}
    # The states after the third and after the fifth block of 64.
    assert tokens(held((2, 3), (4, 5), block=64), groups) == 320
    assert tokens(held((2, 3), block=64), groups) == 192


def test_a_hybrid_model_goes_on_only_where_all_its_groups_do() -> None:
    groups = {0: FULL, 1: GroupRule(Rule.CHECKPOINT_ONLY)}
    attention = held((0, 14))
    # 14 blocks of 16 are 224 tokens; the last recurrent state before is that of 192.
    assert tokens(attention + held((2, 3), group=1, block=64), groups) == 192
    # A state behind what attention has is of no use, nor is attention alone.
    assert tokens(attention + held((3, 4), group=1, block=64), groups) == 0
    assert tokens(attention, groups) == 0
    assert tokens(held((2, 3), group=1, block=64), groups) == 0


def test_a_hybrid_of_full_and_windowed_attention() -> None:
    groups = {0: FULL, 1: GroupRule(Rule.WINDOW, 32)}
    assert tokens(held((0, 10)) + held((4, 8), group=1), groups) == 128
    assert tokens(held((0, 5)) + held((4, 8), group=1), groups) == 0
    assert tokens(held((0, 6)) + held((4, 8), group=1), groups) == 96


def test_sparse_states_need_all_their_parts() -> None:
    groups = {0: GroupRule(RULES["sparse_mla"]), 1: GroupRule(RULES["sparse_index"])}
    assert tokens(held((0, 8)) + held((0, 5), group=1), groups) == 80
    assert tokens(held((0, 8)), groups) == 0


def test_a_kind_that_nobody_knows_is_never_used() -> None:
    strange = group_rule("holographic_attention", None)
    assert strange.rule is None
    assert tokens(held((0, 8)), {0: strange}) == 0
    assert tokens(held((0, 8)) + held((0, 8), group=1), {0: FULL, 1: strange}) == 0


def test_tiers_alone_and_with_the_nearer_ones() -> None:
    #  block   0 1 2 3 4 5 6 7
    #  gpu     # # #
    #  cpu     # # # # # .
    #  disk            # # # #    (from the fifth block on)
    found = reach(held((0, 3)) + held((0, 5), tier=CPU) + held((4, 8), tier=DISK), {0: FULL})
    assert found.tokens == 128
    assert found.tiers == {
        GPU: TierReach(48, 48), CPU: TierReach(80, 80), DISK: TierReach(0, 128),
    }  # fmt: skip
    assert list(found.tiers) == [GPU, CPU, DISK]


def test_groups_of_a_hybrid_may_be_at_different_tiers() -> None:
    groups = {0: FULL, 1: GroupRule(Rule.CHECKPOINT_ONLY)}
    found = reach(held((0, 8)) + held((1, 2), group=1, tier=CPU, block=64), groups)
    assert found.tiers == {GPU: TierReach(0, 0), CPU: TierReach(0, 128)}


def test_larger_blocks_at_a_farther_tier() -> None:
    # 80 tokens at the GPU in blocks of 16, 128 at the CPU in blocks of 64.
    found = reach(held((0, 5)) + held((0, 2), tier=CPU, block=64), {0: FULL})
    assert found.tiers == {GPU: TierReach(80, 80), CPU: TierReach(128, 128)}
    # Between the larger blocks' boundaries only the GPU can go on.
    found = reach(held((0, 5)) + held((0, 1), tier=CPU, block=64), {0: FULL})
    assert found.tiers == {GPU: TierReach(80, 80), CPU: TierReach(64, 80)}


@pytest.mark.parametrize(
    ("medium", "tier"),
    [
        ("gpu", Tier.GPU), ("cpu", Tier.CPU), ("cpu_pinned", Tier.CPU), ("disk", Tier.DISK),
        ("storage", Tier.DISK), ("fs", Tier.DISK), ("obj", Tier.REMOTE), ("external", Tier.REMOTE),
        ("holograph", Tier.UNKNOWN),
    ],
)  # fmt: skip
def test_media_have_tiers(medium: str, tier: Tier) -> None:
    assert tier_of(medium) is tier


# ---- the same by trying every boundary

TOKENS = 24
RULE = st.builds(GroupRule, st.sampled_from(list(Rule)), st.integers(1, 9))


def continues(rule: GroupRule, blocks: Sequence[Held], boundary: int) -> bool:
    """Whether a group can go on from a boundary, from what its rule says in words."""
    if any(boundary % one.block_tokens for one in blocks):
        return False
    ends = {(at + 1) * one.block_tokens for one in blocks for at in range(one.start, one.end)}
    if rule.rule is Rule.CHECKPOINT_ONLY:
        return boundary in ends
    there = {
        token
        for one in blocks
        for token in range(one.start * one.block_tokens, one.end * one.block_tokens)
    }
    first = 0
    if rule.rule is Rule.WINDOW:
        assert rule.window_tokens is not None
        first = max(0, boundary - rule.window_tokens)
    return set(range(first, boundary)) <= there


def tried(blocks: Sequence[Held], groups: Mapping[int, GroupRule]) -> int:
    step = lcm(*{one.block_tokens for one in blocks if one.group in groups})
    fitting = [
        boundary
        for boundary in range(step, TOKENS + 1, step)
        if all(
            continues(group, [one for one in blocks if one.group == number], boundary)
            for number, group in groups.items()
        )
    ]
    return max(fitting, default=0)


@st.composite
def stretches(draw) -> Held:
    block = draw(st.sampled_from([1, 2, 3, 4]))
    start = draw(st.integers(0, TOKENS // block - 1))
    end = draw(st.integers(start + 1, TOKENS // block))
    tier = draw(st.sampled_from([GPU, CPU, Tier.UNKNOWN]))
    return Held(tier, draw(st.integers(0, 1)), block, start, end)


@given(st.lists(stretches(), max_size=6), st.lists(RULE, min_size=1, max_size=2))
def test_it_is_what_trying_every_boundary_finds(blocks, rules) -> None:
    groups = dict(enumerate(rules))
    found = reach(blocks, groups)
    nearer: list[Held] = []
    most = 0
    for tier, reached in found.tiers.items():
        here = [one for one in blocks if one.tier is tier]
        nearer += here
        most = max(most, tried(here, groups), tried(nearer, groups))
        assert reached == TierReach(tried(here, groups), most)
        assert reached.cumulative >= reached.only
    assert len(nearer) == len(blocks)
    assert found.tokens == most
