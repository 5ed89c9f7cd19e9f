"""`GET /v1/states`: filters, pages, and whose states a key may see."""

import itertools

import pytest

from app.control.keys import Scope
from tests.fixtures.wire import new_tenant, register, registration
from tests.states.pages import listed, refusal

VARIED = {
    "namespace": ("default", "space"),
    "model": ("model-1", "model-2"),
    "semantic_type": ("mha_kv", "mla_state"),
    "tier": ("host_dram", "local_ssd"),
}


@pytest.fixture(scope="module")
def tenant(service):
    """A tenant with one state of each combination, and as many in another tenant."""
    tenant = new_tenant()
    for owner in (tenant, new_tenant()):
        combinations = [
            dict(zip(VARIED, values, strict=True)) for values in itertools.product(*VARIED.values())
        ]
        entries = [
            registration(owner, f"state-{n}", **changes) for n, changes in enumerate(combinations)
        ]
        with service.client() as client:
            assert {item["status"] for item in register(client, *entries)} == {201}
    return tenant


@pytest.mark.parametrize("name", [*VARIED, "engine_family", "entry_id"])
def test_a_filter_shows_what_has_the_value_and_nothing_else(service, tenant, name):
    with service.client() as client:
        everything = listed(client, tenant=tenant)
        for value in {state[name] for state in everything}:
            found = listed(client, tenant=tenant, **{name: value})
            assert found == [state for state in everything if state[name] == value]
            assert found


def test_filters_must_all_hold(service, tenant):
    with service.client() as client:
        [state] = listed(
            client, tenant=tenant, **{name: values[1] for name, values in VARIED.items()}
        )
        assert listed(client, tenant=tenant, model="model-9") == []
        assert listed(client, tenant=tenant, engine_family="vllm") == []
    assert state["entry_id"] == "state-15"


@pytest.mark.parametrize("page_size", [1, 5, 16, 17, 5_000])
def test_pages_walk_through_the_whole_set_once(service, tenant, page_size):
    with service.client() as client:
        everything = client.get("/v1/states", params={"tenant": tenant}).json()
        walked = listed(client, tenant=tenant, page_size=page_size)
    assert walked == everything["items"]
    assert everything["next_cursor"] is None
    ids = [state["state_id"] for state in walked]
    assert ids == sorted(set(ids))
    assert len(ids) == 16


def test_a_page_has_at_most_what_was_asked(service, tenant):
    with service.client() as client:
        page = client.get("/v1/states", params={"tenant": tenant, "page_size": 3}).json()
    assert len(page["items"]) == 3
    assert "registration" not in page["items"][0]


def test_a_walk_outlives_changes_between_its_pages(service):
    tenant = new_tenant()
    entries = [registration(tenant, f"state-{n}") for n in range(4)]
    with service.client() as client:
        register(client, *entries)
        first = client.get("/v1/states", params={"tenant": tenant, "page_size": 2}).json()
        last_seen = first["items"][-1]["state_id"]
        assert client.delete(f"/v1/states/{last_seen}").status_code == 204
        params = {"tenant": tenant, "cursor": first["next_cursor"]}
        rest = client.get("/v1/states", params=params).json()["items"]
    assert len(rest) == 2
    assert not {state["state_id"] for state in rest} & {s["state_id"] for s in first["items"]}


def test_a_cursor_is_bound_to_its_filters_and_not_to_the_page_size(service, tenant):
    with service.client() as client:

        def page(**params):
            return client.get("/v1/states", params=params)

        cursor = page(tenant=tenant, page_size=1).json()["next_cursor"]
        assert len(page(tenant=tenant, page_size=9, cursor=cursor).json()["items"]) == 9
        for other in (
            {"cursor": cursor},
            {"tenant": tenant, "model": "model-1", "cursor": cursor},
            {"tenant": tenant, "cursor": cursor[:-2]},
            {"tenant": tenant, "cursor": "B" + cursor[1:]},
            {"tenant": tenant, "cursor": ""},
            {"tenant": tenant, "cursor": "é"},
            {"tenant": tenant, "cursor": "A" * 5_000},
        ):
            assert refusal(page(**other)) == (400, "invalid_cursor"), other


def test_a_cursor_of_the_decisions_is_no_cursor_of_states(service, tenant):
    with service.client() as client:
        client.post("/locus/v1/lookup", json={})
        states = client.get("/v1/states", params={"tenant": tenant, "page_size": 1}).json()
        params = {"tenant": tenant, "cursor": states["next_cursor"]}
        assert refusal(client.get("/v1/decisions", params=params)) == (400, "invalid_cursor")


def test_a_key_sees_its_tenants_only(service, tenant):
    own = new_tenant()
    with service.client() as client:
        register(client, registration(own))
    with service.client(service.key(Scope.STATES_READ, tenants=(own, "nobody"))) as client:
        assert {state["tenant"] for state in listed(client)} == {own}
        assert listed(client, tenant="nobody") == []
        answers = [client.get("/v1/states", params={"tenant": name}) for name in (tenant, "?")]
    # A tenant that exists and one that does not are refused alike.
    assert [refusal(answer) for answer in answers] == [(403, "tenant_forbidden")] * 2
    assert answers[0].json()["detail"] == answers[1].json()["detail"]


def test_a_cursor_carries_no_authority(service, tenant):
    with service.client() as client:
        cursor = client.get("/v1/states", params={"page_size": 1}).json()["next_cursor"]
    own = new_tenant()
    with service.client(service.key(Scope.STATES_READ, tenants=(own,))) as client:
        answer = client.get("/v1/states", params={"cursor": cursor})
    assert answer.json() == {"items": [], "next_cursor": None}


@pytest.mark.parametrize(
    ("params", "pointer"),
    [
        ({"colour": "red"}, "/query/colour"),
        ({"page_size": 0}, "/query/page_size"),
        ({"page_size": -1}, "/query/page_size"),
        ({"page_size": "many"}, "/query/page_size"),
        ({"page_size": "1.5"}, "/query/page_size"),
        ({"tier": "tape"}, "/query/tier"),
        ({"semantic_type": "magic"}, "/query/semantic_type"),
        ({"engine_family": ""}, "/query/engine_family"),
        ({"tenant": ""}, "/query/tenant"),
        ({"entry_id": "a\x00"}, "/query/entry_id"),
        ({"model": "x" * 513}, "/query/model"),
    ],
)
def test_bad_parameters(service, params, pointer):
    with service.client() as client:
        answer = client.get("/v1/states", params=params)
    status, code = refusal(answer)
    assert status == 400
    assert code in ("invalid_field", "unknown_field")
    assert pointer in {found["pointer"] for found in answer.json()["errors"]}


def test_who_may_list(service):
    writer = service.key(Scope.STATES_WRITE, Scope.BRIDGE, Scope.DECISIONS_READ)
    for key, expected in (("", (401, "unauthorized")), (writer, (403, "forbidden"))):
        with service.client(key) as client:
            assert refusal(client.get("/v1/states")) == expected
            assert refusal(client.get(f"/v1/states/{'0' * 32}")) == expected
