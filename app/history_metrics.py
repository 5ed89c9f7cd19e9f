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


class DecisionCounters(Protocol):
    """What the decision writer counts of itself."""

    @property
    def recorded(self) -> int: ...
    @property
    def stored(self) -> int: ...
    @property
    def pending(self) -> int: ...
    @property
    def pending_bytes(self) -> int: ...
    @property
    def lost(self) -> Mapping[str, int]:
        """Rows lost so far by reason, a closed set."""


class RecordingHealth(Protocol):
    """Whether what is recorded is copied."""

    @property
    def alive(self) -> bool: ...

    @property
    def copier_restarts(self) -> int: ...


class KeepingCounts(Protocol):
    """What became of answers that waited for a commit."""

    @property
    def late(self) -> int: ...


def recording_families(recording: RecordingHealth, keeping: KeepingCounts) -> Iterable[Metric]:
    yield GaugeMetricFamily(
        "nexuskv_decision_copier_up",
        "1 while what is recorded is copied to Postgres.",
        value=float(recording.alive),
    )
    yield CounterMetricFamily(
        "nexuskv_decision_copier_restarts",
        "How often the copier died and was started again.",
        value=recording.copier_restarts,
    )
    yield CounterMetricFamily(
        "nexuskv_decisions_late",
        "Answers that left before the commit that they waited for.",
        value=keeping.late,
    )


def decision_families(counters: DecisionCounters) -> Iterable[Metric]:
    yield CounterMetricFamily(
        "nexuskv_decisions_recorded", "Decisions and outcomes made here.", value=counters.recorded
    )
    yield CounterMetricFamily(
        "nexuskv_decisions_stored", "Decisions and outcomes now in Postgres.", value=counters.stored
    )
    lost = CounterMetricFamily(
        "nexuskv_decisions_lost", "Decisions and outcomes lost, by reason.", labels=["reason"]
    )
    for reason, rows in counters.lost.items():
        lost.add_metric([str(reason)], rows)
    yield lost
    yield GaugeMetricFamily(
        "nexuskv_decisions_queued",
        "Rows in the spool that are not in Postgres yet.",
        value=counters.pending,
    )
    yield GaugeMetricFamily(
        "nexuskv_decisions_queued_bytes",
        "Disk taken by the segments of the spool.",
        value=counters.pending_bytes,
    )
