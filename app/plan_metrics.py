"""Metrics of plans: what is reserved, and what prefetches run."""

from collections.abc import Iterable
from typing import Protocol

from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily, Metric


class Reserved(Protocol):
    """What plans have reserved."""

    @property
    def refused(self) -> int: ...
    def __len__(self) -> int: ...


class Prefetches(Protocol):
    """What prefetches take of their budgets."""

    @property
    def running(self) -> int: ...


def plan_families(reserved: Reserved, prefetches: Prefetches) -> Iterable[Metric]:
    yield GaugeMetricFamily(
        "nexuskv_plan_reservations",
        "Transfers that plans of this process chose and that are thought to run still.",
        value=len(reserved),
    )
    yield CounterMetricFamily(
        "nexuskv_plan_reservations_refused",
        "Transfers of plans that were not reserved, because there were too many.",
        value=reserved.refused,
    )
    yield GaugeMetricFamily(
        "nexuskv_prefetches_running",
        "Prefetches by value that run in this process.",
        value=prefetches.running,
    )
