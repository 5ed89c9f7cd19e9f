"""Which part of a model's state an entry holds, and in what frame: the optional entry fields.

These go beyond the published contract. Each is accepted as written, but a value that is not
understood here makes the state non-reusable (`compatibility.standing`), never ignored.
"""

import re
from enum import StrEnum
from typing import Annotated

from msgspec import Meta, Struct

from app.contract.limits import U63, Label

ALL_LAYERS = "all"
UNSHARDED = "none"
_LAYER_RANGES = re.compile(r"[0-9]{1,6}(-[0-9]{1,6})?(,[0-9]{1,6}(-[0-9]{1,6})?)*", re.ASCII)


class PositionConvention(StrEnum):
    """How positions are baked into a state.

    absolute: counted from the prompt's first token, the default; relative: counted from the
    state's own first token; none: positions are not applied yet.
    """

    ABSOLUTE = "absolute"
    RELATIVE = "relative"
    NONE = "none"


class CheckpointKind(StrEnum):
    """snapshot: restores by itself. Deltas need their chain verified, which nothing does yet."""

    SNAPSHOT = "snapshot"


class ParallelRank(Struct, frozen=True, forbid_unknown_fields=True, gc=False):
    """One shard of `size`; `rank` counts from 0."""

    rank: Annotated[int, Meta(ge=0, le=2**31 - 1)]
    size: Annotated[int, Meta(ge=0, le=2**31 - 1)]


class ParallelScope(Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True, gc=False):
    """The shard along tensor, pipeline, expert and context parallelism; absent is unsharded."""

    tp: ParallelRank | None = None
    pp: ParallelRank | None = None
    ep: ParallelRank | None = None
    cp: ParallelRank | None = None


class CheckpointLineage(
    Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True, gc=False
):
    """Where a recurrent checkpoint comes from: its chain, its step in it, and its parent."""

    lineage: Label
    step: U63 | None = None
    parent: Label | None = None
    kind: Label = CheckpointKind.SNAPSHOT.value


AXES = ("tp", "pp", "ep", "cp")


def sharding(parallel: ParallelScope | None) -> str:
    """The axes that really split the state, "tp 1/2, pp 0/4", or "none": what scopes compare by."""
    if parallel is None:
        return UNSHARDED
    found = ((axis, getattr(parallel, axis)) for axis in AXES)
    split = [f"{axis} {s.rank}/{s.size}" for axis, s in found if s is not None and s.size != 1]
    return ", ".join(split) or UNSHARDED


def is_layer_scope(text: str) -> bool:
    """Whether `text` is "all" or ascending, disjoint layer ranges such as "0-15,31"."""
    if text == ALL_LAYERS:
        return True
    if _LAYER_RANGES.fullmatch(text) is None:
        return False
    last = -1
    for part in text.split(","):
        first, _, end = part.partition("-")
        low, high = int(first), int(end or first)
        if low <= last or high < low:
            return False
        last = high
    return True
