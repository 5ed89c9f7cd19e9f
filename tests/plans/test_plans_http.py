"""`POST /v1/plans`: what is chosen, as its caller sees it."""

from datetime import datetime
from typing import Any
from uuid import UUID

import pytest

from app.control.keys import Scope
from tests.engines.rig import prompt, told
from tests.fixtures.service import ServiceProcess
from tests.fixtures.wire import register, registration
from tests.plans.fleet import EVIDENCE, IDLE, PROMPT, SCOPE, PlanFleet, reasons, stored


def test_the_engine_that_has_the_prefix_is_taken_where_both_are_idle(fleet: PlanFleet) -> None:
    plan = fleet.plan(fleet.target(fleet.cold), fleet.target(fleet.warm))
    assert plan["action"] == "route_to_state"
    chosen = plan["chosen"]
    assert (chosen["engine_id"], chosen["source"]) == (fleet.warm, None)
    assert (chosen["reused_tokens"], chosen["computed_tokens"]) == (3_200, 800)
    assert plan["fallback"]["engine_id"] == fleet.warm
    assert plan["margin_us"] > 0
    assert (plan["engines"], plan["late"], plan["explored"]) == ("hit", False, False)
    assert plan["fallback"]["total_us"] == 100 + 5 * 4_000
    # By the reference profile: 100 us to schedule, 5 us a token.
    assert chosen["total_us"] == 100 + 5 * 800


def test_its_blocks_are_brought_where_its_queue_is_long(fleet: PlanFleet) -> None:
    busy = fleet.target(fleet.warm, queue_depth=4, running_prefill_tokens=400_000)
    plan = fleet.plan(fleet.target(fleet.cold), busy)
    assert plan["action"] == "transfer"
    chosen = plan["chosen"]
    assert (chosen["engine_id"], chosen["source"]["name"]) == (fleet.cold, fleet.warm)
    assert (chosen["source"]["tier"], chosen["source"]["kind"]) == ("device", "engine")
    assert chosen["source"]["backend"] is not None
    assert chosen["moved_bytes"] == 3_200 * 131_072
    assert chosen["path"].startswith("device@")
    assert " -> device@" in chosen["path"]
    assert chosen["gain_us"] == pytest.approx(
        plan["fallback"]["total_us"] - chosen["total_us"], abs=1
    )


@pytest.mark.parametrize(
    ("reused", "asked", "action"),
    [(4_000, 4_000, "full_reuse"), (3_200, 4_000, "partial_reuse"), (0, 4_000, "recompute")],
)
def test_on_one_target_it_is_all_a_part_or_nothing(
    fleet: PlanFleet, reused: int, asked: int, action: str
) -> None:
    name = f"one-{reused}-{fleet.tenant}"
    fleet.tell(name, told(PROMPT[:reused] if reused else prompt(1, seed=7)))
    plan = fleet.plan(fleet.target(name, parallel_layout="apart"), query={"tokens": PROMPT[:asked]})
    if action == "full_reuse":
        # With another layout than it is registered with its own blocks count all the same.
        assert plan["chosen"]["computed_tokens"] == 1
    assert plan["action"] == action


def test_the_middle_is_brought_and_the_tail_computed(fleet: PlanFleet) -> None:
    half = f"half-{fleet.tenant}"
    fleet.tell(half, told(PROMPT[:800]))
    plan = fleet.plan(fleet.target(half))
    assert plan["action"] == "split"
    assert plan["chosen"]["moved_bytes"] == 2_400 * 131_072
    assert plan["chosen"]["computed_tokens"] == 800


def test_terms_add_up_and_say_where_they_are_from(fleet: PlanFleet) -> None:
    plan = fleet.plan({"engine_id": fleet.cold})
    for way in (plan["chosen"], plan["fallback"], *plan["alternatives"]):
        assert sum(term["value_us"] for term in way["terms"]) == pytest.approx(
            way["total_us"], abs=len(way["terms"])
        )
    terms = {term["name"]: term for term in plan["chosen"]["terms"]}
    assert set(terms) == {
        "lookup", "queue", "transfer", "restore", "sync", "schedule", "recompute", "interference",
    }  # fmt: skip
    # Nobody says what its load is, nor how many bytes a token has.
    assert terms["queue"]["provenance"] == terms["interference"]["provenance"] == "unknown"
    assert terms["queue"]["uncertainty_us"] > 0
    assert terms["transfer"]["provenance"] == "default"
    known = fleet.plan(fleet.target(fleet.cold))
    assert known["chosen"]["uncertainty_us"] < plan["chosen"]["uncertainty_us"]


def test_times_are_those_of_the_terms(fleet: PlanFleet) -> None:
    queued = fleet.target(fleet.cold, queue_depth=1, running_prefill_tokens=2_000)
    plan = fleet.plan(queued)
    made, start, ready = (
        datetime.fromisoformat(plan[name]) for name in ("made_at", "start_by", "ready_by")
    )
    chosen = plan["chosen"]
    assert round((ready - made).total_seconds() * 1e6) == chosen["total_us"]
    queue_us = next(term["value_us"] for term in chosen["terms"] if term["name"] == "queue")
    assert round((start - made).total_seconds() * 1e6) == queue_us - chosen["transfer_us"]
    # The queue hides all of the transfer.
    assert next(term["value_us"] for term in chosen["terms"] if term["name"] == "transfer") == 0


def test_a_registered_state_is_a_source_with_the_bytes_of_its_descriptor(
    fleet: PlanFleet,
) -> None:
    tokens = prompt(1_000, seed=3)
    entry = registration(
        fleet.tenant, "long-state", model=fleet.model, tokens=tokens,
        capabilities=["full", "partial", "fallback_recompute"],
    )  # fmt: skip
    register(fleet.client, entry)
    query = {"tokens": tokens, "states": SCOPE}
    plan = fleet.plan(fleet.target(fleet.cold), query=query, evidence=EVIDENCE)
    source = plan["chosen"]["source"]
    assert (source["kind"], source["name"], source["tier"]) == ("state", "long-state", "host_dram")
    # All but the last token: 4 layers of 8 heads of 64 in 16 bits.
    assert plan["chosen"]["moved_bytes"] == 3_999 * 4 * 8 * 64 * 2
    assert plan["chosen"]["computed_tokens"] == 1
    # What is not proven to be compatible is computed.
    without = fleet.plan(fleet.target(fleet.cold), query=query)
    assert (without["action"], reasons(without)) == ("recompute", {"incompatible": 1})


def test_an_earlier_match_is_planned_with_and_checked(fleet: PlanFleet) -> None:
    query = {"tenant": fleet.tenant, "model": fleet.model, "tokens": PROMPT}
    answer = fleet.client.post("/v1/match", json={"queries": [query]}).json()["results"][0]
    match = {
        "tenant": fleet.tenant, "model": fleet.model, "query_tokens": len(PROMPT),
        "candidates": answer["candidates"],
    }  # fmt: skip

    def plan(**changes: Any) -> dict[str, Any]:
        body = {"match": match | changes, "targets": [fleet.target(fleet.cold)]}
        found = fleet.client.post("/v1/plans", json=body)
        found.raise_for_status()
        result: dict[str, Any] = found.json()
        return result

    again = plan()
    at_once = fleet.plan(fleet.target(fleet.cold))
    assert again["chosen"] == at_once["chosen"]
    assert again["engines"] == "previous"
    over = [one | {"epoch": one["epoch"] + 1} for one in answer["candidates"]]
    assert reasons(plan(candidates=over)) == {"unknown_generation": len(over)}
    stale = [one | {"state": "stale"} for one in answer["candidates"]]
    assert reasons(plan(candidates=stale)) == {"unavailable": len(stale)}


def test_it_is_recorded_and_can_be_reported_on(fleet: PlanFleet) -> None:
    answer = fleet.ask(fleet.target(fleet.cold), fleet.target(fleet.warm))
    plan = answer.json()
    decision_id = plan["decision_id"]
    assert answer.headers["x-nexuskv-decision-id"] == decision_id
    assert UUID(decision_id).version == 7
    found = stored(fleet.client, decision_id)
    assert (found["kind"], found["outcome"], found["action"]) == ("plan", "planned", "reuse")
    assert (found["query_tokens"], found["matched_tokens"]) == (4_000, 3_200)
    assert found["predicted_us"] == plan["chosen"]["total_us"]
    assert found["target"] == fleet.warm
    report = {"status": "consumed", "observed_us": 3_000, "tokens": 3_200}
    told_back = fleet.client.post(f"/v1/decisions/{decision_id}/outcome", json=report)
    assert told_back.status_code == 200, told_back.text
    assert told_back.json()["outcome"]["gain_us"] == plan["fallback"]["total_us"] - 3_000


def test_explained_later_it_is_the_same_plan(fleet: PlanFleet) -> None:
    plan = fleet.plan(fleet.target(fleet.cold, queue_depth=2), fleet.target(fleet.warm))
    stored(fleet.client, plan["decision_id"])
    # Whatever is known now: the caches, and the loads, are others.
    fleet.tell(fleet.cold, told(PROMPT[:40], 500), sequence=1)
    path = f"/v1/plans/{plan['decision_id']}"
    again = fleet.client.get(path).raise_for_status().json()
    assert {k: v for k, v in again.items() if k != "made_at"} == {
        k: v for k, v in plan.items() if k != "made_at"
    } | {"start_by": again["start_by"], "ready_by": again["ready_by"]}
    full = fleet.client.get(path, params={"explain": "full"}).raise_for_status().json()
    assert full["chosen"] == plan["chosen"]
    considered = full["considered"]
    (taken,) = (one for one in considered if one["lost"] is None)
    assert taken["total_us"] == plan["chosen"]["total_us"]
    assert len(considered) == sum(one["count"] for one in plan["excluded"]) + 1


def test_others_may_not_see_it(fleet: PlanFleet, service: ServiceProcess) -> None:
    plan = fleet.plan(fleet.target(fleet.cold))
    stored(fleet.client, plan["decision_id"])
    with service.client(service.key(Scope.DECISIONS_READ, tenants=("another",))) as other:
        assert other.get(f"/v1/plans/{plan['decision_id']}").status_code == 404
    with service.client(service.key(Scope.BRIDGE, tenants=("another",))) as other:
        body = fleet.body(fleet.target(fleet.cold))
        answer = other.post("/v1/plans", json=body)
        assert (answer.status_code, answer.json()["code"]) == (403, "tenant_forbidden")
    with service.client(service.key(Scope.STATES_READ, tenants=(fleet.tenant,))) as other:
        assert other.post("/v1/plans", json=body).status_code == 403


def test_a_decision_that_is_no_plan_is_not_explained(fleet: PlanFleet) -> None:
    answer = fleet.client.get("/v1/plans/0197a000-0000-7000-8000-000000000000")
    assert (answer.status_code, answer.json()["code"]) == (404, "not_found")


def test_a_plan_of_many_targets_tells_of_sixteen_others(fleet: PlanFleet) -> None:
    targets = [{"engine_id": f"n{number}", **IDLE} for number in range(64)]
    plan = fleet.plan(*targets)
    assert len(plan["alternatives"]) == 16
    assert len(plan["notes"]) == 64
    totals = [one["total_us"] for one in plan["alternatives"]]
    assert totals == sorted(totals)
