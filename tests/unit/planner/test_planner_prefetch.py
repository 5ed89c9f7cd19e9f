"""What is to be expected of a prefetch, and every reason not to begin one."""

from math import isfinite
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.planner.prefetch import (
    PrefetchBudget,
    PrefetchCase,
    PrefetchRefusal,
    bytes_per_us,
    judge,
    worth_us,
)

R = PrefetchRefusal
PART = st.floats(0, 1)
COST = st.floats(0, 1e15)


def case(**changes: Any) -> PrefetchCase:
    given_: dict[str, Any] = {
        "use_probability": 0.5, "use_within_us": 1_000.0, "gain_us": 900.0, "transfer_us": 100.0,
        "pollution_us": 50.0, "interference_us": 50.0, "moved_bytes": 10_000,
    }  # fmt: skip
    return PrefetchCase(**given_ | changes)


def test_what_is_to_be_expected() -> None:
    """Half of 900 us, less half of 200."""
    verdict = judge(case(), PrefetchBudget())
    assert (verdict.expected_us, verdict.refusal) == (350.0, None)


@pytest.mark.parametrize(
    ("changes", "budget", "refusal"),
    [
        ({}, {"min_use_probability": 0.6}, R.UNLIKELY),
        ({"transfer_us": 1_001.0}, {}, R.TOO_LATE),
        ({"gain_us": 200.0}, {}, R.NOT_WORTH_IT),
        ({"gain_us": -1.0}, {}, R.NOT_WORTH_IT),
        ({}, {"max_bytes": 19_999, "taken_bytes": 10_000}, R.BUDGET_BYTES),
        ({}, {"max_bytes_per_us": 19.9, "taken_bytes_per_us": 10.0}, R.BUDGET_BANDWIDTH),
        ({}, {"max_tier_transfers": 2, "taken_tier_transfers": 2}, R.TIER_BUSY),
        ({}, {"tier_bytes": 39_999, "max_tier_share": 0.5, "taken_tier_bytes": 10_000},
         R.BUDGET_TIER_SHARE),
        ({}, {"max_bytes": 20_000, "taken_bytes": 10_000, "tier_bytes": 40_000,
              "max_tier_share": 0.5, "taken_tier_bytes": 10_000}, None),
    ],
)  # fmt: skip
def test_every_refusal(
    changes: dict[str, Any], budget: dict[str, Any], refusal: PrefetchRefusal | None
) -> None:
    assert judge(case(**changes), PrefetchBudget(**budget)).refusal is refusal


@given(st.tuples(PART, PART), st.tuples(COST, COST, COST, COST))
def test_the_likelier_the_better_where_there_is_a_gain(
    parts: tuple[float, float], rest: tuple[float, float, float, float]
) -> None:
    less, more = sorted(parts)
    assert worth_us(less, *rest) <= worth_us(more, *rest) + 1e-3
    assert worth_us(1.0, *rest) == rest[0]
    assert worth_us(0.0, *rest) <= 0


CASES = st.builds(
    PrefetchCase, PART, st.floats(1, 1e12), st.floats(-1e18, 1e18), COST, COST, COST,
    st.integers(0, 2**63 - 1),
)  # fmt: skip


@given(CASES)
def test_no_figure_is_infinite(found: PrefetchCase) -> None:
    assert isfinite(judge(found, PrefetchBudget()).expected_us)
    assert isfinite(bytes_per_us(found))
