"""From the best match to what to reuse and what to compute: the index's half of a plan.

It looks at tokens only. Whether the state is compatible and worth it is decided after it.
"""

import msgspec

from app.contract.entry import CacheEntry
from app.contract.enums import PlanDisposition, TierKind
from app.contract.match import PartialHitPlan, RemainingWork, ReusableSlice
from app.index.matcher import StateIndex
from app.index.registered import ScopeIdentity


def plan_partial_hit(
    index: StateIndex, scope: ScopeIdentity, tokens: list[int]
) -> PartialHitPlan | None:
    """The plan for the best candidate; None for a miss, where everything is recomputed.

    The entry in it carries the matched tokens only. Fetching is required unless the state is on
    the device already; recomputing where query tokens remain.
    """
    candidates = index.match(scope, tokens, max_candidates=1).candidates
    if not candidates:
        return None
    best = candidates[0]
    matched, rest = tokens[: best.matched_tokens], tokens[best.matched_tokens :]
    tier = best.state.entry.location.tier
    return PartialHitPlan(
        disposition=PlanDisposition.PARTIAL_REUSE if rest else PlanDisposition.FULL_REUSE,
        reusable=ReusableSlice(tokens=matched, source_tier=tier),
        remaining=RemainingWork(
            tokens=rest,
            fetch_required=tier is not TierKind.DEVICE,
            recompute_required=bool(rest),
        ),
        entry=_with_tokens(best.state.entry, matched),
    )


def _with_tokens(entry: CacheEntry, tokens: list[int]) -> CacheEntry:
    key = msgspec.structs.replace(entry.identity.key, tokens=tokens)
    identity = msgspec.structs.replace(entry.identity, key=key)
    return msgspec.structs.replace(entry, identity=identity)
