"""Profiles that learn from what was observed. Pure: an estimator and an observation give the next.

What is learnt is a factor for each part of a profile: of its prefill, and of each path. The
logarithm of observed over predicted is followed by a step towards it that outliers cannot lengthen;
a drift that goes on in one direction (Page-Hinkley) makes the steps longer until it is caught up
with. No step changes a factor by more than the policy allows.
"""

from collections.abc import Mapping
from math import exp, isfinite, log
from typing import Final, NamedTuple

from msgspec import Struct, structs

from app.contract.enums import TierKind
from app.planner.profile import Path, Prefill, Profile

# Of a path: a tier, and whether another node is in between. None is the prefill.
Part = tuple[TierKind, bool] | None

_SLOW: Final = 0.05
_FAST: Final = 0.5
_SPREAD_RATE: Final = 0.1
# Errors beyond so many spreads count as so many.
_OUTLIER: Final = 3.0
# A drift is found once errors have added up to so much, less an allowance for each.
_DRIFT: Final = 1.0
_ALLOWANCE: Final = 0.05
_FAST_STEPS: Final = 8
_LEAST_SPREAD: Final = 0.01
_MOST_LOG: Final = log(1_000.0)


class CalibrationLimits(Struct, frozen=True):
    """`max_step`: by what factor one observation may change a coefficient at most."""

    max_step: float = 1.25


class Estimator(Struct, frozen=True):
    """What is known of one part. `log_factor` is the logarithm of what predictions are multiplied
    by; `spread` the mean size of the errors that are left; `fast` how many long steps are to come.
    """

    log_factor: float = 0.0
    spread: float = 0.25
    observations: int = 0
    risen: float = 0.0
    fallen: float = 0.0
    fast: int = _FAST_STEPS

    @property
    def factor(self) -> float:
        return exp(self.log_factor)


class Change(NamedTuple):
    """An estimator after an observation, and whether a change of what it follows was found."""

    estimator: Estimator
    drifted: bool


NEW: Final = Estimator()


def observed(
    before: Estimator,
    predicted_us: float,
    observed_us: float,
    limits: CalibrationLimits | None = None,
) -> Change:
    """After one observation; `predicted_us` by the profile as it is without a factor.

    What is no time (zero, negative, infinite, NaN) changes nothing.
    """
    usable = isfinite(predicted_us) and isfinite(observed_us)
    if not usable or predicted_us <= 0 or observed_us <= 0:
        return Change(before, drifted=False)
    most = log((limits or CalibrationLimits()).max_step)
    error = log(observed_us) - log(predicted_us) - before.log_factor
    edge = _OUTLIER * before.spread
    kept = min(max(error, -edge), edge)
    risen = max(0.0, before.risen + kept - _ALLOWANCE)
    fallen = max(0.0, before.fallen - kept - _ALLOWANCE)
    drifted = max(risen, fallen) > _DRIFT
    if drifted:
        risen = fallen = 0.0
    fast = _FAST_STEPS if drifted else max(0, before.fast - 1)
    step = (_FAST if fast or drifted else _SLOW) * kept
    moved = before.log_factor + min(max(step, -most), most)
    spread = before.spread + _SPREAD_RATE * (min(abs(error), 2 * edge) - before.spread)
    after = Estimator(
        min(max(moved, -_MOST_LOG), _MOST_LOG),
        max(spread, _LEAST_SPREAD),
        before.observations + 1,
        risen,
        fallen,
        fast,
    )
    return Change(after, drifted)


def calibrated(base: Profile, known: Mapping[Part, Estimator]) -> Profile:
    """The profile with its factors; what was observed becomes the uncertainty of its part."""
    prefill, learnt = base.prefill, known.get(None)
    if learnt is not None and learnt.observations:
        factor = learnt.factor
        prefill = Prefill(
            prefill.schedule_us * factor,
            prefill.per_token_us * factor,
            prefill.per_pair_us * factor,
            _uncertainty(learnt),
            is_measured(learnt),
        )
    paths = tuple(
        scaled
        for tier in TierKind
        for remote in (True, False)
        if (scaled := _scaled(base, tier, known, remote=remote)) is not None
    )
    return structs.replace(base, prefill=prefill, paths=paths)


def _scaled(
    base: Profile, tier: TierKind, known: Mapping[Part, Estimator], *, remote: bool
) -> Path | None:
    path, learnt = base.path(tier, remote=remote), known.get((tier, remote))
    if path is None:
        return None
    if learnt is None or not learnt.observations:
        return structs.replace(path, remote=remote)
    return Path(
        tier,
        path.latency_us * learnt.factor,
        path.bytes_per_us / learnt.factor,
        _uncertainty(learnt),
        remote,
        path.backend,
        is_measured(learnt),
    )


def is_measured(learnt: Estimator) -> bool:
    """Whether it has been followed for long enough to say more than the prior does."""
    return learnt.observations >= _FAST_STEPS


def _uncertainty(learnt: Estimator) -> float:
    """A mean error is four fifths of a deviation."""
    return min(learnt.spread * 1.25, 10.0)
