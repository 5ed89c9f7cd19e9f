"""Materialize into a worker's sink: bytes that a worker verified, or 503 with the reason."""

from concurrent.futures import ThreadPoolExecutor

import pytest
import xxhash

from app.transfer.wire import SINK_NAMESPACE
from tests.fixtures.wire import error_code
from tests.process.waiting import until
from tests.transfers.conftest import NOTHING
from tests.transfers.fleet import Fleet, Story

PHYSICAL = "nexuskv.physical-transfer-receipt.v1"


def assert_physical(story: Story, answer, sink: str, backend: str = "baseline_transport") -> None:
    assert answer.status_code == 200, answer.text
    body = answer.json()
    content = story.target.content(sink).content
    assert content == story.data
    assert body["bytes_transferred"] == len(story.data)
    assert body["receipt"]["namespace"] == PHYSICAL
    assert body["receipt"]["value"].endswith(f"xxh3-128:{xxhash.xxh3_128(content).hexdigest()}")
    evidence = body["evidence"]
    assert (evidence["level"], evidence["physical_transfer_verified"]) == ("physical", True)
    assert evidence["execution_backend"] == f"nexuskv.worker.{backend}"
    assert (evidence["sink_namespace"], evidence["sink_value"]) == (SINK_NAMESPACE, sink)


def test_bytes_reach_the_sink_and_the_runtimes_word_becomes_the_outcome(story: Story) -> None:
    option, sink = story.option(), story.sink()
    assert story.target.content(sink).status_code == 409
    answer = story.materialize(option, sink)
    assert_physical(story, answer, sink)
    assert story.charged() == {"payload_bytes": len(story.data), "entries": 1, "transfers": 0}
    assert story.target.finish(sink, "consume").status_code == 200
    found = story.history(answer, ["completed", "consumed"])
    assert found["outcome"] == "materialized"
    assert found["path"] == [
        "described", "matched", "validated", "planned", "reserved", "materialized", "observed",
    ]  # fmt: skip
    completed, consumed = found["outcomes"]
    assert (completed["physical"], completed["bytes_transferred"]) == (True, len(story.data))
    result = completed["detail"]["result"]
    assert (result["requested_kind"], result["executed_kind"]) == ("materialize", "materialize")
    assert (result["status"], result["selected_backend"]) == ("succeeded", "baseline_transport")
    assert result["transfer_session"]["result"]["status"] == "completed"
    assert consumed["detail"]["sink_id"] == sink
    # Its sums are those of its decision's model, backend and policy; the bytes count once.
    for name in ("model", "kind", "backend", "policy_version"):
        assert consumed[name] == found[name] == completed[name], name
    assert consumed["bytes_transferred"] is None


def test_a_discarded_sink_is_the_outcome_too(story: Story) -> None:
    answer = story.materialize(story.option(), sink := story.sink())
    story.target.finish(sink, "discard", reason="the request was cancelled")
    found = story.history(answer, ["completed", "discarded"])
    discarded = found["outcomes"][1]
    assert (discarded["physical"], discarded["fallback_reason"]) == (False, "engine_policy")
    assert discarded["detail"]["reason"] == "the request was cancelled"


def test_a_repeated_import_gets_its_receipt_and_moves_nothing(story: Story) -> None:
    option, sink = story.option(), story.sink()
    first = story.materialize(option, sink)
    moved = story.target.metrics()["nexuskv_worker_received_bytes_total"]
    again = story.materialize(option, sink)
    assert again.json() == first.json()
    assert story.target.metrics()["nexuskv_worker_received_bytes_total"] == moved
    assert story.charged()["entries"] == 1
    other = story.materialize(option, sink, import_id="import-2")
    assert error_code(other) == (409, "materialization_option_consumed")
    # The sink may go; who repeats the import is answered as before.
    story.target.finish(sink, "consume")
    assert story.materialize(option, sink).json() == first.json()


def test_a_sink_of_another_namespace_is_acknowledged_as_before(story: Story) -> None:
    answer = story.materialize(story.option(), "engine-buffer", sink_namespace="engine.sink.v1")
    body = answer.json()
    assert (body["evidence"]["level"], body["bytes_transferred"]) == ("protocol", 0)
    assert story.history(answer, ["registered"])["outcome"] == "acknowledged"
    assert story.charged() == NOTHING


@pytest.mark.parametrize(
    ("payload_bytes", "more", "reason"),
    [
        (4095, {}, "cache_miss"),
        (4097, {}, "cache_miss"),
        (4096, {"generation": 2}, "engine_policy"),
        (4096, {"engine_id": "engine-9"}, "engine_policy"),
    ],
)
def test_a_sink_that_does_not_fit_is_refused_and_the_option_stays(
    story: Story, payload_bytes: int, more: dict, reason: str
) -> None:
    option = story.option()
    # Each engine of its own: a newer generation of one makes the older ones stale.
    wrong = story.sink(payload_bytes, **({"engine_id": "engine-8", **more}))
    answer = story.materialize(option, wrong)
    assert error_code(answer) == (503, "materialization_unavailable")
    assert reason in answer.json()["error"]["message"] or "engine_policy" in answer.text
    assert story.charged() == NOTHING
    right = story.sink()
    assert_physical(story, story.materialize(option, right), right)


def test_another_tenants_sink_is_none(story: Story, fleet: Fleet) -> None:
    foreign = fleet.b.of("tenant-elsewhere").new_sink(len(story.data))
    answer = story.materialize(story.option(), foreign)
    assert error_code(answer) == (503, "materialization_unavailable")
    assert "there is no sink" in answer.json()["error"]["message"]
    facts = fleet.b.of("tenant-elsewhere").sink_facts(foreign)
    assert facts["state"] == "open"
    fleet.b.of("tenant-elsewhere").finish(foreign, "discard")


def test_a_sink_that_is_complete_takes_no_other_option(story: Story) -> None:
    sink = story.sink()
    assert_physical(story, story.materialize(story.option(), sink), sink)
    answer = story.materialize(story.option(), sink, import_id="import-2")
    assert error_code(answer) == (503, "materialization_unavailable")
    assert "sink_not_open" in answer.json()["error"]["message"]
    assert story.target.content(sink).content == story.data


def test_a_payload_that_is_gone_is_a_cache_miss_and_then_no_hit(story: Story) -> None:
    option, sink = story.option(), story.sink()
    story.source.delete(story.payload_id)
    answer = story.materialize(option, sink)
    assert error_code(answer) == (503, "materialization_unavailable")
    found = story.history(answer, ["fell_back"])
    assert (found["outcome"], found["fallback_reason"]) == ("unavailable", "cache_miss")
    assert story.charged() == NOTHING
    # Its worker says so with its next heartbeat; from then on a lookup knows.
    until(lambda: story.hit() is None, "the state is no hit any more")
    assert story.lookup().headers["x-nexuskv-match"] == "unavailable"
    # Uploaded and registered again, it is a hit again; and the option was never used up.
    story.ready()
    until(story.hit, "the state is a hit again")
    assert_physical(story, story.materialize(option, sink), sink)


def test_two_imports_race_for_one_option(story: Story) -> None:
    option = story.option()
    sinks = [story.sink(), story.sink()]
    with ThreadPoolExecutor(2) as pool:
        answers = list(
            pool.map(
                lambda number: story.materialize(
                    option, sinks[number], import_id=f"import-{number}"
                ),
                range(2),
            )
        )
    statuses = sorted(answer.status_code for answer in answers)
    assert statuses in ([200, 409], [200, 503])
    winner = next(number for number, answer in enumerate(answers) if answer.status_code == 200)
    assert_physical(story, answers[winner], sinks[winner])
    assert story.charged() == {"payload_bytes": len(story.data), "entries": 1, "transfers": 0}


def test_two_options_race_for_one_sink(story: Story) -> None:
    options, sink = [story.option(), story.option()], story.sink()
    with ThreadPoolExecutor(2) as pool:
        answers = list(
            pool.map(
                lambda number: story.materialize(
                    options[number], sink, import_id=f"import-{number}"
                ),
                range(2),
            )
        )
    assert sorted(answer.status_code for answer in answers) == [200, 503]
    assert story.charged()["entries"] == 1
    assert story.target.content(sink).content == story.data


def test_a_target_that_is_no_worker_cannot_be_reached(story: Story) -> None:
    answer = story.materialize(story.option("node-elsewhere"), "sink-1")
    assert error_code(answer) == (503, "materialization_unavailable")
    assert "no_transfer_path" in answer.json()["error"]["message"]
    found = story.history(answer, ["fell_back"])
    assert found["fallback_reason"] == "no_transfer_path"
    # It came to no order, and still says what was asked and what is done instead.
    result = found["outcomes"][0]["detail"]["result"]
    assert (result["requested_kind"], result["executed_kind"], result["backend_name"]) == (
        "materialize", "recompute", "nexuskv.none",
    )  # fmt: skip
    assert result["fallback_reason"] == "no_transfer_path"


def test_many_at_once_all_arrive(fleet: Fleet, story: Story) -> None:
    options = [story.option() for _ in range(32)]
    sinks = [story.sink() for _ in range(32)]
    with ThreadPoolExecutor(32) as pool:
        answers = list(
            pool.map(
                lambda number: story.materialize(
                    options[number], sinks[number], import_id=f"import-{number}"
                ),
                range(32),
            )
        )
    assert {answer.status_code for answer in answers} == {200}
    assert all(story.target.content(sink).content == story.data for sink in sinks)
    assert story.charged()["entries"] == 32
