"""Lookups answered by what an engine's events say, under what was registered with the engine."""

from itertools import count
from typing import Any

import pytest

from tests.engines.wires import packed, removed, stored
from tests.fixtures.service import decisions_of
from tests.fixtures.wire import (
    MODEL_IDENTITY,
    TOKENS,
    error_code,
    estimated,
    lookup,
    matched,
    new_tenant,
    registration,
)

BLOCK = 4
PARTIAL = ["full", "partial", "fallback_recompute"]
_numbers = count(1)


def state(tenant: str, **changes: Any) -> dict[str, Any]:
    options = {"tokens": [], "granularity": "block", "block_tokens": BLOCK, "capabilities": PARTIAL}
    return registration(tenant, **options | changes)


def engine(tenant: str, **changes: Any) -> dict[str, Any]:
    return {
        "instance_id": f"backing-{next(_numbers)}",
        "model": "served-as",
        "block_tokens": BLOCK,
        "tenants": [tenant],
        "states": [state(tenant)],
    } | changes


def push(client, body: dict[str, Any], sequence: int, *events: Any, **params: Any):
    answer = client.post(
        f"/v1/engines/{body['instance_id']}/events",
        params={"sequence": sequence} | params,
        content=packed(*events),
        headers={"content-type": "application/octet-stream"},
    )
    assert answer.status_code == 200, answer.text


def blocks(count_of_them: int, **changes: Any) -> dict[str, Any]:
    names = [100 + number for number in range(count_of_them)]
    return stored(names, block_size=BLOCK, token_ids=TOKENS[: BLOCK * count_of_them], **changes)


@pytest.fixture
def client(service):
    with service.client() as opened:
        yield opened


def test_blocks_of_events_are_a_hit_with_what_was_registered(client):
    tenant = new_tenant()
    body = engine(tenant)
    assert client.post("/v1/engines", json=body).status_code == 201
    push(client, body, 0, blocks(3))
    result = matched(client, tenant)
    assert result["classification"] == "prefix"
    assert result["matched_extent"] == {"units": 12, "granularity": "block"}
    assert result["entry"]["identity"]["key"]["tokens"] == TOKENS[:12]
    assert result["entry"]["descriptor"] == body["states"][0]["entry"]["descriptor"]
    assert estimated(client, tenant)["option_handle"]
    push(client, body, 1, removed([102]))
    assert matched(client, tenant)["matched_extent"]["units"] == 8
    push(client, body, 2, removed([101, 100]))
    assert matched(client, tenant) is None
    assert decisions_of(client, 4, tenant=tenant, kind="lookup")[0]["outcome"] == "miss"


def test_nothing_is_a_miss_while_the_engine_may_hold_it(client):
    tenant = new_tenant()
    body = engine(tenant)
    client.post("/v1/engines", json=body)
    assert matched(client, tenant) is None
    push(client, body, 0, blocks(3))
    assert matched(client, tenant)["matched_extent"]["units"] == 12
    push(client, body, 5, lost=True)
    assert matched(client, tenant) is None
    found = [one["outcome"] for one in decisions_of(client, 3, tenant=tenant, kind="lookup")]
    assert found == ["unknown", "hit", "unknown"]


def test_the_longest_answers_whether_registered_or_told(client):
    tenant = new_tenant()
    body = engine(tenant)
    client.post("/v1/engines", json=body)
    push(client, body, 0, blocks(2))
    answer = client.post("/v1/states", json={"entries": [registration(tenant, "registered")]})
    assert answer.status_code == 201, answer.text
    assert matched(client, tenant)["entry"]["identity"]["entry_id"] == "registered"
    longer = [*TOKENS[:20], *range(5_000, 5_040)]
    push(client, body, 1, stored([200, 201, 202, 203, 204, 205, 206], block_size=BLOCK,
                                 token_ids=longer[:28]))  # fmt: skip
    assert matched(client, tenant, tokens=longer)["matched_extent"]["units"] == 28


def test_other_evidence_and_other_tenants_are_no_hit(client):
    tenant, other = new_tenant(), new_tenant()
    body = engine(tenant)
    client.post("/v1/engines", json=body)
    push(client, body, 0, blocks(3))
    assert matched(client, other) is None
    refused = lookup(client, tenant, model_identity=MODEL_IDENTITY | {"model_revision": "rev-2"})
    assert error_code(refused) == (409, "validation_evidence_mismatch")


def test_a_forgotten_engine_takes_its_states_with_it(client):
    tenant = new_tenant()
    body = engine(tenant)
    client.post("/v1/engines", json=body)
    push(client, body, 0, blocks(3))
    assert client.delete(f"/v1/engines/{body['instance_id']}").status_code == 204
    assert matched(client, tenant) is None
    assert client.get("/v1/states", params={"tenant": tenant}).json()["items"] == []


def test_states_that_do_not_fit_are_refused_with_where_and_why(client):
    tenant = new_tenant()
    wrong = [
        state(tenant, tokens=[1]),
        state("somebody-else"),
        state(tenant, semantic_type="kda_checkpoint"),
        state(tenant, granularity="block", block_tokens=3),
        state(tenant, capabilities=["full"]),
    ]
    answer = client.post("/v1/engines", json=engine(tenant, states=wrong))
    assert answer.status_code == 400, answer.text
    pointers = {finding["pointer"].split("/entry")[0] for finding in answer.json()["errors"]}
    assert pointers == {f"/states/{number}" for number in range(5)}
