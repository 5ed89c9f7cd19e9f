"""Orders that a tenant gives a worker itself: they move bytes, and say nothing in the history."""

import pytest

from tests.process.waiting import until
from tests.topology.workers import instance
from tests.transfers.announced import Announced
from tests.transfers.fleet import Story
from tests.worker.rig import now_s


def order_of_its_own(story: Story, sink: str, session: str, **more) -> dict:
    """On the worker that holds the payload, with a token that anyone may be issued."""
    return story.source.transfer(
        story.source, story.payload_id, session, target_sink_id=sink, **more
    )


def test_a_session_named_after_a_transfer_of_ours_frees_no_charge(story: Story) -> None:
    answer = story.materialize(story.option(), story.sink())
    session = answer.json()["evidence"]["transfer_session"]
    held = story.charged()
    assert held["entries"] == 1
    # Another worker, the same session id: a sink of its own, filled and discarded.
    mine = story.source.new_sink(len(story.data), engine_id="engine-7")
    done = order_of_its_own(story, mine, session)
    assert done["status"] == "completed"
    finished = story.source.finish(mine, "discard", engine_id="engine-7")
    assert finished.status_code == 200
    until(lambda: reported(story), "the report is taken")
    assert story.charged() == held
    found = story.history(answer, ["completed"])
    assert found["outcome"] == "materialized"


def test_a_decision_named_in_an_order_gets_no_outcome(story: Story) -> None:
    lookup = story.lookup()
    decision_id = lookup.headers["x-nexuskv-decision-id"]
    mine = story.source.new_sink(len(story.data), engine_id="engine-7")
    done = order_of_its_own(story, mine, "session-of-mine", decision_id=decision_id)
    assert done["status"] == "completed"
    assert story.source.finish(mine, "consume", engine_id="engine-7").status_code == 200
    until(lambda: reported(story), "the report is taken")
    assert story.history(lookup, [])["outcomes"] == []


def test_a_sink_that_another_worker_reports_is_not_the_options(story: Story) -> None:
    sink = story.sink()
    answer = story.materialize(story.option(), sink)
    session = answer.json()["evidence"]["transfer_session"]
    held = story.charged()
    event = {
        "event_id": instance(),
        "sink_id": sink,
        "tenant": story.tenant,
        "state": "discarded",
        "at_us": now_s() * 1_000_000,
        "payload_bytes": len(story.data),
        "session_id": session,
        "decision_id": answer.headers["x-nexuskv-decision-id"],
        "reason": "of somebody else's sink",
    }
    with Announced(story.fleet, "node-elsewhere") as other:
        other.say(events=[event])
        other.say(events=[])
    assert story.charged() == held
    # The worker that has the sink is heard, and is the only one.
    story.target.finish(sink, "consume")
    found = story.history(answer, ["completed", "consumed"])
    assert found["outcomes"][1]["detail"]["worker"] == "node-b"


def test_a_discarded_sink_is_not_answered_as_filled(story: Story) -> None:
    sink, session = story.sink(), "a-session-of-mine"
    order = story.target.order(story.source, story.payload_id, session, target_sink_id=sink)
    order |= {"engine_id": "engine-1", "engine_generation": 1}
    for _ in range(2):
        assert story.target.send(order).json()["status"] == "completed"
    story.target.finish(sink, "discard")
    again = story.target.send(order).json()
    assert (again["status"], again["failure"]) == ("failed", "sink_not_open")
    assert again["bytes_transferred"] == 0


@pytest.mark.parametrize(
    "changes",
    [
        {"decision_id": "-" * 36},
        {"deadline_s": 1e308},
        {"wait_s": -1},
        {"session_id": "ends-with-a-line\n"},
    ],
)
def test_odd_values_of_an_order_are_named(story: Story, changes: dict) -> None:
    sink = story.sink()
    order = story.target.order(story.source, story.payload_id, "odd", target_sink_id=sink)
    answer = story.target.send(order | changes)
    assert answer.status_code == 400, answer.text
    assert answer.json()["errors"][0]["pointer"] == f"/{next(iter(changes))}"


def reported(story: Story) -> bool:
    """Whether the worker has nothing left to tell."""
    return story.source.metrics()["nexuskv_worker_events_pending"] == 0
