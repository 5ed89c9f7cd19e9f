"""How far a prefix can be reused where an engine holds parts of it: the rule by attention type.

What a state depends on decides it. Full attention needs every block before a boundary; a sliding
window only the last ones; a recurrent state is one at a boundary and says nothing of any other;
sparse attention needs all parts of every block. A model with several KV cache groups can go on
only from a boundary at which each of them can. A boundary is a number of tokens from the start.
"""

from collections.abc import Iterable, Mapping, Sequence
from enum import StrEnum
from math import lcm
from typing import Final, NamedTuple

import msgspec

# Inclusive, of boundaries.
Range = tuple[int, int]


class Rule(StrEnum):
    """Which boundaries a group of blocks can be continued from."""

    PREFIX_CLOSED = "prefix_closed"
    WINDOW = "window"
    CHECKPOINT_ONLY = "checkpoint_only"
    DEPENDENCY_COMPLETE = "dependency_complete"


class Tier(StrEnum):
    """Where blocks are, from the nearest to the farthest."""

    GPU = "gpu"
    CPU = "cpu"
    DISK = "disk"
    REMOTE = "remote"
    UNKNOWN = "unknown"

    # Enum's own is a call of Python code, for each look-up of each candidate.
    __hash__ = str.__hash__


class AttentionKind(StrEnum):
    """What `kv_cache_spec_kind` is of a group whose rule is known."""

    FULL_ATTENTION = "full_attention"
    MLA_ATTENTION = "mla_attention"
    CHUNKED_LOCAL_ATTENTION = "chunked_local_attention"
    SINK_FULL_ATTENTION = "sink_full_attention"
    SLIDING_WINDOW = "sliding_window"
    SLIDING_WINDOW_MLA = "sliding_window_mla"
    MAMBA = "mamba"
    LINEAR_ATTENTION = "linear_attention"
    GATED_DELTA_NET = "gated_delta_net"
    KDA = "kda"
    SSM = "ssm"
    RECURRENT = "recurrent"
    SPARSE_ATTENTION = "sparse_attention"
    SPARSE_MLA = "sparse_mla"
    SPARSE_INDEX = "sparse_index"


# By `kv_cache_spec_kind`. A kind that is not here is of a rule that nobody knows: it is never used.
# Nor is cross attention, whose state depends on what its tokens do not tell.
RULES: Final[Mapping[str | None, Rule]] = {
    # Engines that do not say have one kind of attention, the full one.
    None: Rule.PREFIX_CLOSED,
    AttentionKind.FULL_ATTENTION.value: Rule.PREFIX_CLOSED,
    AttentionKind.MLA_ATTENTION.value: Rule.PREFIX_CLOSED,
    AttentionKind.CHUNKED_LOCAL_ATTENTION.value: Rule.PREFIX_CLOSED,
    AttentionKind.SINK_FULL_ATTENTION.value: Rule.PREFIX_CLOSED,
    AttentionKind.SLIDING_WINDOW.value: Rule.WINDOW,
    AttentionKind.SLIDING_WINDOW_MLA.value: Rule.WINDOW,
    AttentionKind.MAMBA.value: Rule.CHECKPOINT_ONLY,
    AttentionKind.LINEAR_ATTENTION.value: Rule.CHECKPOINT_ONLY,
    AttentionKind.GATED_DELTA_NET.value: Rule.CHECKPOINT_ONLY,
    AttentionKind.KDA.value: Rule.CHECKPOINT_ONLY,
    AttentionKind.SSM.value: Rule.CHECKPOINT_ONLY,
    AttentionKind.RECURRENT.value: Rule.CHECKPOINT_ONLY,
    AttentionKind.SPARSE_ATTENTION.value: Rule.DEPENDENCY_COMPLETE,
    AttentionKind.SPARSE_MLA.value: Rule.DEPENDENCY_COMPLETE,
    AttentionKind.SPARSE_INDEX.value: Rule.DEPENDENCY_COMPLETE,
}

_TIERS: Final[Mapping[str, Tier]] = {
    "gpu": Tier.GPU, "device": Tier.GPU, "hbm": Tier.GPU,
    "cpu": Tier.CPU, "cpu_pinned": Tier.CPU, "host": Tier.CPU, "dram": Tier.CPU,
    "disk": Tier.DISK, "storage": Tier.DISK, "fs": Tier.DISK, "ssd": Tier.DISK, "nvme": Tier.DISK,
    "obj": Tier.REMOTE, "external": Tier.REMOTE, "remote": Tier.REMOTE, "object": Tier.REMOTE,
}  # fmt: skip
TIERS: Final = tuple(Tier)
_ORDER: Final = {tier: number for number, tier in enumerate(TIERS)}


class GroupRule(NamedTuple):
    """A KV cache group: `rule` is None for a kind that nobody knows."""

    rule: Rule | None
    window_tokens: int | None = None


class Held(NamedTuple):
    """Blocks from `start` to before `end` of a group, at a tier.

    A connector may keep a group in larger blocks than the engine does.
    """

    tier: Tier
    group: int
    block_tokens: int
    start: int
    end: int


class TierReach(msgspec.Struct, frozen=True, gc=False):
    """Usable tokens: from this tier alone, and from it with every nearer one."""

    only: int
    cumulative: int


class Reach(NamedTuple):
    """`tokens`: the largest usable boundary. Tiers from the nearest, those that have a block."""

    tokens: int
    tiers: dict[Tier, TierReach]


NOTHING: Final = Reach(0, {})


def tier_of(medium: str) -> Tier:
    """`medium` in lower case; UNKNOWN for one that nobody knows."""
    return _TIERS.get(medium, Tier.UNKNOWN)


def group_rule(kind: str | None, window_tokens: int | None) -> GroupRule:
    """From what events say of a group. Of a window whose length is not said all is needed."""
    rule = RULES.get(kind)
    if rule is Rule.WINDOW and not window_tokens:
        rule = Rule.PREFIX_CLOSED
    return GroupRule(rule, window_tokens)


def reach(held: Sequence[Held], groups: Mapping[int, GroupRule]) -> Reach:
    """How far a prefix can be reused at one location, whose groups are all of these.

    `held` is of one chain, in any order. A group of an unknown kind makes nothing usable.
    """
    if len(held) == 1 == len(groups):
        return _of_one(held[0], groups)
    if not held or any(group.rule is None for group in groups.values()):
        return NOTHING
    found: dict[Tier, TierReach] = {}
    nearer: list[Held] = []
    cumulative = 0
    for tier in sorted({one.tier for one in held}, key=_ORDER.__getitem__):
        here = [one for one in held if one.tier is tier]
        only = _boundary(here, groups)
        if nearer:
            nearer += here
            # What some of the tiers can do is not undone by blocks of another size elsewhere.
            cumulative = max(cumulative, only, _boundary(nearer, groups))
        else:
            nearer, cumulative = here, only
        found[tier] = TierReach(only, cumulative)
    return Reach(cumulative, found)


def _of_one(held: Held, groups: Mapping[int, GroupRule]) -> Reach:
    """The usual case: one group, and one stretch of it."""
    tier, number, block, start, end = held
    group = groups.get(number)
    if group is None:
        return Reach(0, {tier: TierReach(0, 0)})
    if group.rule is None:
        return NOTHING
    tokens = end * block
    # From the first block on every rule allows the last boundary.
    if start and not _usable([held], group):
        tokens = 0
    return Reach(tokens, {tier: TierReach(tokens, tokens)})


def _boundary(held: Sequence[Held], groups: Mapping[int, GroupRule]) -> int:
    """The largest one from which every group can be continued, 0 for none.

    It is a boundary of blocks of every size that there is.
    """
    usable: list[Range] | None = None
    for number, group in groups.items():
        here = _usable([one for one in held if one.group == number], group)
        usable = here if usable is None else _both(usable, here)
        if not usable:
            return 0
    step = lcm(*{one.block_tokens for one in held if one.group in groups})
    fitting = [high - high % step for low, high in usable or () if high - high % step >= low]
    return max(fitting, default=0)


def _usable(held: Sequence[Held], group: GroupRule) -> list[Range]:
    """The boundaries above 0 from which this group, whose blocks these are, can be continued."""
    if group.rule is Rule.CHECKPOINT_ONLY:
        # What a part of a block left behind is nowhere: only the end of a block is a boundary.
        return [((one.start + 1) * one.block_tokens, one.end * one.block_tokens) for one in held]
    usable = []
    for start, end in _merged(held):
        # At the front there is no more to need than there is.
        low = 1
        if start:
            if group.rule is not Rule.WINDOW or group.window_tokens is None:
                break
            low = start + group.window_tokens
        if low <= end:
            usable.append((low, end))
    return usable


def _merged(held: Iterable[Held]) -> list[Range]:
    """Ascending, half open, in tokens; none touches the next."""
    merged: list[Range] = []
    for start, end in sorted(
        (one.start * one.block_tokens, one.end * one.block_tokens) for one in held
    ):
        if merged and start <= merged[-1][1]:
            merged[-1] = (merged[-1][0], max(merged[-1][1], end))
        else:
            merged.append((start, end))
    return merged


def _both(left: Sequence[Range], right: Sequence[Range]) -> list[Range]:
    found = []
    for low, high in left:
        for other_low, other_high in right:
            both = max(low, other_low), min(high, other_high)
            if both[0] <= both[1]:
                found.append(both)
    return found
