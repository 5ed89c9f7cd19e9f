"""Metrics of keeping the history: what was made ahead, and what was removed with age."""

from collections.abc import Iterable, Mapping
from datetime import datetime
from typing import Protocol

from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily, Metric

from app.scraped_metrics import counted


class HistoryCounts(Protocol):
    """What the keeper of the history counts of itself; keys are of closed sets."""

    @property
    def rounds(self) -> Mapping[str, int]: ...
    @property
    def rows(self) -> Mapping[str, int]: ...
    @property
    def dropped(self) -> int: ...
    @property
    def done_at(self) -> datetime | None: ...
    @property
    def days_ahead(self) -> int: ...


def history_families(counts: HistoryCounts) -> Iterable[Metric]:
    yield GaugeMetricFamily(
        "nexuskv_history_days_ahead",
        "Days after today that had a partition when this process last looked.",
        value=counts.days_ahead,
    )
    yield counted(
        "nexuskv_history_rounds",
        "Rounds of removal: `done`, `busy` where another replica had the turn, in `doubt` of the "
        "clocks, or `failed`.",
        ("result",),
        {(result,): count for result, count in counts.rounds.items()},
    )
    yield counted(
        "nexuskv_history_removed_rows",
        "Rows deleted before their day was, and sums deleted with age, by table.",
        ("table",),
        {(table,): count for table, count in counts.rows.items()},
    )
    yield CounterMetricFamily(
        "nexuskv_history_partitions_dropped",
        "Day partitions dropped with age by this process.",
        value=counts.dropped,
    )
    done_at = counts.done_at
    yield GaugeMetricFamily(
        "nexuskv_history_removed_timestamp_seconds",
        "When this process last ended a round of removal; 0 before the first.",
        value=0 if done_at is None else done_at.timestamp(),
    )
