"""What a plan may not be asked for: an error that says where, and nothing absurd in an answer."""

import json
from collections.abc import Iterator
from typing import Any

import pytest

from tests.engines.rig import BLOCK
from tests.fixtures.service import ServiceProcess
from tests.plans.fleet import EVIDENCE, PROMPT, PlanFleet, reasons, stored
from tests.profiles.documents import document as profile

QUERY = {"tenant": "t", "model": "m", "tokens": [1, 2, 3]}
TARGET = {"engine_id": "e"}
GOOD = {"query": QUERY, "targets": [TARGET]}
MATCH = {"tenant": "t", "model": "m", "query_tokens": 3}
CANDIDATE = {"instance_id": "a", "epoch": 1, "tiers": {"gpu": {"only": 1, "cumulative": 1}}}
HUGE = 10**40


def previous(**changes: Any) -> dict[str, Any]:
    return {"match": MATCH | changes, "targets": [TARGET]}


def aimed(**changes: Any) -> dict[str, Any]:
    return GOOD | {"targets": [TARGET | changes]}


def asking(**changes: Any) -> dict[str, Any]:
    return GOOD | {"query": QUERY | changes}


FAULTS: dict[str, tuple[Any, str, list[str]]] = {
    "no body": ({}, "missing_field", ["/targets"]),
    "a list": ([], "invalid_body", [""]),
    "null": (None, "invalid_body", [""]),
    "nothing asked": ({"targets": [TARGET]}, "invalid_field", [""]),
    "both": (GOOD | previous(), "invalid_field", [""]),
    "no target": (GOOD | {"targets": []}, "invalid_field", ["/targets"]),
    "targets of nothing": (GOOD | {"targets": None}, "invalid_field", ["/targets"]),
    "65 targets": (
        GOOD | {"targets": [{"engine_id": f"e{n}"} for n in range(65)]},
        "invalid_field", ["/targets"],
    ),
    "a target twice": (GOOD | {"targets": [TARGET, TARGET]}, "invalid_field", ["/targets"]),
    "an empty prompt": (asking(tokens=[]), "invalid_field", ["/query"]),
    "no prompt": ({"targets": [TARGET], "query": {"tenant": "t", "model": "m"}},
                  "invalid_field", ["/query"]),
    "hashes": ({"targets": [TARGET], "query": {"tenant": "t", "model": "m", "hashes": [1]}},
               "invalid_field", ["/query/hashes"]),
    "tokens that are none": (asking(tokens=[1, -1]), "invalid_field", ["/query/tokens"]),
    "no tenant": (asking(tenant=""), "invalid_field", ["/query/tenant"]),
    "a negative load": (aimed(queue_depth=-1), "invalid_field", ["/targets/0/queue_depth"]),
    "an absurd queue": (aimed(queue_depth=10**6 + 1), "invalid_field", ["/targets/0/queue_depth"]),
    "an absurd load": (aimed(running_prefill_tokens=HUGE), "invalid_field",
                       ["/targets/0/running_prefill_tokens"]),
    "half a token": (aimed(running_decode_tokens=0.5), "invalid_field",
                     ["/targets/0/running_decode_tokens"]),
    "a load in words": (aimed(free_blocks="12"), "invalid_field", ["/targets/0/free_blocks"]),
    "a load that is true": (aimed(free_blocks=True), "invalid_field", ["/targets/0/free_blocks"]),
    "blocks of nothing": (aimed(block_tokens=0), "invalid_field", ["/targets/0/block_tokens"]),
    "generation 0": (aimed(generation=0), "invalid_field", ["/targets/0/generation"]),
    "generation 2^63": (aimed(generation=2**63), "invalid_field", ["/targets/0/generation"]),
    "an unknown field": (aimed(hue=1), "unknown_field", ["/targets/0/hue"]),
    "unknown at the top": (GOOD | {"hue": 1}, "unknown_field", ["/hue"]),
    "NUL in a name": (aimed(engine_id="a\0"), "invalid_field", ["/targets/0/engine_id"]),
    "a new line in a name": (aimed(engine_id="a\n"), "invalid_field", ["/targets/0/engine_id"]),
    "NUL in a node": (aimed(residency="a\0b"), "invalid_field", ["/targets/0/residency"]),
    "a path for a node": (aimed(residency="../a"), "invalid_field", ["/targets/0/residency"]),
    "NUL in hardware": (aimed(hardware="\0"), "invalid_field", ["/targets/0/hardware"]),
    "a class of no device": (aimed(device_class="abacus"), "invalid_field",
                             ["/targets/0/device_class"]),
    "a rank too many": (aimed(dp_rank=65_536), "invalid_field", ["/targets/0/dp_rank"]),
    "a deadline that was": (GOOD | {"deadline_us": 0}, "invalid_field", ["/deadline_us"]),
    "a deadline before": (GOOD | {"deadline_us": -5}, "invalid_field", ["/deadline_us"]),
    "a deadline in years": (GOOD | {"deadline_us": HUGE}, "invalid_field", ["/deadline_us"]),
    "an objective after it": (GOOD | {"deadline_us": 5, "slo_ttft_us": 6}, "invalid_field",
                              ["/slo_ttft_us"]),
    "evidence of nothing": (GOOD | {"evidence": {}}, "invalid_field", ["/evidence"]),
    "evidence in words": (GOOD | {"evidence": "yes"}, "invalid_field", ["/evidence"]),
    "policy 0": (GOOD | {"policy": 0}, "invalid_field", ["/policy"]),
    "some explanation": (GOOD | {"explain": "some"}, "invalid_field", ["/explain"]),
    "a match of nothing": (previous(query_tokens=0), "invalid_field", ["/match/query_tokens"]),
    "a match of all": (previous(query_tokens=HUGE), "invalid_field", ["/match/query_tokens"]),
    "1,001 candidates": (previous(candidates=[CANDIDATE] * 1_001), "invalid_field",
                         ["/match/candidates"]),
    "65 states": (
        previous(states=[{"entry_id": "s", "generation": 1, "matched_tokens": 1}] * 65),
        "invalid_field", ["/match/states"],
    ),
    "tokens below 0": (
        previous(candidates=[CANDIDATE | {"tiers": {"gpu": {"only": -1, "cumulative": 1}}}]),
        "invalid_field", ["/match/candidates/0/tiers/gpu/only"],
    ),
    "tokens beyond all": (
        previous(candidates=[CANDIDATE | {"tiers": {"gpu": {"only": 1, "cumulative": HUGE}}}]),
        "invalid_field", ["/match/candidates/0/tiers/gpu/cumulative"],
    ),
    "no such tier": (
        previous(candidates=[CANDIDATE | {"tiers": {"tape": {"only": 1, "cumulative": 1}}}]),
        "invalid_field", ["/match/candidates/0/tiers/tape/[key]"],
    ),
    "a state of no tokens": (
        previous(states=[{"entry_id": "s", "generation": 1, "matched_tokens": 0}]),
        "invalid_field", ["/match/states/0/matched_tokens"],
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", FAULTS)
def test_what_is_wrong_is_named(fleet: PlanFleet, name: str) -> None:
    body, code, pointers = FAULTS[name]
    headers = {"content-type": "application/json"}
    answer = fleet.client.post("/v1/plans", content=json.dumps(body), headers=headers)
    assert answer.status_code == 400, answer.text
    found = answer.json()
    assert (found["code"], [one["pointer"] for one in found["errors"]]) == (code, pointers)
    assert answer.headers["content-type"] == "application/problem+json"


def raw(text: bytes) -> bytes:
    """A good body with a field more."""
    return json.dumps(GOOD).encode()[:-1] + b"," + text + b"}"


@pytest.mark.parametrize(
    ("body", "codes"),
    [
        (b"", {"invalid_json"}),
        (b"{", {"invalid_json"}),
        (b"\xff", {"invalid_json"}),
        (raw(b'"deadline_us":NaN'), {"invalid_json"}),
        (raw(b'"deadline_us":Infinity'), {"invalid_json"}),
        (raw(b'"deadline_us":-Infinity'), {"invalid_json"}),
        (raw(b'"deadline_us":1e999'), {"invalid_json", "invalid_field"}),
        (raw(b'"deadline_us":' + b"9" * 5_000), {"invalid_json", "invalid_field"}),
        (raw(b'"explain":"\\ud800"'), {"invalid_json"}),
        (raw(b'"match":' + b"[" * 900 + b"]" * 900), {"invalid_field"}),
        (raw(b'"match":' + b"[" * 100_000 + b"]" * 100_000), {"invalid_field", "invalid_json"}),
        (raw(b'"evidence":' + b'{"a":' * 500 + b"1" + b"}" * 500), {"invalid_field"}),
        (raw(b'"hue":' + b"[" * 50_000 + b"]" * 50_000), {"unknown_field", "invalid_json"}),
    ],
    ids=range(13),
)
def test_what_is_no_such_json_is_refused(fleet: PlanFleet, body: bytes, codes: set[str]) -> None:
    headers = {"content-type": "application/json"}
    answer = fleet.client.post("/v1/plans", content=body, headers=headers)
    assert answer.status_code == 400, answer.text
    assert answer.json()["code"] in codes


def test_what_one_plan_may_cost_is_bounded(fleet: PlanFleet) -> None:
    """As of `POST /v1/match`: values in extra keys, and tokens."""
    for changes in ({"extra_keys": [[1] * 300_000]}, {"tokens": [1] * 1_000_001}):
        answer = fleet.ask(fleet.target(fleet.cold), query=changes)
        assert (answer.status_code, answer.json()["code"]) == (413, "query_too_large")


def test_names_with_escapes_are_names(fleet: PlanFleet) -> None:
    node = '<b>"\\\u2028é'
    plan = fleet.plan(fleet.target(fleet.cold, residency=node, hardware="'; --", dp_rank=0))
    assert plan["chosen"]["residency"] == node
    assert stored(fleet.client, plan["decision_id"])["target"] == fleet.cold


def test_a_match_that_says_too_much_is_cut_to_the_prompt(fleet: PlanFleet) -> None:
    """A thousand candidates, of which one is known, with more tokens than the prompt has."""
    most = {"only": 2**40, "cumulative": 2**40}
    tiers = dict.fromkeys(("gpu", "cpu", "disk", "remote", "unknown"), most)
    names = [fleet.warm, *(f"nobody-{n}" for n in range(999))]
    candidates = [{"instance_id": name, "epoch": 1, "tiers": tiers} for name in names]
    match = {"tenant": fleet.tenant, "model": fleet.model, "query_tokens": 4_000}
    body = {"match": match | {"candidates": candidates}, "targets": [fleet.target(fleet.cold)]}
    answer = fleet.client.post("/v1/plans", json=body | {"explain": "full"})
    plan = answer.raise_for_status().json()
    assert plan["chosen"]["source"]["name"] == fleet.warm
    assert plan["chosen"]["source"]["tokens"] == 4_000
    assert plan["chosen"]["moved_bytes"] == 3_999 * 131_072
    # At most 256 sources, those that may be used first.
    assert reasons(plan) == {"slower": 2, "gain_uncertain": 2, "unknown_generation": 252}
    assert any(one["note"] == "4744 others left off" for one in plan["notes"])


def test_a_full_answer_has_a_limit(fleet: PlanFleet) -> None:
    candidates = [CANDIDATE | {"instance_id": f"n{n}"} for n in range(256)]
    match = {"tenant": fleet.tenant, "model": fleet.model, "query_tokens": 4_000}
    targets = [fleet.target(f"e{n}") for n in range(64)]
    body = {"match": match | {"candidates": candidates}, "targets": targets, "explain": "full"}
    plan = fleet.client.post("/v1/plans", json=body).raise_for_status().json()
    assert len(plan["considered"]) == 1_024
    assert plan["considered_left_off"] == 64 * 257 - 1_024
    assert sum(reasons(plan).values()) == 64 * 257 - 1


@pytest.fixture
def own(module_service: ServiceProcess) -> Iterator[PlanFleet]:
    """On a service that may have profiles of its own."""
    made = PlanFleet(module_service)
    yield made
    made.client.close()


@pytest.mark.parametrize(
    ("changes", "pointer"),
    [
        ({"bytes_per_us": 0}, "/paths/0/bytes_per_us"),
        ({"bytes_per_us": -1}, "/paths/0/bytes_per_us"),
        ({"bytes_per_us": 1e16}, "/paths/0/bytes_per_us"),
        ({"latency_us": -1}, "/paths/0/latency_us"),
        ({"uncertainty": 11}, "/paths/0/uncertainty"),
    ],
)
def test_a_profile_without_or_with_endless_bandwidth_is_refused(
    own: PlanFleet, changes: dict[str, Any], pointer: str
) -> None:
    path = profile()["paths"][0] | changes
    answer = own.client.post("/v1/profiles", json=profile(paths=[path]))
    assert answer.status_code == 400
    assert [one["pointer"] for one in answer.json()["errors"]] == [pointer]
    content = json.dumps(profile(paths=[path | {"bytes_per_us": float("inf")}]))
    headers = {"content-type": "application/json"}
    infinite = own.client.post("/v1/profiles", content=content, headers=headers)
    assert infinite.status_code == 400


def test_the_longest_costs_there_are_have_an_end(own: PlanFleet) -> None:
    """The slowest profile that is accepted, the longest queue, and the answer's dates are dates."""
    most = 1e15
    prefill = {"schedule_us": most, "per_token_us": most, "per_pair_us": most, "uncertainty": 10}
    path = {"tier": "device", "latency_us": most, "bytes_per_us": 5e-324, "uncertainty": 10}
    document = profile(
        model=own.model, prefill=prefill, paths=[path], restore_us=most, lookup_us=most,
        sync_us=most, default_bytes_per_token=most, decode_slowdown=10, queued_tokens=most,
    )  # fmt: skip
    own.client.post("/v1/profiles", json=document).raise_for_status()
    loads = {
        "queue_depth": 10**6, "running_prefill_tokens": 2**40, "running_decode_tokens": 2**40,
        "free_blocks": 2**40,
    }  # fmt: skip
    for target in ({"engine_id": own.cold, **loads}, {"engine_id": own.cold}):
        plan = own.plan(target, explain="full", evidence=EVIDENCE)
        for way in (plan["chosen"], plan["fallback"], *plan["alternatives"]):
            assert 0 <= way["total_us"] <= 10**15
            assert abs(way["gain_us"]) <= 10**15
            assert all(0 <= term["value_us"] <= 10**15 for term in way["terms"])
            assert all(0 <= term["uncertainty_us"] <= 10**15 for term in way["terms"])
        assert plan["ready_by"] > plan["made_at"]
        found = stored(own.client, plan["decision_id"])
        assert found["predicted_us"] == plan["chosen"]["total_us"]
        again = own.client.get(f"/v1/plans/{plan['decision_id']}").raise_for_status().json()
        assert again["chosen"] == plan["chosen"]


def test_a_profile_with_escapes_is_recorded_with_the_plan(own: PlanFleet) -> None:
    """Whatever a profile is accepted with, the record of a plan by it can be stored."""
    source = 'a "test"\\ \u2028 é'
    own.client.post("/v1/profiles", json=profile(model=own.model, source=source)).raise_for_status()
    for text in ("a\0b", "\0"):
        document = profile(model=own.model, source=text, hardware=text)
        assert own.client.post("/v1/profiles", json=document).status_code == 400
    plan = own.plan(own.target(own.cold))
    assert stored(own.client, plan["decision_id"])["kind"] == "plan"
    assert len(PROMPT) % BLOCK == 0
