"""What a scraper reads."""

from collections import Counter

import pytest
from prometheus_client.openmetrics.parser import text_string_to_metric_families as parse_openmetrics
from prometheus_client.parser import text_string_to_metric_families

from app.errors import ErrorCode
from app.metrics import LOOKUP_RESULTS, OPERATIONS, Metrics

ALLOWED_LABELS = {
    "operation", "code", "result", "reason", "route", "method", "status", "le", "version",
    "implementation",
}  # fmt: skip


@pytest.fixture
def metrics() -> Metrics:
    return Metrics(version="1.2.3", implementation="compiled")


def samples(metrics: Metrics) -> dict[tuple[str, frozenset[tuple[str, str]]], float]:
    text = metrics.render()[1].decode()
    return {
        (sample.name, frozenset(sample.labels.items())): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def value(metrics: Metrics, name: str, **labels: str) -> float:
    return samples(metrics)[name, frozenset(labels.items())]


def test_every_series_of_a_closed_set_exists_from_the_start(metrics: Metrics) -> None:
    found = samples(metrics)
    for operation in OPERATIONS:
        for code in ("ok", *ErrorCode):
            labels = frozenset({("operation", operation), ("code", str(code))})
            assert found["nexuskv_bridge_requests_total", labels] == 0
    for result in LOOKUP_RESULTS:
        assert found["nexuskv_lookup_results_total", frozenset({("result", result)})] == 0
    info = {"version": "1.2.3", "implementation": "compiled"}
    assert found["nexuskv_build_info", frozenset(info.items())] == 1


def test_requests_are_counted_by_operation_and_outcome(metrics: Metrics) -> None:
    metrics.observe_bridge("lookup", None, 0.0004)
    metrics.observe_bridge("lookup", ErrorCode.QUERY_TOO_LARGE, 20.0)
    name = "nexuskv_bridge_requests_total"
    assert value(metrics, name, operation="lookup", code="ok") == 1
    assert value(metrics, name, operation="lookup", code="query_too_large") == 1
    assert value(metrics, name, operation="estimate", code="ok") == 0
    bucket = "nexuskv_bridge_latency_seconds_bucket"
    assert value(metrics, bucket, operation="lookup", le="0.00025") == 0
    assert value(metrics, bucket, operation="lookup", le="0.0005") == 1
    assert value(metrics, bucket, operation="lookup", le="10.0") == 1
    assert value(metrics, bucket, operation="lookup", le="+Inf") == 2


def test_unknown_is_not_a_miss(metrics: Metrics) -> None:
    metrics.count_lookup("unknown")
    metrics.count_registration("created", 3)
    assert value(metrics, "nexuskv_lookup_results_total", result="unknown") == 1
    assert value(metrics, "nexuskv_lookup_results_total", result="miss") == 0
    assert value(metrics, "nexuskv_state_registrations_total", result="created") == 3


def test_invented_methods_do_not_make_new_series(metrics: Metrics) -> None:
    for method in ("BREW", "GET\n", "x" * 100):
        metrics.observe_http("/v1/states", method, 405, 0.001)
    labels = {"route": "/v1/states", "method": "other", "status": "4xx"}
    assert value(metrics, "nexuskv_http_requests_total", **labels) == 3


class Writer:
    def __init__(self) -> None:
        self.recorded = 10
        self.stored = 6
        self.pending = 3
        self.pending_bytes = 3000
        self.lost = Counter({"queue_full": 1})


def test_components_are_read_at_scrape_time(metrics: Metrics) -> None:
    index = {"entries": 1, "blocks": 2, "scopes": 3, "memory_bytes": 4}
    metrics.watch_index(lambda: index)
    metrics.watch_decisions(Writer())
    index["entries"] = 7
    assert value(metrics, "nexuskv_index_entries") == 7
    assert value(metrics, "nexuskv_index_memory_bytes") == 4
    assert value(metrics, "nexuskv_decisions_recorded_total") == 10
    assert value(metrics, "nexuskv_decisions_stored_total") == 6
    assert value(metrics, "nexuskv_decisions_queued") == 3
    assert value(metrics, "nexuskv_decisions_lost_total", reason="queue_full") == 1


def test_no_label_can_grow_without_bound(metrics: Metrics) -> None:
    metrics.observe_http("/v1/states/{state_id}", "GET", 200, 0.1)
    metrics.watch_decisions(Writer())
    found = {name for _, labels in samples(metrics) for name, _ in labels}
    ours = {name for name in found if name in ALLOWED_LABELS}
    assert found == ours
    assert not found & {"tenant", "namespace", "model", "key_id", "entry_id", "path"}


@pytest.mark.parametrize("accept", [None, "", "*/*", "text/plain;version=abc", "nonsense;;q=,"])
def test_plain_text_unless_openmetrics_is_accepted(metrics: Metrics, accept: str | None) -> None:
    content_type, _ = metrics.render(accept)
    assert content_type.startswith("text/plain; version=")


def test_openmetrics_for_who_accepts_it(metrics: Metrics) -> None:
    content_type, text = metrics.render("application/openmetrics-text;version=1.0.0,*/*;q=0.1")
    assert content_type.startswith("application/openmetrics-text")
    assert any(f.name == "nexuskv_bridge_requests" for f in parse_openmetrics(text.decode()))


def test_two_apps_count_apart() -> None:
    one = Metrics(version="1", implementation="compiled")
    two = Metrics(version="1", implementation="compiled")
    one.count_lookup("hit")
    assert value(two, "nexuskv_lookup_results_total", result="hit") == 0
