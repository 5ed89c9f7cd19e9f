"""Metrics of a reader of the index: how it stands with the process that writes it."""

from collections.abc import Iterable, Mapping
from typing import Protocol

from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily, Metric

from app.scraped_metrics import counted


class IndexPort(Protocol):
    """What a reader of the index knows of its connection to the writer."""

    @property
    def away(self) -> bool: ...
    @property
    def reconnects(self) -> int: ...
    @property
    def readers_cut(self) -> int: ...
    @property
    def forwarded(self) -> Mapping[tuple[str, ...], int]: ...


def port_families(port: IndexPort) -> Iterable[Metric]:
    yield GaugeMetricFamily(
        "nexuskv_index_writer_away",
        "1 while the process that writes the index of blocks is away: matches are unknown.",
        value=float(port.away),
    )
    yield CounterMetricFamily(
        "nexuskv_index_reconnects",
        "Times that a writer of the index was found again.",
        value=port.reconnects,
    )
    yield CounterMetricFamily(
        "nexuskv_index_readers_cut",
        "Readers that the present writer cut off because they did not see a change in time.",
        value=port.readers_cut,
    )
    yield counted(
        "nexuskv_index_forwarded",
        "Requests handed to the writer: `ok`, `refused`, or `away` when no answer came.",
        ("operation", "result"),
        port.forwarded,
    )
