"""`GET` and `DELETE /v1/states/{id}`."""

import json
from uuid import uuid4

import pytest

from app.control.keys import Scope
from tests.fixtures.wire import matched, new_tenant, register, registration
from tests.states.pages import listed, refusal, state_id_of

RANK = {"rank": 1, "size": 4}
EXTENDED = {
    "model_revision": "rev-1",
    "adapter_revision": "",
    "parallel": {"tp": RANK, "pp": {"rank": 0, "size": 1}},
    "layer_scope": "0-15,31",
    "position_convention": "absolute",
}
CHECKPOINT = {"lineage": "chain-1", "step": 2**63 - 1, "parent": "p\u00e9re", "kind": "snapshot"}


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"tokens": [0, 2**32 - 1, 1, 1]},
        {"tokens": list(range(50_000)), "namespace": "a/b \u2603 \\ \"'"},
        {"without_evidence": True},
        {"extra": EXTENDED},
        {"semantic_type": "kda_checkpoint", "extra": {"checkpoint": CHECKPOINT}},
        {"granularity": "block", "block_tokens": 16, "locator": "s3://b/\U0001f600?x=1&y=\\u0000"},
    ],
)
def test_a_state_is_read_back_as_it_was_registered(service, changes):
    tenant = new_tenant()
    entry = registration(tenant, "id/\u00fc?#", **changes)
    with service.client() as client:
        [result] = register(client, entry)
        assert result["status"] == 201, result
        detail = client.get(f"/v1/states/{result['state_id']}").raise_for_status().json()
        [summary] = listed(client, tenant=tenant)
        # What was read registers again as what it is.
        [again] = register(client, detail["registration"])
    assert detail["registration"] == entry
    assert (
        detail["registration"]["entry"]["identity"]["key"]["tokens"]
        == (entry["entry"]["identity"]["key"]["tokens"])
    )
    assert {name: value for name, value in detail.items() if name != "registration"} == summary
    assert again["result"] == "unchanged"


def test_times_and_counts_of_a_state(service):
    tenant = new_tenant()
    with service.client() as client:
        register(client, registration(tenant))
        [first] = listed(client, tenant=tenant)
        register(client, registration(tenant, generation=2, tokens=[1, 2, 3]))
        [second] = listed(client, tenant=tenant)
    assert first["created_at"] == first["updated_at"] == second["created_at"]
    assert second["updated_at"] > second["created_at"]
    assert (first["token_count"], second["token_count"]) == (40, 3)


def test_states_that_are_not_there_for_the_caller_are_all_alike(service):
    tenant = new_tenant()
    with service.client() as client:
        register(client, registration(tenant), registration(tenant, "gone"))
        gone = state_id_of(client, tenant, "gone")
        there = state_id_of(client, tenant)
        assert client.delete(f"/v1/states/{gone}").status_code == 204
        answers = [client.get(f"/v1/states/{name}") for name in (gone, uuid4())]
    with service.client(service.key(Scope.STATES_READ, tenants=(new_tenant(),))) as client:
        answers.append(client.get(f"/v1/states/{there}"))
    assert [refusal(answer) for answer in answers] == [(404, "not_found")] * 3
    assert len({answer.json()["detail"] for answer in answers}) == 1


@pytest.mark.parametrize("name", ["1", "x", "0" * 31, "%00", f"{uuid4()}x"])
def test_an_id_that_is_no_uuid(service, name):
    with service.client() as client:
        for method in ("GET", "DELETE"):
            answer = client.request(method, f"/v1/states/{name}")
            assert refusal(answer) == (400, "invalid_field")
            assert answer.json()["errors"][0]["pointer"] == "/path/state_id"


def test_deletion_is_done_once_and_answered_again(service):
    tenant = new_tenant()
    with service.client() as client:
        register(client, registration(tenant))
        path = f"/v1/states/{state_id_of(client, tenant)}"
        assert matched(client, tenant) is not None
        first = client.delete(path)
        assert (first.status_code, first.content) == (204, b"")
        # Without waiting for anything.
        assert matched(client, tenant) is None
        assert client.delete(path).status_code == 204
        assert refusal(client.get(path)) == (404, "not_found")
        assert listed(client, tenant=tenant) == []
        assert refusal(client.delete(f"/v1/states/{uuid4()}")) == (404, "not_found")


def test_a_tombstone_outranks_its_generation_and_those_before(service):
    tenant = new_tenant()
    with service.client() as client:
        [created] = register(client, registration(tenant, generation=4))
        assert client.delete(f"/v1/states/{created['state_id']}").status_code == 204
        for generation in (4, 3):
            answer = client.post(
                "/v1/states", json={"entries": [registration(tenant, generation=generation)]}
            )
            assert refusal(answer) == (409, "generation_conflict")
            [item] = answer.json()["results"]
            assert (item["generation"], item["state_id"]) == (4, created["state_id"])
            assert "deleted" in item["error"]["detail"]
            assert matched(client, tenant) is None
        [back] = register(client, registration(tenant, generation=5))
        assert (back["status"], back["state_id"]) == (200, created["state_id"])
        assert matched(client, tenant) is not None
        assert [state["generation"] for state in listed(client, tenant=tenant)] == [5]


def test_another_tenants_state_cannot_be_deleted(service):
    tenant = new_tenant()
    with service.client() as client:
        register(client, registration(tenant))
        path = f"/v1/states/{state_id_of(client, tenant)}"
    with service.client(service.key(Scope.STATES_WRITE, tenants=(new_tenant(),))) as client:
        assert refusal(client.delete(path)) == (404, "not_found")
    with service.client() as client:
        assert client.get(path).status_code == 200
        assert matched(client, tenant) is not None


def test_who_may_delete(service):
    tenant = new_tenant()
    with service.client() as client:
        register(client, registration(tenant))
        path = f"/v1/states/{state_id_of(client, tenant)}"
    reader = service.key(Scope.STATES_READ, tenants=(tenant,))
    for key, expected in (("", (401, "unauthorized")), (reader, (403, "forbidden"))):
        with service.client(key) as client:
            assert refusal(client.delete(path)) == expected
    with service.client(service.key(Scope.STATES_WRITE, tenants=(tenant,))) as client:
        assert client.delete(path).status_code == 204


def test_a_registration_with_escapes_in_its_text_is_kept_byte_for_byte(service):
    tenant = new_tenant()
    entry = registration(tenant, "e", fingerprint="\\u0000 \t\r\n \u2028 \x7f \x1f")
    with service.client() as client:
        [result] = register(client, json.loads(json.dumps(entry)))
        detail = client.get(f"/v1/states/{result['state_id']}").json()
    assert detail["registration"] == entry
