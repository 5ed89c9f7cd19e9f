"""Quantiles of fixed buckets are those of the values, to the width of a bucket; sums add up."""

from bisect import bisect_left
from datetime import UTC, datetime, timedelta

from hypothesis import given
from hypothesis import strategies as st

from app.decisions.histogram import ERROR_BOUNDS, LATENCY_BOUNDS_US, bucket_of, quantile
from app.decisions.record import DecisionKind
from app.decisions.rollups import STEPS, DecisionSums, fold
from tests.decisions.rows import a_decision, an_outcome

WITHIN = st.integers(min_value=8, max_value=100_000_000)


def counted(bounds: tuple[float, ...], values: list[float]) -> list[int]:
    counts = [0] * (len(bounds) + 1)
    for value in values:
        counts[bucket_of(bounds, value)] += 1
    return counts


@given(st.lists(WITHIN, min_size=1, max_size=200), st.sampled_from([0.5, 0.9, 0.95, 0.99, 1.0]))
def test_a_quantile_lies_in_the_bucket_of_the_value_it_stands_for(
    values: list[int], q: float
) -> None:
    found = quantile(LATENCY_BOUNDS_US, counted(LATENCY_BOUNDS_US, list(values)), q)
    assert found is not None
    ordered = sorted(values)
    # The smallest value that as many are not above.
    exact = ordered[max(0, -(-round(q * len(ordered) * 1e9) // 10**9) - 1)]
    number = bisect_left(LATENCY_BOUNDS_US, exact)
    low = LATENCY_BOUNDS_US[number - 1] if number else 0.0
    assert low <= found <= LATENCY_BOUNDS_US[number]


def test_nothing_counted_has_no_quantile() -> None:
    assert quantile(LATENCY_BOUNDS_US, [], 0.5) is None
    assert quantile(LATENCY_BOUNDS_US, [0, 0, 0], 0.5) is None


def test_what_is_beyond_the_last_bound_is_that_bound() -> None:
    counts = counted(ERROR_BOUNDS, [1e9])
    assert quantile(ERROR_BOUNDS, counts, 0.5) == ERROR_BOUNDS[-1] == 64
    assert ERROR_BOUNDS[0] == 1 / 64


@given(
    st.lists(
        st.tuples(
            st.integers(min_value=0, max_value=3 * 86_400), WITHIN, st.sampled_from(["m1", "m2"])
        ),
        max_size=40,
    )
)
def test_every_step_sums_up_to_the_same(rows: list[tuple[int, int, str]]) -> None:
    begin = datetime(2026, 3, 28, 22, 30, tzinfo=UTC)
    decisions = [
        a_decision(created_at=begin + timedelta(seconds=at), latency_us=us, model=model)
        for at, us, model in rows
    ]
    outcomes = [an_outcome(one, model=one.model, gain_us=7) for one in decisions]
    made = fold(decisions, outcomes)
    for step in STEPS:
        sums = [each for group, each in made.decisions.items() if group.step == step]
        assert sum(each.decisions for each in sums) == len(rows)
        assert sum(each.latency_us for each in sums) == sum(us for _, us, _ in rows)
        assert [
            sum(column) for column in zip(*(each.latency_counts for each in sums), strict=True)
        ] == (counted(LATENCY_BOUNDS_US, [us for _, us, _ in rows]) if rows else [])
        told = [each for group, each in made.outcomes.items() if group.step == step]
        assert sum(each.gain_us for each in told) == 7 * len(rows)
    assert all(group.kind == DecisionKind.LOOKUP for group in made.decisions)


def test_only_bytes_with_a_prediction_are_compared() -> None:
    decision = a_decision()
    protocol = an_outcome(decision, predicted_us=600)
    made = fold(
        [], [an_outcome(decision, physical=True), protocol, protocol._replace(physical=True)]
    )
    (sums,) = {id(each): each for g, each in made.outcomes.items() if g.step == "day"}.values()
    assert (sums.outcomes, sums.compared, sums.predicted_us, sums.compared_observed_us) == (
        3, 1, 600, 1200,
    )  # fmt: skip
    assert sums.error_counts[bucket_of(ERROR_BOUNDS, 2.0)] == 1
    assert DecisionSums().decisions == 0
