"""A worker's metrics: what its parts count anyway, read when somebody asks."""

from collections.abc import Callable, Iterable, Mapping

from prometheus_client import CollectorRegistry, Counter, Histogram
from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest
from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.process_collector import ProcessCollector
from prometheus_client.registry import Collector

_SECONDS = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30)
_METHODS = frozenset({"GET", "HEAD", "POST", "PUT", "DELETE"})

# name -> (help, value), or for a labelled one (help, label, values).
Plain = Mapping[str, tuple[str, float]]
Labelled = Mapping[str, tuple[str, str, Mapping[str, float]]]


class WorkerMetrics:
    """The registry of one worker; its name is no label, the scraper knows whom it asked."""

    def __init__(
        self,
        *,
        gauges: Callable[[], Plain],
        counters: Callable[[], Plain],
        labelled_gauges: Callable[[], Labelled],
        labelled_counters: Callable[[], Labelled],
    ) -> None:
        self.registry = registry = CollectorRegistry()
        registry.register(_Read(gauges, counters, labelled_gauges, labelled_counters))
        ProcessCollector(registry=registry)
        self._requests = Counter(
            "nexuskv_worker_http_requests",
            "Requests by route, method and status.",
            ["route", "method", "status"],
            registry=registry,
        )
        self._latency = Histogram(
            "nexuskv_worker_http_request_duration_seconds",
            "Time until the answer was complete, by route.",
            ["route"],
            buckets=_SECONDS,
            registry=registry,
        )

    def observe_http(self, route: str, method: str, status: int, duration_s: float) -> None:
        self._requests.labels(route, method if method in _METHODS else "other", status).inc()
        self._latency.labels(route).observe(duration_s)

    def render(self) -> tuple[bytes, str]:
        """The exposition and its media type."""
        return generate_latest(self.registry), CONTENT_TYPE_LATEST


class _Read(Collector):
    def __init__(
        self,
        gauges: Callable[[], Plain],
        counters: Callable[[], Plain],
        labelled_gauges: Callable[[], Labelled],
        labelled_counters: Callable[[], Labelled],
    ) -> None:
        self._plain = (
            (GaugeMetricFamily, gauges),
            (CounterMetricFamily, counters),
        )
        self._labelled = (
            (GaugeMetricFamily, labelled_gauges),
            (CounterMetricFamily, labelled_counters),
        )

    def collect(self) -> Iterable[Metric]:
        for family, read in self._plain:
            for name, (documentation, value) in read().items():
                yield family(name, documentation, value=value)
        for family, read_labelled in self._labelled:
            for name, (documentation, label, values) in read_labelled().items():
                found = family(name, documentation, labels=[label])
                for of, value in values.items():
                    found.add_metric([of], value)
                yield found
