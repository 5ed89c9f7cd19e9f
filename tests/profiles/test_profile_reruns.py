"""Estimates and materializes are priced by stored profiles, and judged again by the same."""

from typing import Any
from uuid import uuid4

import httpx
import pytest

from tests.fixtures.service import ServiceProcess, decisions_of
from tests.fixtures.wire import (
    TOKENS,
    estimate_body,
    materialize_body,
    new_tenant,
    register,
    registration,
    source_handle,
)
from tests.profiles.documents import document

# 4 layers of 8 heads of 64 in 16 bits, 40 tokens.
BYTES = 4 * 8 * 64 * 2 * len(TOKENS)
SLOW = {"tier": "host_dram", "latency_us": 7.5, "bytes_per_us": 1_000, "uncertainty": 0.1}


@pytest.fixture
def client(module_service: ServiceProcess):
    with module_service.client() as client:
        yield client


def push(client: httpx.Client, model: str, per_token_us: float, **changes: Any) -> None:
    profile = document(per_token_us, model=model, lookup_us=3, **changes)
    client.post("/v1/profiles", json=profile).raise_for_status()


def estimated(client: httpx.Client, tenant: str, model: str, **changes: Any) -> dict[str, Any]:
    handle = source_handle(client, tenant, model=model)
    answer = client.post("/locus/v1/estimate", json=estimate_body(handle, **changes))
    found: dict[str, Any] = answer.raise_for_status().json()
    return found


def rerun(client: httpx.Client, decision: dict[str, Any]) -> dict[str, Any]:
    path = f"/v1/decisions/{decision['decision_id']}"
    found: dict[str, Any] = client.get(f"{path}/rerun").raise_for_status().json()
    return found | {"candidates": client.get(path).raise_for_status().json()["candidates"]}


def prices(found: dict[str, Any]) -> dict[str, int]:
    """By the names of candidates what each would cost."""
    return {one["name"]: one["predicted_us"] for one in found["candidates"]}


def test_a_decision_under_a_profile_that_was_replaced(client: httpx.Client) -> None:
    tenant, model = new_tenant(), f"m-{uuid4()}"
    register(client, registration(tenant, model=model))
    push(client, model, 25, paths=[SLOW])
    option = estimated(client, tenant, model)
    client.post("/locus/v1/materialize", json=materialize_body(option)).raise_for_status()
    decisions = decisions_of(client, 3, tenant=tenant)
    made = [one for one in decisions if one["kind"] in {"estimate", "materialize"}]
    assert len(made) == 2
    before = [rerun(client, one) for one in made]
    expected_us = 3 + 50 + -(-(BYTES + 7_500) // 1_000)
    for found in before:
        assert found["same"], found
        priced = prices(found)
        # 100 us to schedule, 25 us a token, 0.001 us for each pair of tokens, rounded up.
        assert priced.pop("recompute") == 100 + 25 * len(TOKENS) + 1
        assert set(priced.values()) == {expected_us}
    push(client, model, 9, paths=[SLOW | {"bytes_per_us": 500}])
    assert [rerun(client, one) for one in made] == before
    # What is asked now is priced by what is in force now.
    estimated(client, tenant, model)
    newest = decisions_of(client, 2, tenant=tenant, kind="estimate")[0]
    priced = prices(rerun(client, newest))
    assert priced.pop("recompute") == 100 + 9 * len(TOKENS) + 1
    assert set(priced.values()) == {3 + 50 + -(-(2 * BYTES + 7_500) // 1_000)}


def test_a_decision_over_a_link_that_was_replaced(client: httpx.Client) -> None:
    tenant, model = new_tenant(), f"m-{uuid4()}"
    register(client, registration(tenant, model=model))
    push(client, model, 25, paths=[])

    def link(bytes_per_us: int) -> None:
        topology = {
            "schema_version": "nexuskv.topology.v1",
            "nodes": [{"name": "node-a"}, {"name": "node-b"}],
            "links": [{
                "source": "node-a", "target": "node-b", "latency_us": 11,
                "bandwidth_bytes_per_us": bytes_per_us,
            }],
        }  # fmt: skip
        client.put("/v1/topology", json=topology).raise_for_status()

    link(500)
    estimated(client, tenant, model, target_residency="node-b")
    (made,) = (one for one in decisions_of(client, 2, tenant=tenant) if one["kind"] == "estimate")
    before = rerun(client, made)
    assert before["same"]
    priced = prices(before)
    del priced["recompute"]
    assert set(priced.values()) == {3 + 50 + 11 + -(-BYTES // 500)}
    link(5)
    assert rerun(client, made) == before
