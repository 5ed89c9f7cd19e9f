"""`/v1/prefetches`: brought where it is worth it, refused with figures, never waited for."""

import json
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import count
from typing import Any

import httpx
import pytest
import yaml

from app.control.keys import Scope
from tests.process.waiting import until
from tests.transfers.fleet import Fleet, Story
from tests.transfers.operator import Operator, shipped
from tests.transfers.scripted import Call, ScriptedTarget


class Prefetches:
    """What one tenant asks of `/v1/prefetches`; the copy at the target is deleted at the end."""

    def __init__(self, story: Story) -> None:
        self.story = story
        self.client = story.fleet.client

    def post(self, prefetch_id: str = "ahead-1", **changes: Any) -> httpx.Response:
        body = {
            "prefetch_id": prefetch_id, "tenant": self.story.tenant, "entry_id": "state-1",
            "target_worker": "node-b", "use_within_us": 1_900_000, "use_probability": 0.9,
            **changes,
        }  # fmt: skip
        return self.client.post("/v1/prefetches", json=body)

    def done(self, prefetch_id: str = "ahead-1", status: int = 200, **changes: Any) -> Any:
        answer = self.post(prefetch_id, **changes)
        assert answer.status_code == status, answer.text
        return answer.json()

    def stored(self, decision_id: str) -> Any:
        path = f"/v1/decisions/{decision_id}"
        until(lambda: self.client.get(path).status_code == 200, "the decision is stored")
        return self.client.get(path).json()


@pytest.fixture
def prefetches(story: Story) -> Iterator[Prefetches]:
    yield Prefetches(story)
    story.target.delete(story.payload_id)


def second_version(**budgets: Any) -> str:
    document = yaml.safe_load(shipped("default"))
    document["schema_version"] = "nexuskv.execution_policy.v2"
    return yaml.safe_dump(document | {"prefetch_budgets": budgets})


def test_what_is_worth_it_is_there_in_time(prefetches: Prefetches) -> None:
    found = prefetches.done()
    assert (found["status"], found["use"], found["late"]) == ("completed", True, False)
    figures = found["figures"]
    assert figures["expected_us"] == pytest.approx(
        0.9 * figures["gain_us"] - 0.1 * figures["transfer_us"], abs=1
    )
    assert found["transfer"]["bytes_transferred"] == len(prefetches.story.data)
    assert prefetches.story.target.get(prefetches.story.payload_id).content == prefetches.story.data
    decision = prefetches.stored(found["decision_id"])
    assert (decision["kind"], decision["outcome"]) == ("prefetch", "transferred")
    assert decision["inputs"]["prefetch"]["use_probability"] == 0.9
    assert decision["inputs"]["prefetch_verdict"]["refusal"] is None


def test_the_same_again_is_the_same(prefetches: Prefetches) -> None:
    first = prefetches.done()
    again = prefetches.done()
    assert (again["status"], again["figures"]) == ("completed", None)
    assert again["transfer"]["transfer_id"] == first["transfer"]["transfer_id"]
    other = prefetches.post(entry_id="another")
    assert (other.status_code, other.json()["code"]) == (409, "transfer_conflict")


@pytest.mark.parametrize(
    ("refusal", "changes"),
    [
        ("too_late", {"use_within_us": 1}),
        ("not_worth_it", {"use_probability": 0.000_001}),
        ("not_worth_it", {"pollution_us": 10**9}),
        ("not_worth_it", {"interference_us": 10**9}),
    ],
)
def test_what_is_not_worth_it_is_not_begun(
    prefetches: Prefetches, refusal: str, changes: dict[str, Any]
) -> None:
    found = prefetches.done(**changes)
    assert (found["status"], found["refusal"], found["use"]) == ("refused", refusal, False)
    assert found["transfer"] is None
    decision = prefetches.stored(found["decision_id"])
    assert (decision["outcome"], decision["fallback_reason"]) == ("unavailable", refusal)
    assert decision["action"] == "skip"
    params = {"tenant": prefetches.story.tenant}
    assert prefetches.client.get("/v1/transfers/ahead-1", params=params).status_code == 404


@pytest.mark.parametrize(
    ("refusal", "budgets"),
    [
        ("unlikely", {"min_use_probability": 0.95}),
        ("budget_bytes", {"max_bytes_in_flight": 10}),
        ("budget_bandwidth", {"max_bytes_per_us": 1}),
    ],
)
def test_what_is_beyond_the_policys_budgets_is_not_begun(
    prefetches: Prefetches, operator: Operator, refusal: str, budgets: dict[str, Any]
) -> None:
    operator.switch(second_version(**budgets))
    # The state's bytes in so little time need more than a byte a microsecond.
    found = prefetches.done(use_within_us=3_000)
    assert (found["status"], found["refusal"]) == ("refused", refusal)


def test_a_tier_takes_as_much_and_as_many_as_it_is_said_to(
    prefetches: Prefetches, operator: Operator
) -> None:
    operator.switch(second_version(max_tier_share=0.5))
    size = len(prefetches.story.data)
    topology(prefetches.client, capacity_bytes=size, max_in_flight=0)
    found = prefetches.done()
    assert (found["status"], found["refusal"]) == ("refused", "budget_tier_share")
    assert found["figures"]["tier_bytes"] == size
    topology(prefetches.client, capacity_bytes=100 * size, max_in_flight=0)
    assert prefetches.done()["status"] == "completed"


def test_what_did_not_come_takes_nothing_of_a_tier(
    prefetches: Prefetches, operator: Operator
) -> None:
    operator.switch(second_version(max_tier_share=1))
    asked = {"target_worker": "no-such-worker", "use_within_us": 10**9}
    size = prefetches.done("asked", **asked | {"use_probability": 1e-9})["figures"]["moved_bytes"]
    node = {"capacity_bytes": size, "max_in_flight": 0, "node": "no-such-worker"}
    topology(prefetches.client, **node)
    for number in range(3):
        found = prefetches.done(f"ahead-{number}", **asked)
        assert (found["status"], found["refusal"]) == ("fell_back", None)
    # What did come has its place until it should be used.
    topology(prefetches.client, **node | {"node": "node-b"})
    asked["target_worker"] = "node-b"
    numbers = count()
    until(
        lambda: prefetches.done(f"came-{next(numbers)}", **asked)["status"] == "completed",
        "what came before should have been used by now",
    )
    assert prefetches.done("more", **asked)["refusal"] == "budget_tier_share"
    topology(prefetches.client, **node | {"node": "node-b", "capacity_bytes": 100 * size})


@pytest.fixture
def slow(fleet: Fleet) -> Iterator[ScriptedTarget]:
    """A target that takes an order and says nothing more."""
    with ScriptedTarget(fleet, "node-slow") as target:
        target.on_order = Call.hang
        yield target


@pytest.mark.usefixtures("slow")
@pytest.mark.parametrize(
    ("abandon", "status", "http_status"),
    [("cancel", "cancelled", 200), ("demote", "demoted", 202)],
)
def test_what_is_late_is_not_waited_for(
    prefetches: Prefetches, abandon: str, status: str, http_status: int
) -> None:
    begin_s = time.monotonic()
    answer = prefetches.post(target_worker="node-slow", use_within_us=300_000, abandon=abandon)
    took_s = time.monotonic() - begin_s
    found = answer.json()
    assert (found["status"], found["late"], found["use"]) == (status, True, False), found
    assert answer.status_code == http_status
    assert 0.3 <= took_s < 1.5


@pytest.mark.usefixtures("slow")
def test_of_two_at_once_only_one_fits_the_budget(
    prefetches: Prefetches, operator: Operator
) -> None:
    # As its descriptor says.
    size = prefetches.done("asked", use_probability=1e-9)["figures"]["moved_bytes"]
    operator.switch(second_version(max_bytes_in_flight=size * 3 // 2))
    asked = {"target_worker": "node-slow", "use_within_us": 500_000}
    with ThreadPoolExecutor(2) as pool:
        answers = list(pool.map(lambda n: prefetches.done(f"ahead-{n}", **asked), range(2)))
    assert sorted(one["refusal"] or "" for one in answers) == ["", "budget_bytes"]
    # What has ended is given back, also where the worker never said a word.
    numbers = count(3)
    until(
        lambda: prefetches.done(f"ahead-{next(numbers)}", **asked)["refusal"] is None,
        "the budget is free again",
    )


@pytest.mark.parametrize(
    "changes",
    [
        {"use_within_us": 0}, {"use_within_us": -5}, {"use_within_us": 10**15},
        {"use_within_us": 1.5}, {"use_probability": 0}, {"use_probability": 1.1},
        {"use_probability": -1}, {"pollution_us": -1}, {"interference_us": 10**13},
        {"abandon": "wait"}, {"target_worker": "a/b"}, {"engine_id": ""}, {"more": 1},
        {"prefetch_id": ""}, {"backend": "carrier_pigeon"},
    ],
)  # fmt: skip
def test_bad_input_is_named_and_moves_nothing(
    prefetches: Prefetches, changes: dict[str, Any]
) -> None:
    answer = prefetches.post(**changes)
    assert answer.status_code == 400, answer.text
    (finding,) = answer.json()["errors"]
    assert finding["pointer"] == f"/{next(iter(changes))}"
    assert prefetches.story.charged()["payload_bytes"] == 0


def test_a_number_that_is_none_is_refused(prefetches: Prefetches) -> None:
    body = json.dumps({"use_probability": float("nan")})
    headers = {"content-type": "application/json"}
    answer = prefetches.client.post("/v1/prefetches", content=body, headers=headers)
    assert answer.status_code == 400


def test_what_is_not_there_and_who_may_not(prefetches: Prefetches) -> None:
    unknown = prefetches.post(entry_id="no-such-state")
    assert (unknown.status_code, unknown.json()["code"]) == (404, "not_found")
    nowhere = prefetches.done(target_worker="no-such-worker")
    assert (nowhere["status"], nowhere["use"]) == ("fell_back", False)
    service = prefetches.story.fleet.service
    with service.client(service.key(Scope.TRANSFERS_WRITE, tenants=("another",))) as other:
        body = {
            "prefetch_id": "x", "tenant": prefetches.story.tenant, "entry_id": "state-1",
            "target_worker": "node-b", "use_within_us": 1_000, "use_probability": 1,
        }  # fmt: skip
        answer = other.post("/v1/prefetches", json=body)
    assert (answer.status_code, answer.json()["code"]) == (403, "tenant_forbidden")


def topology(
    client: httpx.Client, *, capacity_bytes: int, max_in_flight: int, node: str = "node-b"
) -> None:
    document = {
        "schema_version": "nexuskv.topology.v1",
        "nodes": [{"name": node}], "engines": [], "links": [],
        "tiers": [{"node": node, "tier": "host_dram", "capacity_bytes": capacity_bytes,
                   "max_in_flight": max_in_flight}],
    }  # fmt: skip
    client.put("/v1/topology", json=document).raise_for_status()
