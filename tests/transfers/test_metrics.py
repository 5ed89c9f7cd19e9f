"""What an operator reads at `/metrics` of a fleet at work: choices, quotas, transfers, sinks."""

import re
from pathlib import Path

import httpx
from prometheus_client.parser import text_string_to_metric_families

from app.contract.enums import FallbackReason, TransferBackend, TransferStatus
from app.engines.views import ViewState
from tests.process.waiting import until
from tests.transfers.fleet import Fleet, Story
from tests.transfers.operator import Operator, shipped, variant

DOCUMENT = Path(__file__).resolve().parents[2] / "docs" / "metrics.md"
KINDS = {"estimate", "materialize", "prefetch", "store"}
CLOSED = {
    "backend": set(TransferBackend),
    "limit": {"max_payload_bytes", "max_entries", "max_concurrent_transfers"},
    # Of sinks, and of engines.
    "state": {"consumed", "discarded", "expired"} | set(ViewState),
}

Series = dict[tuple[str, frozenset[tuple[str, str]]], float]


def scraped(url: str) -> Series:
    text = httpx.get(f"{url}/metrics", trust_env=False).raise_for_status().text
    return {
        (sample.name, frozenset(sample.labels.items())): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


class Watch:
    """How much a series grew since this was made."""

    def __init__(self, fleet: Fleet) -> None:
        self._url = fleet.service.url
        self._before = scraped(self._url)

    def moved(self, name: str, **labels: str) -> float:
        at = (f"nexuskv_{name}_total", frozenset(labels.items()))
        return scraped(self._url)[at] - self._before.get(at, 0)


def store(story: Story, transfer_id: str) -> httpx.Response:
    body = {"transfer_id": transfer_id, "action": "store", "tenant": story.tenant,
            "entry_id": "state-1", "target_worker": "node-b"}  # fmt: skip
    return story.fleet.client.post("/v1/transfers", json=body)


def test_choices_transfers_and_sinks_are_counted(operator: Operator, story: Story) -> None:
    operator.switch(shipped("shared-fleet"))
    watch = Watch(story.fleet)
    option, sink = story.option(), story.sink()
    assert story.materialize(option, sink).status_code == 200
    assert story.materialize(option, sink).status_code == 200, "a repetition, which counts nothing"
    for kind in ("estimate", "materialize"):
        at = {"kind": kind, "backend": "staged_copy"}
        assert watch.moved("backend_selections", result="selected", **at) == 1
        other = {"kind": kind, "backend": "baseline_transport", "reason": "engine_policy"}
        assert watch.moved("backend_rejections", **other) == 1
    assert watch.moved("transfers", kind="materialize", status="completed") == 1
    assert watch.moved("moved_bytes", kind="materialize") == len(story.data)
    story.target.finish(sink, "consume")
    until(
        lambda: watch.moved("sink_reports", state="consumed", result="matched") == 1,
        "the report is counted",
    )
    abandoned = story.sink()
    story.target.finish(abandoned, "discard")
    until(
        lambda: watch.moved("sink_reports", state="discarded", result="unmatched") == 1,
        "one that nothing filled matches nothing",
    )


def test_quotas_that_deny_and_that_only_remark(operator: Operator, story: Story) -> None:
    watch = Watch(story.fleet)
    for mode, result in (("advisory", "advisory"), ("enforced", "denied")):
        quota = {"mode": mode, "max_payload_bytes": 1}
        operator.switch(variant("default", quota_admission_policy=quota))
        answer = story.materialize(story.option(), story.sink())
        assert answer.status_code == (200 if mode == "advisory" else 503)
        at = {"kind": "materialize", "limit": "max_payload_bytes"}
        assert watch.moved("quota_exceeded", result=result, **at) == 1
    assert watch.moved("transfers", kind="materialize", status="completed") == 1
    assert watch.moved("transfers", kind="materialize", status="rejected") == 1
    assert store(story, "t-metrics").json()["status"] == "rejected"
    assert watch.moved("transfers", kind="store", status="rejected") == 1
    at = {"kind": "store", "result": "denied", "limit": "max_payload_bytes"}
    assert watch.moved("quota_exceeded", **at) == 1


def test_documents_and_activations_are_counted(operator: Operator, fleet: Fleet) -> None:
    watch = Watch(fleet)
    yaml = {"content-type": "application/yaml"}
    new = variant("default", quota_admission_policy={"max_entries": 4242})
    for path, text, result in (
        ("/v1/policies", new, "stored"),
        ("/v1/policies", new, "known"),
        ("/v1/policies", "a: 1", "refused"),
        ("/v1/policies:validate", new, "valid"),
        ("/v1/policies:validate", "a: &b 1", "invalid"),
    ):
        fleet.client.post(path, content=text, headers=yaml)
        assert watch.moved("policy_documents", result=result) == 1, result
    number = operator.push(new)
    for result in ("changed", "unchanged"):
        fleet.client.post(f"/v1/policies/{number}:activate").raise_for_status()
        assert watch.moved("policy_activations", result=result) == 1
    assert fleet.client.post("/v1/policies/999999:activate").status_code == 404
    assert watch.moved("policy_activations", result="refused") == 1
    assert watch.moved("policy_changes") == 1
    assert scraped(fleet.service.url)["nexuskv_policy_number", frozenset()] == number


# Served where another process writes the index: see tests/process/test_serve_workers.py.
OF_READERS = {
    "nexuskv_index_writer_away",
    "nexuskv_index_reconnects_total",
    "nexuskv_index_readers_cut_total",
    "nexuskv_index_forwarded_total",
}


def test_every_series_is_documented_and_its_labels_are_closed(fleet: Fleet) -> None:
    """Names in both directions; the sets of labels to the last member."""
    api, worker = scraped(fleet.service.url), scraped(fleet.a.url)
    documented = set(re.findall(r"`(nexuskv_\w+)`", DOCUMENT.read_text(encoding="utf-8")))
    served = {
        re.sub(r"_(bucket|count|sum)$", "", name)
        for name, _ in (api | worker)
        if not name.startswith("process_") and not name.endswith("_created")
    }
    assert documented == served | OF_READERS
    for name, pairs in api:
        labels = dict(pairs)
        assert not set(labels) & {"tenant", "namespace", "model", "worker", "path", "key_id"}, name
        for label, members in CLOSED.items():
            assert labels.get(label, min(members)) in members, (name, labels)
        if name == "nexuskv_transfers_total":
            assert labels["kind"] in KINDS
            assert labels["status"] in set(TransferStatus)
        if name == "nexuskv_backend_rejections_total":
            assert labels["reason"] in set(FallbackReason)
