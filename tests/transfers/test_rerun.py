"""A decision made again from its record comes out as the service decided, under any policy."""

from contextlib import ExitStack
from itertools import product
from pathlib import Path
from typing import Any

import httpx

from app.control.keys import Scope
from tests.fixtures.database import TestServer, drop_or_fail
from tests.fixtures.service import ServiceProcess, decisions_of
from tests.fixtures.wire import TOKENS, error_code, lookup_body
from tests.process.waiting import until
from tests.transfers.conftest import new_tenant_name
from tests.transfers.fleet import Fleet, Story
from tests.transfers.operator import SHIPPED, Operator, shipped, variant
from tests.transfers.test_policies_switch import OFFERS, Offers

LIMITED = {"mode": "enforced", "max_payload_bytes": 5000}


def stored_id(fleet: Fleet, answer: httpx.Response) -> str:
    """The decision behind an answer, once it is stored."""
    decision_id = answer.headers["x-nexuskv-decision-id"]
    path = f"/v1/decisions/{decision_id}"
    until(lambda: fleet.client.get(path).status_code == 200, "the decision is stored")
    return decision_id


def again(fleet: Fleet, decision_id: str, policy: int | None = None) -> dict[str, Any]:
    path = f"/v1/decisions/{decision_id}/rerun"
    params = {} if policy is None else {"policy": policy}
    found: dict[str, Any] = fleet.client.get(path, params=params).raise_for_status().json()
    return found


def assert_as_decided(fleet: Fleet, made: dict[str, dict[str, str]]) -> None:
    """`made`: by label of a policy, by what was asked, the decision under it.

    Each is the same under its own policy, and under another one what that decided itself.
    """
    recorded = {
        (label, asked): again(fleet, decision_id)
        for label, decisions in made.items()
        for asked, decision_id in decisions.items()
    }
    for found in recorded.values():
        assert found["same"], found
        assert found["policy_version"] == found["recorded_policy_version"]
    for before, after in product(made, made):
        number = int(after.partition(":")[0])
        for asked, decision_id in made[before].items():
            found = again(fleet, decision_id, number)
            assert found["policy_version"] == after
            assert found["again"] == recorded[after, asked]["recorded"], (before, after, asked)
            assert found["same"] == (found["again"] == found["recorded"])


def test_every_choice_of_a_backend(fleet: Fleet, operator: Operator) -> None:
    made: dict[str, dict[str, str]] = {}
    with ExitStack() as stack:
        offers = Offers(fleet, stack, "tenant-offers-again")
        for policy in SHIPPED:
            label = operator.switch(shipped(policy))
            made[label] = {name: stored_id(fleet, offers.estimate(name)) for name in OFFERS}
    assert_as_decided(fleet, made)


def test_every_choice_of_a_state(fleet: Fleet, operator: Operator) -> None:
    """The longest lies on a disk, the next on a device, and the shortest in memory."""
    told = fleet.story(new_tenant_name())
    for tier, tokens in (("local_ssd", 8), ("device", 6), ("host_dram", 4)):
        told.register(entry_id=f"in-{tier}", tier=tier, tokens=TOKENS[:tokens])
    made: dict[str, dict[str, str]] = {}
    expected = {
        "default": "in-local_ssd",
        "shared-fleet": "in-local_ssd",
        "latency-first": "in-device",
    }
    for policy in SHIPPED:
        label = operator.switch(shipped(policy))
        answer = told.lookup()
        made[label] = {"lookup": stored_id(fleet, answer)}
        assert again(fleet, made[label]["lookup"])["recorded"]["entry_id"] == expected[policy]
    assert_as_decided(fleet, made)


def test_a_quota_that_would_have_refused_it(fleet: Fleet, operator: Operator) -> None:
    """What the tenant had when it asked is recorded, whichever way it was charged."""
    told = fleet.story(new_tenant_name()).ready()
    made: dict[str, dict[str, str]] = {}
    for text in (shipped("default"), variant("default", quota_admission_policy=LIMITED)):
        label = operator.switch(text)
        first, second = told.materialize(told.option(), told.sink()), None
        option = told.option()
        second = told.materialize(option, told.sink(), import_id="import-2")
        made[label] = {"first": stored_id(fleet, first), "second": stored_id(fleet, second)}
        for sink in told.sinks:
            told.target.finish(sink, "discard")
        until(lambda: told.charged()["entries"] == 0, lambda: f"{told.charged()}")
        told.sinks.clear()
    refused = [
        again(fleet, made[label][asked])["recorded"]["reason"]
        for label in made
        for asked in made[label]
    ]
    assert refused == [None, None, None, "engine_policy"]
    assert_as_decided(fleet, made)


def test_a_prefetch(fleet: Fleet, story: Story, operator: Operator) -> None:
    made: dict[str, dict[str, str]] = {}
    for number, policy in enumerate(SHIPPED):
        label = operator.switch(shipped(policy))
        body = {
            "transfer_id": f"move-{number}", "action": "prefetch", "tenant": story.tenant,
            "entry_id": "state-1", "target_worker": "node-b", "payload_id": f"copy-{number}",
        }  # fmt: skip
        view = fleet.client.post("/v1/transfers", json=body).raise_for_status().json()
        headers = {"x-nexuskv-decision-id": view["decision_id"]}
        made[label] = {"prefetch": stored_id(fleet, httpx.Response(200, headers=headers))}
        story.target.delete(f"copy-{number}")
    assert_as_decided(fleet, made)


def test_what_cannot_be_made_again_says_why(fleet: Fleet, story: Story) -> None:
    option, sink = story.option(), story.sink()
    first = story.materialize(option, sink)
    replayed = stored_id(fleet, story.materialize(option, sink))
    stored_id(fleet, first)
    refused = stored_id(
        fleet, story.estimate(hit=story.hit() | {"validation": {"source_handle": "x"}})
    )
    for decision_id, says in ((replayed, "a stored answer"), (refused, "before anything")):
        answer = fleet.client.get(f"/v1/decisions/{decision_id}/rerun")
        assert (answer.status_code, answer.json()["code"]) == (409, "not_rerunnable")
        assert says in answer.json()["detail"]
    unknown = fleet.client.get(f"/v1/decisions/{refused}/rerun", params={"policy": 10_000})
    assert (unknown.status_code, unknown.json()["code"]) == (404, "not_found")


def test_a_longer_payload_in_the_place_of_a_charged_one(fleet: Fleet, operator: Operator) -> None:
    """Only what is longer is asked for, and that is refused: now, and when it is judged again."""
    operator.switch(variant("default", quota_admission_policy=LIMITED))
    short = fleet.story(new_tenant_name()).ready()
    long = fleet.story(short.tenant, payload_bytes=9_000, payload_id="longer")
    long.upload()
    long.register(entry_id="state-2", tokens=list(range(16)))
    ids = []
    for number, entry in enumerate(("state-1", "state-2")):
        body = {
            "transfer_id": f"to-one-{number}", "action": "prefetch", "tenant": short.tenant,
            "entry_id": entry, "target_worker": "node-b", "payload_id": "same",
        }  # fmt: skip
        view = fleet.client.post("/v1/transfers", json=body).raise_for_status().json()
        headers = {"x-nexuskv-decision-id": view["decision_id"]}
        ids.append(stored_id(fleet, httpx.Response(200, headers=headers)))
    done, refused = (again(fleet, one) for one in ids)
    assert (done["same"], done["recorded"]["action"]) == (True, "transfer")
    assert (refused["same"], refused["recorded"]["action"]) == (True, "skip")
    assert refused["again"]["reason"] == "engine_policy"
    short.target.delete("same")


def test_an_option_that_another_import_used_was_never_planned_again(
    fleet: Fleet, story: Story
) -> None:
    option = story.option()
    assert story.materialize(option, story.sink()).status_code == 200
    other = story.materialize(option, story.sink(), import_id="import-2")
    assert error_code(other) == (409, "materialization_option_consumed")
    answer = fleet.client.get(f"/v1/decisions/{stored_id(fleet, other)}/rerun")
    assert (answer.status_code, answer.json()["code"]) == (409, "not_rerunnable")


def test_who_may_ask_and_how(fleet: Fleet, story: Story) -> None:
    path = f"/v1/decisions/{stored_id(fleet, story.lookup())}/rerun"
    for query in ({"policy_version": "1"}, {"policy": "0"}, {"policy": "one"}):
        assert fleet.client.get(path, params=query).status_code == 400
    reader = {"authorization": f"Bearer {story.key(Scope.DECISIONS_READ)}"}
    assert fleet.client.get(path, headers=reader).status_code == 200
    # Another version is for who may read policies.
    assert fleet.client.get(path, headers=reader, params={"policy": 1}).status_code == 403
    stranger = fleet.service.key(Scope.DECISIONS_READ, tenants=("nobody",))
    answer = fleet.client.get(path, headers={"authorization": f"Bearer {stranger}"})
    assert answer.status_code == 404


def test_every_backend_that_was_offered_is_a_candidate(fleet: Fleet, story: Story) -> None:
    decision_id = stored_id(fleet, story.materialize(story.option(), story.sink()))
    listed = fleet.client.get(f"/v1/decisions/{decision_id}").json()["candidates"]
    assert [(one["name"], one["lost"]) for one in listed] == [
        ("node-b/baseline_transport", None),
        ("node-b/staged_copy", "lower_priority"),
        ("recompute", "dearer"),
    ]


def test_a_decision_under_a_policy_file_that_was_replaced(
    test_server: TestServer, tmp_path: Path
) -> None:
    """What a process was started with is kept: the next one may have another file."""
    name, url = test_server.clone()
    running = _started(url, tmp_path, "default")
    with running.client() as client:
        answer = client.post("/locus/v1/lookup", json=lookup_body("acme"))
        decisions_of(client, 1, tenant="acme")
    assert running.stop() == 0
    running = _started(url, tmp_path, "latency-first")
    with running.client() as client:
        other = client.post("/locus/v1/lookup", json=lookup_body("acme"))
        decisions_of(client, 2, tenant="acme")
        now = client.get(f"/v1/decisions/{other.headers['x-nexuskv-decision-id']}").json()
        decision_id = answer.headers["x-nexuskv-decision-id"]
        found = client.get(f"/v1/decisions/{decision_id}/rerun").raise_for_status().json()
    assert running.stop() == 0
    drop_or_fail(test_server, name)
    assert found["same"]
    assert found["policy_version"].startswith("file:sha256:")
    assert found["policy_version"] == found["recorded_policy_version"] != now["policy_version"]


def _started(url: str, directory: Path, policy: str) -> ServiceProcess:
    running = ServiceProcess(url, directory)
    file = Path(__file__).resolve().parents[2] / "policies" / f"{policy}.yaml"
    running.options = ("--policy", str(file))
    return running.start()
