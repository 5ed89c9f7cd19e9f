"""Lookups and estimates while workers fall silent, start anew, are forgotten, or never were."""

import signal
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from tests.fixtures.wire import error_code
from tests.process.waiting import until
from tests.topology.workers import instance
from tests.transfers.announced import Announced
from tests.transfers.fleet import TOKENS, Fleet, Story
from tests.worker.rig import Worker

RESULTS = "nexuskv_lookup_results_total"
NO_WORKER = {"reason": "unavailable", "field": "location.locator"}


def counted(fleet: Fleet, result: str) -> float:
    lines = fleet.client.get("/metrics").text.splitlines()
    (line,) = (line for line in lines if line.startswith(f'{RESULTS}{{result="{result}"}}'))
    return float(line.rpartition(" ")[2])


@contextmanager
def stopped(worker: Worker) -> Iterator[None]:
    """The process stands still: it is neither dead nor heard."""
    worker.command.process.send_signal(signal.SIGSTOP)
    try:
        yield
    finally:
        worker.command.process.send_signal(signal.SIGCONT)


def assert_unavailable(story: Story) -> None:
    answer = story.lookup()
    assert (answer.status_code, answer.json()["match_result"]) == (200, None)
    assert answer.headers["x-nexuskv-match"] == "unavailable"
    found = story.history(answer, [])
    assert (found["outcome"], found["fallback_reason"]) == ("unavailable", "unavailable")
    assert found["path"] == ["described", "matched", "recomputed", "observed"]
    (excluded,) = found["excluded"]
    assert {name: excluded[name] for name in NO_WORKER} == NO_WORKER
    assert excluded["entry_id"] == "state-1"


@pytest.fixture
def node_x(fleet: Fleet) -> Iterator[Announced]:
    with Announced(fleet, "node-x") as worker:
        yield worker


def test_a_silent_workers_state_is_no_hit_and_no_miss_until_it_is_heard_again(
    fleet: Fleet, story: Story
) -> None:
    assert story.hit() is not None
    before = {result: counted(fleet, result) for result in ("unavailable", "miss", "hit")}
    with stopped(fleet.a):
        fleet.wait_silent("node-a")
        assert_unavailable(story)
    # The same process is heard again: it still has what it had.
    until(story.hit, "the state is a hit again")
    assert story.lookup().headers.get("x-nexuskv-match") is None
    assert counted(fleet, "unavailable") >= before["unavailable"] + 1
    assert counted(fleet, "hit") > before["hit"]
    assert counted(fleet, "miss") == before["miss"]
    answer = story.materialize(story.option(), story.sink())
    assert answer.json()["evidence"]["level"] == "physical"


def test_another_start_of_the_worker_has_lost_what_the_first_had(
    story: Story, node_x: Announced
) -> None:
    story.register(generation=2, locator="node://node-x/state/p")
    assert story.hit() is not None
    node_x.say(instance_id=instance())
    assert_unavailable(story)
    story.register(generation=3, locator="node://node-x/state/p")
    assert story.hit() is not None
    # Somebody else's payload may go; this one may not be reported gone and be a hit.
    rivals = [one | {"tenant": "rival"} for one in story.gone("p")]
    node_x.say(gone_payloads=story.gone("other") + rivals)
    assert story.hit() is not None
    node_x.say(gone_payloads=story.gone("p"))
    assert_unavailable(story)


def test_names_that_nobody_has_are_the_engines_business(
    fleet: Fleet, story: Story, node_x: Announced
) -> None:
    elsewhere = ("node://nobody/state/p", "s3://bucket/p", "node://node-x/elsewhere/p")
    for generation, locator in enumerate(elsewhere, 2):
        story.register(generation=generation, locator=locator)
        assert story.hit() is not None, locator
    story.register(generation=9, locator="node://node-x/state/p")
    node_x.say(instance_id=instance())
    assert_unavailable(story)
    node_x.fall_silent()
    fleet.client.delete("/v1/workers/node-x")
    assert story.hit() is not None


def test_the_next_state_wins_where_the_best_is_out_of_reach(
    story: Story, node_x: Announced
) -> None:
    longer = [*TOKENS, 1, 2, 3, 4]
    story.register(entry_id="longer", tokens=longer, locator="node://node-x/state/p")
    assert (
        story.lookup(tokens=longer).json()["match_result"]["entry"]["identity"]["entry_id"]
        == "longer"
    )
    node_x.say(gone_payloads=story.gone("p"))
    answer = story.lookup(tokens=longer)
    match = answer.json()["match_result"]
    assert match["entry"]["identity"]["entry_id"] == "state-1"
    assert match["matched_extent"]["units"] == len(TOKENS)
    found = story.history(answer, [])
    excluded = [(one["entry_id"], one["reason"]) for one in found["excluded"]]
    assert (found["outcome"], excluded) == ("hit", [("longer", "unavailable")])


def test_an_estimate_says_which_backends_were_out_of_reach(
    fleet: Fleet, story: Story, node_x: Announced
) -> None:
    assert story.estimate("node-x").status_code == 200
    node_x.fall_silent()
    fleet.wait_silent("node-x")
    answer = story.estimate("node-x")
    assert error_code(answer) == (503, "materialization_unavailable")
    assert "(preferred_backend_unavailable): recompute" in answer.json()["error"]["message"]
    found = story.history(answer, ["fell_back"])
    assert (found["outcome"], found["fallback_reason"]) == (
        "unavailable",
        "preferred_backend_unavailable",
    )
    assert found["path"] == ["described", "matched", "validated", "recomputed", "observed"]
    assert found["excluded"] == [
        {
            "registration": f"node-x/{backend}",
            "reason": "preferred_backend_unavailable",
            "detail": "is not available",
        }
        for backend in ("baseline_transport", "staged_copy")
    ]
    # Into anything that is no worker of ours the state can be brought by the engine itself.
    assert story.estimate("node-elsewhere").status_code == 200


def test_an_estimate_of_a_state_that_went_out_of_reach_after_its_lookup(
    story: Story, node_x: Announced
) -> None:
    story.register(generation=2, locator="node://node-x/state/p")
    hit = story.hit()
    node_x.say(gone_payloads=story.gone("p"))
    answer = story.estimate(hit=hit)
    assert error_code(answer) == (503, "materialization_unavailable")
    assert story.history(answer, ["fell_back"])["fallback_reason"] == "cache_miss"
