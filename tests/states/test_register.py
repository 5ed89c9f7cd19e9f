"""`POST /v1/states`: what each entry of a batch becomes."""

import json

import pytest

from app.control.keys import Scope
from tests.fixtures.wire import TOKENS, matched, new_tenant, register, registration
from tests.states.pages import listed, refusal


def post(client, *entries):
    return client.post("/v1/states", json={"entries": list(entries)})


def unnamed(entry, *fields):
    """The entry without these fields in both its keys."""
    entry = json.loads(json.dumps(entry))
    for key in (entry["reuse_key"]["identity"], entry["entry"]["identity"]["key"]):
        for field in fields:
            del key[field]
    return entry


def test_generations_decide_what_a_registration_becomes(service):
    tenant = new_tenant()
    steps = [
        (registration(tenant, generation=5), 201, "created", 5),
        (registration(tenant, generation=5), 200, "unchanged", 5),
        (registration(tenant, generation=4), 409, "conflict", 5),
        (registration(tenant, generation=5, tier="local_ssd"), 409, "conflict", 5),
        (registration(tenant, generation=5, lineage="other"), 409, "conflict", 5),
        (registration(tenant, generation=9), 200, "superseded", 9),
        (registration(tenant, generation=9), 200, "unchanged", 9),
        (registration(tenant, generation=8), 409, "conflict", 9),
        (registration(tenant, generation=2**32 - 1), 200, "superseded", 2**32 - 1),
    ]
    ids = set()
    with service.client() as client:
        for entry, status, result, generation in steps:
            answer = post(client, entry)
            [item] = answer.json()["results"]
            found = (answer.status_code, item["status"], item["result"], item["generation"])
            assert found == (status, status, result, generation)
            assert (item["index"], item["tenant"], item["entry_id"]) == (0, tenant, "state-1")
            ids.add(item["state_id"])
        assert [state["generation"] for state in listed(client, tenant=tenant)] == [2**32 - 1]
    assert len(ids) == 1


def test_a_conflict_says_what_stands_in_the_way(service):
    tenant = new_tenant()
    with service.client() as client:
        post(client, registration(tenant, generation=3))
        answer = post(client, registration(tenant, generation=2))
    assert refusal(answer) == (409, "generation_conflict")
    error = answer.json()["results"][0]["error"]
    assert error["code"] == "generation_conflict"
    assert "generation 3" in error["detail"]


def test_what_is_registered_is_found_at_once_and_supersession_moves_it(service):
    tenant = new_tenant()
    longer = [*TOKENS, 7, 8]
    with service.client() as client:
        assert matched(client, tenant) is None
        post(client, registration(tenant))
        assert matched(client, tenant)["classification"] == "exact"
        post(client, registration(tenant, generation=2, tokens=longer, model="model-2"))
        assert matched(client, tenant) is None
        found = matched(client, tenant, model="model-2", tokens=longer)
        # A refused registration leaves the stored one where it is.
        assert post(client, registration(tenant, generation=1)).status_code == 409
        assert matched(client, tenant, model="model-2", tokens=longer) is not None
    assert found["entry"]["identity"]["version"]["generation"] == 2


def test_different_entry_ids_share_a_key_and_tenants_share_an_entry_id(service):
    one, two = new_tenant(), new_tenant()
    with service.client() as client:
        answer = post(
            client, registration(one, "a"), registration(one, "b"), registration(two, "a")
        )
        assert answer.status_code == 201
        ids = [item["state_id"] for item in answer.json()["results"]]
        assert len(set(ids)) == 3
        assert {state["entry_id"] for state in listed(client, tenant=one)} == {"a", "b"}
        assert [state["state_id"] for state in listed(client, tenant=two)] == [ids[2]]


def test_a_mixed_batch_has_a_result_for_each_entry(service):
    tenant = new_tenant()
    bad = registration(tenant, "bad")
    del bad["entry"]["location"]["locator"]
    bad["entry"]["policy_hint"]["reusable"] = 1
    newer = registration(tenant, "old")
    newer["entry"]["descriptor"]["schema_version"] = "nexuskv.contract.v9"
    with service.client() as client:
        register(client, registration(tenant, "held", generation=2))
        answer = post(
            client,
            registration(tenant, "new"),
            bad,
            registration(tenant, "held", generation=1),
            "text",
            newer,
            registration(tenant, "held", generation=2),
        )
        stored = {state["entry_id"] for state in listed(client, tenant=tenant)}
    assert answer.status_code == 207
    results = answer.json()["results"]
    assert [item["index"] for item in results] == list(range(6))
    assert [item["status"] for item in results] == [201, 400, 409, 400, 422, 200]
    assert [item["result"] for item in results] == [
        "created", "rejected", "conflict", "rejected", "rejected", "unchanged",
    ]  # fmt: skip
    findings = {(found["pointer"], found["code"]) for found in results[1]["error"]["errors"]}
    assert findings == {
        ("/entry/location/locator", "missing_field"),
        ("/entry/policy_hint/reusable", "invalid_field"),
    }
    assert results[1]["state_id"] is results[1]["tenant"] is None
    assert results[4]["error"]["code"] == "unsupported_nexuskv_schema"
    assert stored == {"new", "held"}


def test_a_thousand_entries_and_not_one_more(service):
    tenant = new_tenant()
    entries = [registration(tenant, f"state-{n}", tokens=[n, 1, 2]) for n in range(1001)]
    with service.client() as client:
        refused = post(client, *entries)
        assert refusal(refused) == (400, "invalid_field")
        assert refused.json()["errors"][0]["pointer"] == "/entries"
        assert listed(client, tenant=tenant) == []
        answer = post(client, *entries[:1000])
        assert answer.status_code == 201
        results = answer.json()["results"]
        assert [item["entry_id"] for item in results] == [f"state-{n}" for n in range(1000)]
        assert len(listed(client, tenant=tenant, page_size=1000)) == 1000
        assert matched(client, tenant, tokens=[999, 1, 2])["entry"]["identity"]["entry_id"] == (
            "state-999"
        )


def test_an_entry_id_twice_in_a_batch_is_applied_in_order(service):
    tenant = new_tenant()
    generations = [2, 1, 3, 3, 2]
    entries = [registration(tenant, generation=number) for number in generations]
    with service.client() as client:
        results = register(client, *entries[:2], registration(tenant, "other"), *entries[2:])
        [stored] = listed(client, tenant=tenant, entry_id="state-1")
        found = matched(client, tenant)
    assert [item["result"] for item in results] == [
        "created", "conflict", "created", "superseded", "unchanged", "conflict",
    ]  # fmt: skip
    assert [item["generation"] for item in results] == [2, 2, 1, 3, 3, 3]
    assert stored["generation"] == found["entry"]["identity"]["version"]["generation"] == 3


def test_another_tenants_entry_is_refused_and_the_rest_is_stored(service):
    mine, theirs = new_tenant(), new_tenant()
    key = service.key(Scope.STATES_WRITE, Scope.STATES_READ, tenants=(mine,))
    with service.client(key) as client:
        answer = post(client, registration(theirs), registration(mine))
        alone = post(client, registration(theirs))
        assert [state["tenant"] for state in listed(client)] == [mine]
    assert answer.status_code == 207
    refused, stored = answer.json()["results"]
    assert (refused["status"], refused["error"]["code"]) == (403, "tenant_forbidden")
    assert (refused["tenant"], refused["state_id"]) == (None, None)
    assert stored["status"] == 201
    assert refusal(alone) == (403, "tenant_forbidden")
    assert [item["status"] for item in alone.json()["results"]] == [403]
    with service.client() as client:
        assert listed(client, tenant=theirs) == []


@pytest.mark.parametrize("missing", [("tenant",), ("namespace",), ("tenant", "namespace")])
def test_what_an_identity_does_not_name_the_policy_completes(service, missing):
    tenant = new_tenant()
    # The default tenant is shared with other tests: the tokens are this one's alone.
    entry_id, tokens = f"completed-{tenant}", [*tenant.encode(), 1]
    entry = unnamed(registration(tenant, entry_id, namespace="space", tokens=tokens), *missing)
    expected = {"tenant": tenant, "namespace": "space"} | dict.fromkeys(missing, "default")
    with service.client() as client:
        [result] = register(client, entry)
        assert (result["status"], result["tenant"]) == (201, expected["tenant"])
        [stored] = listed(client, entry_id=entry_id)
        assert expected == {name: stored[name] for name in expected}
        found = matched(client, tokens=tokens, **expected)
    assert found["entry"]["identity"]["entry_id"] == entry_id


def test_a_key_without_the_default_tenant_may_not_leave_the_tenant_out(service):
    tenant = new_tenant()
    entry = unnamed(registration(tenant), "tenant")
    with service.client(service.key(Scope.STATES_WRITE, tenants=(tenant,))) as client:
        [result] = register(client, entry)
    assert result["error"]["code"] == "tenant_forbidden"


def test_concurrent_registrations_of_overlapping_batches_all_answer(service, own_threads):
    tenant = new_tenant()
    names = [f"state-{n}" for n in range(20)]

    def batch(number):
        order = names if number % 2 else names[::-1]
        with service.client() as client:
            entries = [registration(tenant, name, generation=number) for name in order]
            return [item["result"] for item in register(client, *entries)]

    results = own_threads(batch, range(1, 7))
    with service.client() as client:
        stored = listed(client, tenant=tenant)
    assert {(state["entry_id"], state["generation"]) for state in stored} == {
        (name, 6) for name in names
    }
    created = [result for batch in results for result in batch].count("created")
    assert created == len(names)
