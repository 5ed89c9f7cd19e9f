"""Every metric of the service: names, labels, buckets. One `Metrics` for each app.

Labels come from closed sets only (operations, error codes, route templates), never from a tenant,
a model or a path. What happens on every bridge request is counted in plain numbers, and what a
component counts anyway is left there; both become series only when they are scraped.
"""

from bisect import bisect_left
from collections.abc import Callable, Iterable, Mapping
from itertools import accumulate
from typing import Final, Literal

from prometheus_client import CollectorRegistry, Counter, Gauge, Info
from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest
from prometheus_client.metrics_core import (
    CounterMetricFamily,
    HistogramMetricFamily,
    Metric,
)
from prometheus_client.openmetrics import exposition as openmetrics
from prometheus_client.process_collector import ProcessCollector

from app.calibration_metrics import CalibrationCounts, calibration_families
from app.errors import ErrorCode
from app.history_metrics import (
    DecisionCounters,
    HistoryCounts,
    KeepingCounts,
    RecordingHealth,
    decision_families,
    history_families,
    recording_families,
)
from app.plan_metrics import Prefetches, Reserved, plan_families
from app.port_metrics import IndexPort, port_families
from app.scraped_metrics import (
    EngineCounts,
    FollowedGauges,
    MatcherCounts,
    PipelineCounts,
    PolicyCounts,
    PolicyGauges,
    Scraped,
    WorkerCalls,
    engine_families,
    index_families,
    pipeline_families,
    planning_families,
    policy_families,
    sink_families,
    worker_families,
)

Operation = Literal["lookup", "estimate", "materialize"]
LookupResult = Literal["hit", "miss", "unknown", "unavailable", "excluded"]
Registration = Literal["created", "superseded", "unchanged", "conflict", "rejected"]

OPERATIONS: Final[tuple[Operation, ...]] = ("lookup", "estimate", "materialize")
LOOKUP_RESULTS: Final[tuple[LookupResult, ...]] = (
    "hit", "miss", "unknown", "unavailable", "excluded",
)  # fmt: skip
REGISTRATIONS: Final[tuple[Registration, ...]] = (
    "created", "superseded", "unchanged", "conflict", "rejected",
)  # fmt: skip

_OK = "ok"
_METHODS = frozenset({"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"})
_LATENCY_BUCKETS_S = (
    0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10,
)  # fmt: skip
_OPENMETRICS = "application/openmetrics-text"


class Metrics:
    """The registry of one app, and what its requests are counted with."""

    def __init__(self, *, version: str, implementation: str) -> None:
        self.registry = registry = CollectorRegistry()
        build = Info("nexuskv_build", "What runs here.", registry=registry)
        build.info({"version": version, "implementation": implementation})
        self._requests: dict[tuple[Operation, str], int] = {
            (operation, code): 0 for operation in OPERATIONS for code in (_OK, *ErrorCode)
        }
        self._latency = {operation: _Latency() for operation in OPERATIONS}
        self._lookups: dict[LookupResult, int] = dict.fromkeys(LOOKUP_RESULTS, 0)
        registry.register(Scraped(self._bridge_families))
        registrations = Counter(
            "nexuskv_state_registrations",
            "Entries sent for registration, by what became of them.",
            ["result"],
            registry=registry,
        )
        self._registrations = {result: registrations.labels(result) for result in REGISTRATIONS}
        self.state_deletions = Counter(
            "nexuskv_state_deletions", "States deleted.", registry=registry
        )
        self._database_up = Gauge(
            "nexuskv_database_up",
            "1 when the last readiness check reached Postgres, else 0.",
            registry=registry,
        )
        # By route, method and hundreds of the status.
        self._http_requests: dict[tuple[str, str, int], int] = {}
        self._http_latency: dict[str, _Latency] = {}
        registry.register(Scraped(self._http_families))
        ProcessCollector(registry=registry)

    def observe_bridge(
        self, operation: Operation, error: ErrorCode | None, duration_s: float
    ) -> None:
        """Count one answered bridge request; `error` is None for a 200."""
        self._requests[operation, _OK if error is None else error] += 1
        self._latency[operation].observe(duration_s)

    def count_lookup(self, result: LookupResult) -> None:
        self._lookups[result] += 1

    def count_registration(self, result: Registration, entries: int = 1) -> None:
        self._registrations[result].inc(entries)

    def observe_http(self, route: str, method: str, status: int, duration_s: float) -> None:
        """Count one request; `route` is a template, never a path."""
        key = (route, method if method in _METHODS else "other", status // 100)
        self._http_requests[key] = self._http_requests.get(key, 0) + 1
        latency = self._http_latency.get(route)
        if latency is None:
            latency = self._http_latency[route] = _Latency()
        latency.observe(duration_s)

    def set_database_up(self, *, up: bool) -> None:
        self._database_up.set(1 if up else 0)

    def watch_index(self, stats: Callable[[], Mapping[str, int]]) -> None:
        """Read `entries`, `blocks`, `scopes` and `memory_bytes` from `stats` at each scrape."""
        self.registry.register(Scraped(lambda: index_families(stats())))

    def watch_decisions(self, counters: DecisionCounters) -> None:
        """Read the decision writer's own counters at each scrape."""
        self.registry.register(Scraped(lambda: decision_families(counters)))

    def watch_recording(self, recording: RecordingHealth, keeping: KeepingCounts) -> None:
        """Read whether what is recorded is also copied, at each scrape."""
        self.registry.register(Scraped(lambda: recording_families(recording, keeping)))

    def watch_history(self, counts: HistoryCounts) -> None:
        """Read how the history is kept at each scrape."""
        self.registry.register(Scraped(lambda: history_families(counts)))

    def watch_planning(
        self, profiles: Callable[[], FollowedGauges], topology: Callable[[], FollowedGauges]
    ) -> None:
        """Read which profiles and topology are in force, and how sure that is, at each scrape."""
        self.registry.register(Scraped(lambda: planning_families(profiles(), topology())))

    def watch_calibration(self, counts: CalibrationCounts) -> None:
        """Read how far predictions are from what is observed at each scrape."""
        self.registry.register(Scraped(lambda: calibration_families(counts)))

    def watch_plans(self, reserved: Reserved, prefetches: Prefetches) -> None:
        """Read what plans have reserved, and which prefetches run, at each scrape."""
        self.registry.register(Scraped(lambda: plan_families(reserved, prefetches)))

    def watch_policy(self, status: Callable[[], PolicyGauges], counts: PolicyCounts) -> None:
        """Read which policy is in force, and how sure that is, at each scrape."""
        self.registry.register(Scraped(lambda: policy_families(status(), counts)))

    def watch_pipeline(self, counts: PipelineCounts) -> None:
        """Read what the pipeline chose, charged and moved at each scrape."""
        self.registry.register(Scraped(lambda: pipeline_families(counts)))

    def watch_sink_reports(self, reports: Mapping[tuple[str, ...], int]) -> None:
        """Read how many reports of sinks came, by state and by what was made of them."""
        self.registry.register(Scraped(lambda: sink_families(reports)))

    def watch_workers(
        self,
        counts: Callable[[], Mapping[str, int]],
        heartbeats: Mapping[str, int],
        calls: WorkerCalls,
    ) -> None:
        """Read how many workers there are, their heartbeats and our calls at each scrape."""
        self.registry.register(Scraped(lambda: worker_families(counts(), heartbeats, calls)))

    def watch_engines(
        self,
        engines: EngineCounts,
        stats: Callable[[], Mapping[str, int]],
        matcher: MatcherCounts,
    ) -> None:
        """Read what engines' events came to, the index of blocks and its queries at each scrape."""
        self.registry.register(Scraped(lambda: engine_families(engines, stats(), matcher)))

    def watch_index_port(self, port: IndexPort) -> None:
        """Read how a reader of the index stands with the writer at each scrape."""
        self.registry.register(Scraped(lambda: port_families(port)))

    def render(self, accept: str | None = None) -> tuple[str, bytes]:
        """Return (content type, text): OpenMetrics for a scraper that accepts it."""
        if accept is not None and _OPENMETRICS in accept:
            text: bytes = openmetrics.generate_latest(self.registry)  # type: ignore[no-untyped-call]
            return openmetrics.CONTENT_TYPE_LATEST, text
        return CONTENT_TYPE_LATEST, generate_latest(self.registry)

    def _bridge_families(self) -> Iterable[Metric]:
        requests = CounterMetricFamily(
            "nexuskv_bridge_requests",
            "Bridge requests by operation and by `ok` or the code of their error.",
            labels=["operation", "code"],
        )
        for (operation, code), count in self._requests.items():
            requests.add_metric([operation, code], count)
        yield requests
        latency = HistogramMetricFamily(
            "nexuskv_bridge_latency_seconds",
            "Time from the request's arrival to its answer, by operation.",
            labels=["operation"],
        )
        for operation, seen in self._latency.items():
            latency.add_metric([operation], seen.cumulative(), seen.sum_s)
        yield latency
        lookups = CounterMetricFamily(
            "nexuskv_lookup_results",
            "Lookups answered, by what they found; `unknown` and `unavailable` are no misses.",
            labels=["result"],
        )
        for result, count in self._lookups.items():
            lookups.add_metric([result], count)
        yield lookups

    def _http_families(self) -> Iterable[Metric]:
        requests = CounterMetricFamily(
            "nexuskv_http_requests",
            "Requests outside the bridge's operations, by route template and status class.",
            labels=["route", "method", "status"],
        )
        for (route, method, hundreds), count in self._http_requests.items():
            requests.add_metric([route, method, f"{hundreds}xx"], count)
        yield requests
        latency = HistogramMetricFamily(
            "nexuskv_http_request_seconds",
            "Time to answer requests outside the bridge's operations, by route template.",
            labels=["route"],
        )
        for route, seen in self._http_latency.items():
            latency.add_metric([route], seen.cumulative(), seen.sum_s)
        yield latency


class _Latency:
    """A histogram as plain numbers, for the event loop's thread alone.

    A child of prometheus-client takes a lock and walks its buckets: microseconds a request, where
    the whole request has about a hundred.
    """

    __slots__ = ("_counts", "sum_s")

    def __init__(self) -> None:
        self._counts = [0] * (len(_LATENCY_BUCKETS_S) + 1)
        self.sum_s = 0.0

    def observe(self, duration_s: float) -> None:
        self._counts[bisect_left(_LATENCY_BUCKETS_S, duration_s)] += 1
        self.sum_s += duration_s

    def cumulative(self) -> list[tuple[str, float]]:
        """(upper bound, observations up to it) for every bucket, `+Inf` last."""
        bounds = (*(str(float(bound)) for bound in _LATENCY_BUCKETS_S), "+Inf")
        return [
            (bound, float(count))
            for bound, count in zip(bounds, accumulate(self._counts), strict=True)
        ]
