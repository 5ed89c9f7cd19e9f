"""What queries of engines' blocks are answered with."""

from typing import Final, NamedTuple

import msgspec

from app.engines.plans import Plan, Share
from app.engines.reach import Tier, TierReach
from app.engines.views import ViewState

HIT: Final = "hit"
MISS: Final = "miss"
UNKNOWN: Final = "unknown"


class Candidate(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A location that has a usable prefix, and what is known of its freshness."""

    source: str = "engine"
    instance_id: str
    dp_rank: int
    node: str | None
    matched_tokens: int
    block_tokens: int
    tiers: dict[Tier, TierReach]
    # The salt of the matched blocks: a request finds them only with it.
    cache_salt: str | None
    state: ViewState
    epoch: int
    last_sequence: int | None
    # From the publisher's clock to ours for its last frame; None where it does not say.
    lag_us: int | None
    # Since its last frame.
    age_us: int | None
    gap: bool


class Engines(msgspec.Struct, frozen=True, gc=False):
    """How many were asked, and how many of them are in which state."""

    asked: int
    live: int
    pending: int
    unknown: int
    stale: int


class Match(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """`result` is hit, miss or unknown; `reason` says why it is no hit.

    Candidates have the longest first; `left_off` counts those beyond the limit.
    """

    result: str
    reason: str | None
    matched_tokens: int
    query_tokens: int | None
    candidates: list[Candidate]
    left_off: int
    engines: Engines


class Reached(NamedTuple):
    """What is usable where, the longest first; `asked` is how many engines were."""

    result: str
    asked: int
    found: list[Share]


def nothing_known(plan: Plan, count: int | None) -> Match:
    asked = len(plan.seen)
    return Match(
        result=UNKNOWN,
        reason="index_away",
        matched_tokens=0,
        query_tokens=count,
        candidates=[],
        left_off=0,
        engines=Engines(asked=asked, live=0, pending=0, unknown=asked, stale=0),
    )


def no_hit(engines: Engines, plan: Plan, *, busy: bool, unusable: bool) -> tuple[str, str | None]:
    if not engines.asked:
        return MISS, "no_engine"
    if busy:
        return UNKNOWN, "index_busy"
    if not plan.complete:
        return UNKNOWN, "too_many_spaces"
    if engines.live < engines.asked:
        return UNKNOWN, "engine_not_live"
    return MISS, "unknown_attention_kind" if unusable else "not_cached"
