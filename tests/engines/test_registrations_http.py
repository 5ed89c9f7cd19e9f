"""Registrations over HTTP: what they name is there as long as they are, and whose they are."""

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any
from uuid import uuid4

import httpx
import pytest

from app.control.keys import Scope
from tests.bridge.test_engine_backed import blocks, engine, push, state
from tests.engines.publisher import free_port
from tests.fixtures.service import ServiceProcess
from tests.fixtures.wire import matched, new_tenant, registration
from tests.fixtures.wire import register as register_states
from tests.process.waiting import until
from tests.states.pages import refusal


@pytest.fixture(scope="module")
def client(service: ServiceProcess) -> Iterator[httpx.Client]:
    with service.client() as opened:
        yield opened


def post(client: httpx.Client, body: dict[str, Any], **params: str) -> tuple[int, str]:
    """The status, and what became of it or why not."""
    answer = client.post("/v1/engines", json=body, params=params)
    found = answer.json()
    return answer.status_code, found.get("result") or found["code"]


def drop(client: httpx.Client, body: dict[str, Any], rank: int = 0) -> int:
    url = f"/v1/engines/{body['instance_id']}"
    return client.delete(url, params={"dp_rank": rank}).status_code


def states(client: httpx.Client, tenant: str) -> list[tuple[str, int]]:
    items = client.get("/v1/states", params={"tenant": tenant}).json()["items"]
    return sorted((one["entry_id"], one["generation"]) for one in items)


def units(client: httpx.Client, tenant: str) -> int:
    found = matched(client, tenant)
    return 0 if found is None else found["matched_extent"]["units"]


def name_of(body: dict[str, Any]) -> tuple[str, int]:
    identity = body["states"][0]["entry"]["identity"]
    return identity["entry_id"], identity["version"]["generation"]


def test_a_state_stays_as_long_as_a_rank_names_it(client):
    tenant = new_tenant()
    body = engine(tenant)
    second = body | {"dp_rank": 1}
    assert post(client, body) == post(client, second) == (201, "created")
    push(client, body, 0, blocks(3))
    assert drop(client, body, rank=1) == 204
    assert states(client, tenant) == [name_of(body)]
    assert units(client, tenant) == 12
    assert post(client, body) == (200, "unchanged")
    # As does another instance.
    other = engine(tenant)
    assert post(client, other) == (201, "created")
    assert drop(client, body) == 204
    assert states(client, tenant) == [name_of(body)]
    assert drop(client, other) == 204
    assert states(client, tenant) == []


def test_what_was_deleted_is_registered_again_by_the_same_body(client):
    tenant = new_tenant()
    body = engine(tenant)
    for _ in range(3):
        assert post(client, body) == (201, "created")
        push(client, body, 0, blocks(3))
        assert (states(client, tenant), units(client, tenant)) == ([name_of(body)], 12)
        assert drop(client, body) == 204
        assert (states(client, tenant), units(client, tenant)) == ([], 0)
    # One generation is one content, also after it was deleted.
    changed = body | {"states": [state(tenant, lineage="lineage-2")]}
    assert post(client, changed) == (409, "engine_conflict")
    assert client.get("/v1/engines", params={"model": body["model"]}).status_code == 200
    assert drop(client, body) == 404
    changed["states"][0]["entry"]["identity"]["version"]["generation"] += 1
    assert post(client, changed) == (201, "created")
    assert states(client, tenant) == [name_of(changed)]


def test_a_state_deleted_by_itself_is_back_with_the_same_registration(client):
    tenant = new_tenant()
    body = engine(tenant)
    post(client, body)
    push(client, body, 0, blocks(3))
    [found] = client.get("/v1/states", params={"tenant": tenant}).json()["items"]
    assert client.delete(f"/v1/states/{found['state_id']}").status_code == 204
    assert units(client, tenant) == 0
    assert post(client, body) == (200, "unchanged")
    assert units(client, tenant) == 12


def test_a_registration_that_is_refused_leaves_nothing(client, service):
    tenant = new_tenant()
    bare = engine(tenant, states=[])
    assert post(client, bare) == (201, "created")
    refused = [
        (bare | {"states": [state(tenant)]}, (409, "engine_conflict")),
        (engine(tenant, endpoint="tcp://example.com:5555"), (403, "engine_host_not_allowed")),
        (engine(tenant, salts={"s": "stranger"}), (400, "invalid_field")),
    ]
    stranger = service.key(Scope.ADMIN, tenants=(new_tenant(),))
    for body, why in refused:
        assert post(client, body) == why
        assert states(client, tenant) == []
    with service.client(stranger) as other:
        assert post(other, engine(tenant)) == (403, "tenant_forbidden")
    # Two states, of which one is in the way: neither of them, and no engine either.
    register_states(client, registration(tenant, "taken"))
    both = engine(tenant, states=[state(tenant, entry_id="free"), state(tenant, entry_id="taken")])
    assert post(client, both) == (409, "engine_conflict")
    assert [name for name, _ in states(client, tenant)] == ["taken"]
    assert drop(client, both) == 404
    # What has tokens by now is no engine's.
    assert drop(client, bare) == 204
    assert [name for name, _ in states(client, tenant)] == ["taken"]


def test_a_replaced_registration_drops_what_it_no_longer_names(client):
    tenant = new_tenant()
    first, second = state(tenant, entry_id="first"), state(tenant, entry_id="second")
    body = engine(tenant, states=[first, second])
    other = engine(tenant, states=[second])
    assert post(client, body) == post(client, other) == (201, "created")
    assert post(client, body | {"states": []}, replace="true") == (200, "replaced")
    assert [name for name, _ in states(client, tenant)] == ["second"]
    assert post(client, body, replace="true") == (200, "replaced")
    assert [name for name, _ in states(client, tenant)] == ["first", "second"]
    assert drop(client, body) == 204
    assert [name for name, _ in states(client, tenant)] == ["second"]


def test_an_engine_that_leaves_by_the_indexers_call_takes_its_states_along(client):
    tenant = new_tenant()
    body = engine(tenant)
    post(client, body)
    post(client, body | {"dp_rank": 3})
    push(client, body, 0, blocks(3))
    leave = {"modelname": body["model"], "instance_id": body["instance_id"]}
    assert client.post("/indexer/unregister", json=leave | {"dp_rank": 3}).status_code == 200
    assert units(client, tenant) == 12
    answer = client.post("/indexer/unregister", json=leave)
    assert answer.json()["removed_instances"] == [f"{body['instance_id']}|{tenant}|0"]
    assert (states(client, tenant), units(client, tenant)) == ([], 0)


def test_what_others_registered_is_not_told_by_either_call(service):
    ours, theirs = new_tenant(), new_tenant()
    port = free_port()
    name, model = f"secret-{uuid4()}", f"m-{uuid4()}"
    body = {
        "instance_id": name, "model": model, "block_tokens": 16, "tenants": [ours],
        "endpoint": f"tcp://127.0.0.1:{port}", "attach": "bind",
    }  # fmt: skip
    with ExitStack() as stack:
        mine, other = (
            stack.enter_context(service.client(service.key(Scope.ADMIN, tenants=(tenant,))))
            for tenant in (ours, theirs)
        )
        assert post(mine, body) == (201, "created")
        indexers = {
            "modelname": model, "instance_id": name, "block_size": 16,
            "endpoint": "tcp://127.0.0.1:9",
        }  # fmt: skip
        foreign = other.post("/v1/engines", json=body | {"tenants": [theirs], "attach": "connect"})
        assert refusal(foreign) == (403, "tenant_forbidden")
        answer = other.post("/indexer/register", json=indexers)
        assert answer.status_code == 403
        assert answer.json() == {"error": foreign.json()["detail"], "code": "tenant_forbidden"}
        # A port is taken or not; by whom is told to those who may see it.
        second = body | {"instance_id": f"second-{uuid4()}"}
        clash = other.post("/v1/engines", json=second | {"tenants": [theirs]})
        assert refusal(clash) == (409, "engine_conflict")
        assert name not in clash.text
        assert name in mine.post("/v1/engines", json=second).json()["detail"]
        assert drop(other, body) == 404
        leave = {"modelname": model, "instance_id": name}
        assert other.post("/indexer/unregister", json=leave).status_code == 404
        assert drop(mine, body) == 204


def test_another_tenants_engine_is_safe_from_a_replica_that_has_not_heard_of_it(
    service: ServiceProcess, tmp_path: Path
) -> None:
    ours, theirs = new_tenant(), new_tenant()
    replica = ServiceProcess(service.database_url, tmp_path).start()
    try:
        mine = service.client(service.key(Scope.ADMIN, tenants=(ours,)))
        other = replica.client(service.key(Scope.ADMIN, tenants=(theirs,)))
        with mine, other:
            for _ in range(10):
                body = engine(ours)
                assert post(mine, body) == (201, "created")
                # At once: the replica polls four times a second.
                stolen = engine(theirs, instance_id=body["instance_id"])
                assert post(other, stolen, replace="true") == (403, "tenant_forbidden")
                assert drop(other, body) == 404
            assert states(other, theirs) == []
            [kept] = {name for name, _ in states(mine, ours)}
            assert kept == name_of(body)[0]
            until(lambda: units(other, theirs) == 0, "nothing of it is theirs")
    finally:
        assert replica.stop() == 0, replica.log()


def test_several_processes_keep_to_the_same(database_url: str, tmp_path: Path) -> None:
    ours, theirs = new_tenant(), new_tenant()
    pool = ServiceProcess(database_url, tmp_path, "--workers", "2").start()
    try:
        mine = pool.client(pool.key(Scope.ADMIN, tenants=(ours,)))
        other = pool.client(pool.key(Scope.ADMIN, tenants=(theirs,)))
        with mine, other:
            body = engine(ours)
            for _ in range(2):
                assert post(mine, body) == (201, "created")
                assert post(mine, body | {"dp_rank": 1}) == (201, "created")
                push(mine, body, 0, blocks(3))
                # It is one connection, and so one process, which knows the state at once.
                assert units(mine, ours) == 12
                stolen = engine(theirs, instance_id=body["instance_id"])
                assert post(other, stolen, replace="true") == (403, "tenant_forbidden")
                assert states(other, theirs) == []
                assert drop(other, body) == 404
                assert drop(mine, body, rank=1) == 204
                assert units(mine, ours) == 12
                assert drop(mine, body) == 204
                assert (states(mine, ours), units(mine, ours)) == ([], 0)
            refused = engine(ours, endpoint="tcp://example.com:5555")
            assert post(mine, refused) == (403, "engine_host_not_allowed")
            assert states(mine, ours) == []
    finally:
        assert pool.stop() == 0, pool.log()
