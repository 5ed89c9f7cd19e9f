"""What a lookup answers: the match, what remains to be done, and the plan for a partial hit."""

from typing import Annotated

from msgspec import Meta, Struct

from app.contract.entry import CacheEntry, QueryKey, ReuseKey
from app.contract.enums import Granularity, MatchClassification, PlanDisposition, TierKind
from app.contract.limits import U63, Detail, Tokens

Units = Annotated[U63, Meta(description="in tokens, whatever the granularity")]


class MatchExtent(Struct, frozen=True, forbid_unknown_fields=True, gc=False):
    """`units` counts tokens on every wire; `granularity` says how it was floored."""

    units: Units
    granularity: Granularity


class RemainingWork(Struct, frozen=True, forbid_unknown_fields=True, gc=False):
    """The query's tokens that no reused state covers."""

    tokens: Tokens
    fetch_required: bool
    recompute_required: bool


class CompatibilitySignal(Struct, frozen=True, forbid_unknown_fields=True, gc=False):
    reusable: bool
    fallback_to_recompute: bool
    reason: Detail


class MatchResult(Struct, frozen=True, forbid_unknown_fields=True, gc=False):
    classification: MatchClassification
    matched_key: ReuseKey
    requested_key: QueryKey
    matched_extent: MatchExtent
    entry: CacheEntry
    remaining: RemainingWork
    compatibility: CompatibilitySignal


class ReusableSlice(Struct, frozen=True, forbid_unknown_fields=True, gc=False):
    tokens: Tokens
    source_tier: TierKind


class PartialHitPlan(Struct, frozen=True, forbid_unknown_fields=True, gc=False):
    """What to reuse of one matched entry and what to compute; a miss has no plan."""

    disposition: PlanDisposition
    reusable: ReusableSlice
    remaining: RemainingWork
    entry: CacheEntry
