"""Whether bringing state ahead of its use is worth it, and within budget. Pure.

    E = p_use * gain - (1 - p_use) * (transfer + pollution + interference)

What is late is of no use: then it is computed, and nobody waits.
"""

from typing import Final

from msgspec import Struct

from app.contract.enums import Word

_MAX_US: Final = 1e15


class PrefetchRefusal(Word):
    """Why a prefetch is not begun."""

    UNLIKELY = "unlikely"  # less than the policy asks for
    NOT_WORTH_IT = "not_worth_it"  # what is to be expected of it is no gain
    TOO_LATE = "too_late"  # it would be there after it is wanted
    BUDGET_BYTES = "budget_bytes"  # so many are on their way for the tenant
    BUDGET_BANDWIDTH = "budget_bandwidth"  # so much of it is needed by the tenant's others
    BUDGET_TIER_SHARE = "budget_tier_share"  # of the target's tier
    TIER_BUSY = "tier_busy"  # as many transfers write it as it takes


class PrefetchCase(Struct, frozen=True):
    """One prefetch as it is judged. Times are microseconds; `moved_bytes` None is not known.

    `gain_us`: computing the state, less having it from where it is brought to.
    """

    use_probability: float
    use_within_us: float
    gain_us: float
    transfer_us: float
    pollution_us: float
    interference_us: float
    moved_bytes: int


class PrefetchBudget(Struct, frozen=True):
    """Limits, and what of them is taken; 0 is no limit, but for the two shares."""

    max_bytes: int = 0
    taken_bytes: int = 0
    max_bytes_per_us: float = 0.0
    taken_bytes_per_us: float = 0.0
    tier_bytes: int = 0
    max_tier_share: float = 1.0
    taken_tier_bytes: int = 0
    max_tier_transfers: int = 0
    taken_tier_transfers: int = 0
    min_use_probability: float = 0.0


class PrefetchVerdict(Struct, frozen=True):
    """`refusal` is None where it is to be begun; `expected_us` is what is to be expected of it."""

    expected_us: float
    refusal: PrefetchRefusal | None


def worth_us(
    p_use: float, gain_us: float, transfer_us: float, pollution_us: float, interference_us: float
) -> float:
    """What is to be expected of it, in microseconds: what its use spares, by how likely that is,
    less what it costs others for nothing. `p_use` is from 0 to 1.
    """
    return p_use * gain_us - (1 - p_use) * (transfer_us + pollution_us + interference_us)


def bytes_per_us(case: PrefetchCase) -> float:
    """The bandwidth that it needs to be there in time."""
    return case.moved_bytes / max(case.use_within_us, 1.0)


def judge(case: PrefetchCase, budget: PrefetchBudget) -> PrefetchVerdict:
    """The first of all reasons not to begin it, or that it is to be begun."""
    expected_us = worth_us(
        case.use_probability,
        case.gain_us,
        case.transfer_us,
        case.pollution_us,
        case.interference_us,
    )
    expected_us = min(max(expected_us, -_MAX_US), _MAX_US)
    return PrefetchVerdict(expected_us, _refusal(case, budget, expected_us))


def _refusal(
    case: PrefetchCase, budget: PrefetchBudget, expected_us: float
) -> PrefetchRefusal | None:
    tier_limit = budget.tier_bytes * budget.max_tier_share
    needed = budget.taken_bytes_per_us + bytes_per_us(case)
    obstacles = (
        (case.use_probability < budget.min_use_probability, PrefetchRefusal.UNLIKELY),
        (case.transfer_us > case.use_within_us, PrefetchRefusal.TOO_LATE),
        (not expected_us > 0, PrefetchRefusal.NOT_WORTH_IT),
        (0 < budget.max_bytes < budget.taken_bytes + case.moved_bytes,
         PrefetchRefusal.BUDGET_BYTES),
        (0 < budget.max_bytes_per_us < needed, PrefetchRefusal.BUDGET_BANDWIDTH),
        (0 < budget.max_tier_transfers <= budget.taken_tier_transfers, PrefetchRefusal.TIER_BUSY),
        (budget.tier_bytes > 0 and budget.taken_tier_bytes + case.moved_bytes > tier_limit,
         PrefetchRefusal.BUDGET_TIER_SHARE),
    )  # fmt: skip
    return next((refusal for stands, refusal in obstacles if stands), None)
