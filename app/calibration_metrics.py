"""Metrics of calibration: how far predictions are from what is observed, and what was learnt."""

from collections.abc import Iterable, Mapping
from itertools import accumulate
from typing import Final, NamedTuple, Protocol

from prometheus_client.metrics_core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)

# Of observed over predicted, calibration included; 1 is right.
RATIO_BUCKETS: Final = (0.25, 0.5, 0.67, 0.8, 0.9, 1.1, 1.25, 1.5, 2.0, 4.0)


class Errors(NamedTuple):
    """Counts in the buckets of RATIO_BUCKETS and beyond them, and the sum of the ratios."""

    counts: list[int]
    total: list[float]


class CalibrationCounts(Protocol):
    """What the learner counts of itself; keys are the kinds of parts."""

    @property
    def errors(self) -> Mapping[str, Errors]: ...
    @property
    def drifts(self) -> Mapping[str, int]: ...
    @property
    def learnt_rows(self) -> int: ...
    @property
    def refused_parts(self) -> int: ...

    def mean_errors(self) -> Mapping[str, tuple[int, float]]: ...

    def stale_s(self) -> float: ...


def calibration_families(counts: CalibrationCounts) -> Iterable[Metric]:
    ratios = HistogramMetricFamily(
        "nexuskv_cost_observed_over_predicted",
        "Observed over predicted times that this process learnt from, calibration included.",
        labels=("part",),
    )
    for part, errors in sorted(counts.errors.items()):
        bounds = [*map(str, RATIO_BUCKETS), "+Inf"]
        buckets = list(zip(bounds, accumulate(errors.counts), strict=True))
        ratios.add_metric((part,), buckets=buckets, sum_value=errors.total[0])
    yield ratios
    parts = GaugeMetricFamily(
        "nexuskv_cost_parts", "Parts of profiles, and links, with observations.", labels=("part",)
    )
    error = GaugeMetricFamily(
        "nexuskv_cost_mean_error",
        "Mean size of the logarithm of observed over predicted, over all parts of a kind.",
        labels=("part",),
    )
    for part, (number, mean) in sorted(counts.mean_errors().items()):
        parts.add_metric((part,), number)
        error.add_metric((part,), mean)
    yield parts
    yield error
    drifts = CounterMetricFamily(
        "nexuskv_cost_drifts", "Lasting changes of costs that were found.", labels=("part",)
    )
    for part, number in sorted(counts.drifts.items()):
        drifts.add_metric((part,), number)
    yield drifts
    yield CounterMetricFamily(
        "nexuskv_calibration_outcomes",
        "Outcomes that this process read to learn from.",
        value=counts.learnt_rows,
    )
    yield CounterMetricFamily(
        "nexuskv_calibration_refused_parts",
        "Observations of parts beyond the limit, which were not learnt from.",
        value=counts.refused_parts,
    )
    yield GaugeMetricFamily(
        "nexuskv_calibration_stale_seconds",
        "Time since the database was last asked for what was learnt.",
        value=counts.stale_s(),
    )
