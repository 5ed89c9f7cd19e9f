"""Each reason why an alternative is not taken, as a caller comes to see it."""

from collections.abc import Callable, Iterator
from typing import Any

import httpx
import pytest

from app.planner.question import PlanExclusion
from tests.engines.rig import prompt, told
from tests.fixtures.service import ServiceProcess
from tests.plans.fleet import PROMPT, PlanFleet, reasons
from tests.policies.documents import document
from tests.profiles.documents import document as profile

Reasons = dict[str, int]


@pytest.fixture
def fleet(module_service: ServiceProcess) -> Iterator[PlanFleet]:
    """On a service whose topology, policies and profiles nobody else relies on."""
    made = PlanFleet(module_service)
    yield made
    made.client.close()


def policy(client: httpx.Client, **changes: Any) -> int:
    """The number of a stored policy, to be tried."""
    whole = document(schema_version="nexuskv.execution_policy.v2", **changes)
    answer = client.post("/v1/policies", json=whole)
    number: int = answer.raise_for_status().json()["number"]
    return number


def previous(fleet: PlanFleet, **changed: Any) -> Reasons:
    """Of a match that was answered before, for the idle engine, with candidates changed."""
    query = {"tenant": fleet.tenant, "model": fleet.model, "tokens": PROMPT}
    found = fleet.client.post("/v1/match", json={"queries": [query]}).json()["results"][0]
    match = {
        "tenant": fleet.tenant, "model": fleet.model, "query_tokens": len(PROMPT),
        "candidates": [one | changed for one in found["candidates"]],
    }  # fmt: skip
    body = {"match": match, "targets": [fleet.target(fleet.cold)]}
    return reasons(fleet.client.post("/v1/plans", json=body).raise_for_status().json())


def incompatible(fleet: PlanFleet) -> Reasons:
    return reasons(fleet.plan(fleet.target(fleet.cold, parallel_layout="tp8")))


def unavailable(fleet: PlanFleet) -> Reasons:
    return previous(fleet, state="stale")


def policy_denied(fleet: PlanFleet) -> Reasons:
    number = policy(fleet.client, allowed_source_tiers=["host_dram"])
    return reasons(fleet.plan(fleet.target(fleet.cold), policy=number))


def unknown_generation(fleet: PlanFleet) -> Reasons:
    return previous(fleet, epoch=99)


def quota(fleet: PlanFleet) -> Reasons:
    limits = {"mode": "enforced", "max_payload_bytes": 1_000, "max_entries": 0}
    number = policy(fleet.client, quota_admission_policy=limits)
    return reasons(fleet.plan(fleet.target(fleet.cold), policy=number))


def not_longer(fleet: PlanFleet) -> Reasons:
    return reasons(fleet.plan(fleet.target(fleet.warm)))


def no_path(fleet: PlanFleet) -> Reasons:
    document = profile(model=fleet.model)
    fleet.client.post("/v1/profiles", json=document).raise_for_status()
    return reasons(fleet.plan(fleet.target(fleet.cold)))


def link_busy(fleet: PlanFleet) -> Reasons:
    """The first one to plan has the link, and keeps it for the seconds that its blocks take."""
    link = {
        "source": "here", "target": "there", "bandwidth_bytes_per_us": 50, "latency_us": 0,
        "max_in_flight": 1,
    }  # fmt: skip
    topology = {
        "schema_version": "nexuskv.topology.v1",
        "nodes": [{"name": "here"}, {"name": "there"}],
        "engines": [
            {"engine_id": fleet.warm, "node": "here"}, {"engine_id": fleet.cold, "node": "there"}
        ],
        "links": [link],
    }  # fmt: skip
    fleet.client.put("/v1/topology", json=topology).raise_for_status()
    slow = profile(100_000, model=fleet.model, paths=[])
    fleet.client.post("/v1/profiles", json=slow).raise_for_status()
    first = fleet.plan(fleet.target(fleet.cold))
    assert (first["action"], reasons(first)) == ("transfer", {"slower": 1})
    return reasons(fleet.plan(fleet.target(fleet.cold)))


def no_capacity(fleet: PlanFleet) -> Reasons:
    return reasons(fleet.plan(fleet.target(fleet.cold, free_blocks=0)))


def overloaded(fleet: PlanFleet) -> Reasons:
    number = policy(fleet.client, cost_bounds={"max_queue_us": 1_000})
    busy = fleet.target(fleet.warm, queue_depth=1, running_prefill_tokens=500)
    found = fleet.plan(busy, fleet.target(fleet.cold), policy=number)
    assert found["chosen"]["engine_id"] == fleet.cold
    return reasons(found)


def deadline(fleet: PlanFleet) -> Reasons:
    return reasons(fleet.plan(fleet.target(fleet.cold), deadline_us=1))


def gain_uncertain(fleet: PlanFleet) -> Reasons:
    number = policy(fleet.client, cost_bounds={"deviations": 9})
    return reasons(fleet.plan(fleet.target(fleet.cold), policy=number))


def slower(fleet: PlanFleet) -> Reasons:
    return reasons(fleet.plan(fleet.target(fleet.cold)))


SCENARIOS: dict[PlanExclusion, tuple[Callable[[PlanFleet], Reasons], Reasons]] = {
    PlanExclusion.INCOMPATIBLE: (incompatible, {"incompatible": 1}),
    PlanExclusion.UNAVAILABLE: (unavailable, {"unavailable": 1}),
    PlanExclusion.POLICY_DENIED: (policy_denied, {"policy_denied": 1}),
    PlanExclusion.UNKNOWN_GENERATION: (unknown_generation, {"unknown_generation": 1}),
    PlanExclusion.QUOTA: (quota, {"quota": 1}),
    PlanExclusion.NOT_LONGER: (not_longer, {"not_longer": 1}),
    PlanExclusion.NO_PATH: (no_path, {"no_path": 1}),
    PlanExclusion.LINK_BUSY: (link_busy, {"link_busy": 1}),
    PlanExclusion.NO_CAPACITY: (no_capacity, {"no_capacity": 1}),
    PlanExclusion.OVERLOADED: (overloaded, {"overloaded": 1, "not_longer": 1, "slower": 1}),
    PlanExclusion.DEADLINE: (deadline, {"deadline": 1}),
    PlanExclusion.GAIN_UNCERTAIN: (gain_uncertain, {"gain_uncertain": 1}),
    PlanExclusion.SLOWER: (slower, {"slower": 1}),
}


def test_each_reason_has_a_scenario() -> None:
    assert set(SCENARIOS) == set(PlanExclusion)


@pytest.mark.parametrize("reason", SCENARIOS, ids=str)
def test_what_is_not_taken_is_counted_by_its_reason(
    fleet: PlanFleet, reason: PlanExclusion
) -> None:
    scenario, expected = SCENARIOS[reason]
    assert scenario(fleet) == expected


def test_a_target_that_is_over_is_no_target(fleet: PlanFleet) -> None:
    """It began anew, and what is asked is of the process before."""
    fleet.tell(fleet.cold, told(prompt(2, seed=8)), sequence=0)
    answer = fleet.ask(fleet.target(fleet.cold, generation=1))
    assert (answer.status_code, answer.json()["code"]) == (409, "no_usable_target")
    assert f"{fleet.cold}: it is generation 2 now" in answer.json()["detail"]
    assert answer.json()["retryable"] is False
    both = fleet.plan(fleet.target(fleet.cold, generation=1), fleet.target(fleet.warm))
    assert both["chosen"]["engine_id"] == fleet.warm
    # Computing there, and bringing there what the other one has.
    assert reasons(both)["unknown_generation"] == 2
    # One that was not heard of yet has nothing that is known.
    ahead = fleet.plan(fleet.target(fleet.warm, generation=7))
    assert ahead["chosen"]["reused_tokens"] == 0
    assert "not heard of" in ahead["notes"][0]["note"]


@pytest.mark.parametrize(
    ("registered", "asked"),
    [({"model": "another"}, {}), ({"revision": "r2"}, {"revision": ""}),
     ({"layout": "tp2"}, {"layout": ""})],
)  # fmt: skip
def test_an_engine_that_runs_something_else_is_no_target(
    fleet: PlanFleet, registered: dict[str, str], asked: dict[str, str]
) -> None:
    """Whatever its caller says that it is."""
    other = f"other-{fleet.tenant}"
    fleet.tell(other, told(prompt(1, seed=6)), **registered)
    target = fleet.target(other, block_tokens=4, parallel_layout="")
    refused = fleet.ask(target, query=asked)
    assert (refused.status_code, refused.json()["code"]) == (409, "no_usable_target")
    assert "another model, revision or layout" in refused.json()["detail"]
    plan = fleet.plan(target, fleet.target(fleet.cold), query=asked)
    assert plan["chosen"]["engine_id"] == fleet.cold
    assert reasons(plan)["incompatible"] >= 1


def test_of_an_engine_of_others_nothing_is_told(fleet: PlanFleet) -> None:
    other = f"other-{fleet.tenant}"
    fleet.tell(other, told(prompt(1, seed=6)), tenants=["somebody-else"])
    topology = {
        "schema_version": "nexuskv.topology.v1", "nodes": [{"name": "secret"}], "links": [],
        "engines": [{"engine_id": other, "node": "secret", "hardware": "hidden"}],
    }  # fmt: skip
    fleet.client.put("/v1/topology", json=topology).raise_for_status()
    theirs = fleet.ask(fleet.target(other))
    nobodys = fleet.ask(fleet.target("nobodys"))
    assert theirs.status_code == nobodys.status_code == 200
    assert theirs.json()["chosen"]["residency"] == other
    assert "secret" not in theirs.text
    assert "hidden" not in theirs.text
    assert theirs.json()["notes"][0]["note"] == nobodys.json()["notes"][0]["note"]
