"""Profiles that learn: how quickly, how surely, and how far at a time."""

from math import exp, isfinite, log

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.clock import seeded_random
from app.contract.enums import TierKind
from app.planner.calibrate import NEW, CalibrationLimits, Estimator, calibrated, observed
from tests.unit.planner.questions import PREFILL, PROFILE


def after(factors: list[float], begin: Estimator = NEW) -> Estimator:
    """Observations that are so many times what was predicted."""
    for factor in factors:
        begin = observed(begin, 1_000.0, 1_000.0 * factor).estimator
    return begin


def noisy(factor: float, count: int, *, noise: float = 0.1, seed: int = 1) -> list[float]:
    chance = seeded_random(seed)
    return [factor * exp(chance.gauss(0, noise)) for _ in range(count)]


@pytest.mark.parametrize("factor", [0.25, 0.5, 1.0, 2.0, 4.0])
def test_a_factor_is_found_within_forty_observations(factor: float) -> None:
    found = after(noisy(factor, 40))
    assert found.factor == pytest.approx(factor, rel=0.15)
    assert after(noisy(factor, 400)).factor == pytest.approx(factor, rel=0.05)


def test_an_outlier_hardly_counts() -> None:
    settled = after(noisy(1.0, 200))
    hit = after([1_000.0], settled)
    assert hit.factor == pytest.approx(settled.factor, rel=0.05)
    assert after([1_000.0, 0.001] * 3 + noisy(1.0, 20), settled).factor == pytest.approx(1, rel=0.1)


def test_a_change_is_found_and_caught_up_with() -> None:
    settled = after(noisy(1.0, 300))
    drifted, estimator = [], settled
    for number, factor in enumerate(noisy(3.0, 60, seed=2)):
        change = observed(estimator, 1_000.0, 1_000.0 * factor)
        estimator = change.estimator
        drifted += [number] if change.drifted else []
    assert drifted
    assert drifted[0] < 20
    assert estimator.factor == pytest.approx(3.0, rel=0.15)


def test_noise_alone_is_no_change() -> None:
    estimator, drifts = after(noisy(1.0, 100)), 0
    for factor in noisy(1.0, 2_000, seed=3):
        change = observed(estimator, 1_000.0, 1_000.0 * factor)
        estimator, drifts = change.estimator, drifts + change.drifted
    assert drifts <= 2
    assert estimator.spread == pytest.approx(0.08, rel=0.4)


TIMES = st.floats(allow_nan=True, allow_infinity=True)


@given(st.lists(st.tuples(TIMES, TIMES), max_size=30), st.floats(1.01, 2.0))
def test_no_step_is_longer_than_the_policy_allows(
    times: list[tuple[float, float]], max_step: float
) -> None:
    estimator = NEW
    for predicted_us, observed_us in times:
        found = observed(estimator, predicted_us, observed_us, CalibrationLimits(max_step))
        assert abs(found.estimator.log_factor - estimator.log_factor) <= log(max_step) + 1e-9
        assert isfinite(found.estimator.factor)
        assert found.estimator.factor > 0
        assert found.estimator.spread > 0
        estimator = found.estimator


def test_what_is_no_time_changes_nothing() -> None:
    for predicted_us, observed_us in (
        (0, 1),
        (1, 0),
        (-1, 1),
        (float("inf"), 1),
        (1, float("nan")),
    ):
        assert observed(NEW, predicted_us, observed_us).estimator is NEW


def test_the_profile_is_scaled_part_by_part() -> None:
    slow = after([2.0] * 60)
    found = calibrated(PROFILE, {None: slow, (TierKind.HOST_DRAM, True): slow})
    assert found.prefill.per_token_us == pytest.approx(2 * PREFILL.per_token_us, rel=0.05)
    far, near = (found.path(TierKind.HOST_DRAM, remote=remote) for remote in (True, False))
    given_far = PROFILE.path(TierKind.HOST_DRAM, remote=True)
    given_near = PROFILE.path(TierKind.HOST_DRAM, remote=False)
    assert far is not None
    assert near is not None
    assert given_far is not None
    assert given_near is not None
    assert far.bytes_per_us == pytest.approx(given_far.bytes_per_us / 2, rel=0.05)
    assert far.latency_us == pytest.approx(given_far.latency_us * 2, rel=0.05)
    assert near.bytes_per_us == given_near.bytes_per_us
    # What was told for both ways is there for both.
    ssd = [found.path(TierKind.LOCAL_SSD, remote=remote) for remote in (True, False)]
    assert all(path is not None and path.bytes_per_us == 2_000.0 for path in ssd)
    assert found.path(TierKind.OBJECT_STORE, remote=True) is None
    assert calibrated(PROFILE, {}).prefill == PREFILL
