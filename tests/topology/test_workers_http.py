"""`/v1/workers` and `/v1/worker-tokens`, as workers, operators and callers meet them."""

import time
from itertools import count
from typing import Any

import httpx
import pytest

from app.clock import SystemClock, SystemIds
from app.control.keys import Scope
from app.transfer.tokens import API_AUDIENCE, Direction, Grant, TokenKeys
from tests.fixtures.service import WORKER_SECRET, ServiceProcess
from tests.fixtures.wire import heartbeat_body, new_tenant
from tests.lifecycle.in_process import running
from tests.states.pages import refusal

KEYS = TokenKeys([WORKER_SECRET])
IDS = SystemIds()
_names = count(1)
GONE = {"tenant": "t", "payload_id": "p"}
ODD = GONE | {"payload_id": "a/b"}


def now_s() -> int:
    return SystemClock().now_us() // 1_000_000


def new_name() -> str:
    return f"worker-{next(_names)}"


def new_instance() -> str:
    return str(IDS.uuid7())


def register_token(name: str, **changes: Any) -> str:
    grant = {"worker": API_AUDIENCE, "tenant": name, "direction": Direction.REGISTER}
    signed_s = now_s() - changes.pop("age_s", 0)
    keys = changes.pop("keys", KEYS)
    return keys.sign(Grant(**(grant | changes)), now_s=signed_s, ttl_s=60)


def bearer(token: str) -> dict[str, str]:
    return {"authorization": f"Bearer {token}"}


@pytest.fixture(scope="module")
def client(service: ServiceProcess):
    with service.client() as opened:
        yield opened


@pytest.fixture(scope="module")
def anonymous(service: ServiceProcess):
    with service.client("") as opened:
        yield opened


def beat(client: httpx.Client, name: str, token: str | None = None, **changes: Any):
    headers = bearer(register_token(name) if token is None else token)
    return client.put(f"/v1/workers/{name}", json=heartbeat_body(**changes), headers=headers)


def test_a_worker_registers_with_its_own_token_and_is_listed(anonymous, client):
    name, instance_id = new_name(), new_instance()
    answer = beat(anonymous, name, instance_id=instance_id)
    assert answer.status_code == 200
    assert answer.json() == {"accepted_events": [], "heartbeat_s": 1.0}
    one = client.get(f"/v1/workers/{name}").json()
    assert one["available"] is True
    assert one["instance_id"] == instance_id
    assert one["url"] == "http://127.0.0.1:7000"
    assert one["backends"] == ["baseline_transport", "staged_copy"]
    assert one["load"]["capacity_bytes"] == 7
    assert 0 <= one["heartbeat_age_us"] < 5_000_000
    listed = client.get("/v1/workers").json()["items"]
    assert [found["instance_id"] for found in listed if found["name"] == name] == [instance_id]
    names = [found["name"] for found in listed]
    assert names == sorted(names)


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"tenant": "somebody-else"}, (403, "forbidden")),
        ({"direction": Direction.TRANSFER}, (403, "forbidden")),
        ({"payload_id": "p"}, (403, "forbidden")),
        ({"worker": "node-a"}, (401, "unauthorized")),
        ({"age_s": 66}, (401, "unauthorized")),
        ({"keys": TokenKeys(["another" * 8])}, (401, "unauthorized")),
    ],
    ids=str,
)
def test_any_other_token_is_refused(anonymous, changes, expected):
    name = new_name()
    assert refusal(beat(anonymous, name, register_token(name, **changes))) == expected


def test_tokens_open_nothing_else(anonymous):
    name = new_name()
    for method, path in (
        ("GET", "/v1/workers"),
        ("GET", f"/v1/workers/{name}"),
        ("DELETE", f"/v1/workers/{name}"),
        ("POST", "/v1/worker-tokens"),
        ("POST", "/v1/states"),
    ):
        answer = anonymous.request(method, path, headers=bearer(register_token(name)), content=b"")
        assert refusal(answer) == (401, "unauthorized"), path


def test_a_key_needs_the_scope(service, anonymous):
    name = new_name()
    reader = service.key(Scope.WORKERS_READ)
    other = service.key(Scope.BRIDGE, Scope.WORKER_TOKENS_ISSUE)
    assert beat(anonymous, name, service.admin_key).status_code == 200
    for key in (reader, other):
        assert refusal(beat(anonymous, name, key)) == (403, "forbidden")
        gone = anonymous.delete(f"/v1/workers/{name}", headers=bearer(key))
        assert refusal(gone) == (403, "forbidden")
    assert anonymous.get("/v1/workers", headers=bearer(reader)).status_code == 200
    assert refusal(anonymous.get("/v1/workers", headers=bearer(other))) == (403, "forbidden")
    assert refusal(anonymous.get("/v1/workers")) == (401, "unauthorized")
    token = anonymous.post("/v1/worker-tokens", json={}, headers=bearer(reader))
    assert refusal(token)[0] in {400, 403}


@pytest.mark.parametrize(
    ("changes", "pointer", "code"),
    [
        ({"url": "http://127.0.0.1:7000/x"}, "/url", "invalid_field"),
        ({"url": "http://127.0.0.1"}, "/url", "invalid_field"),
        ({"data_address": "127.0.0.1"}, "/data_address", "invalid_field"),
        ({"instance_id": "x"}, "/instance_id", "invalid_field"),
        ({"instance_id": "-" * 36}, "/instance_id", "invalid_field"),
        ({"backends": ["warp"]}, "/backends/0", "invalid_field"),
        ({"tiers": ["host_dram"] * 17}, "/tiers", "invalid_field"),
        ({"load": {"used_bytes": 1}}, "/load/capacity_bytes", "missing_field"),
        ({"colour": "red"}, "/colour", "unknown_field"),
        ({"events": [{}]}, "/events/0/event_id", "missing_field"),
        ({"gone_payloads": ["p"]}, "/gone_payloads/0", "invalid_field"),
        ({"gone_payloads": [{"payload_id": "p"}]}, "/gone_payloads/0/tenant", "missing_field"),
        ({"gone_payloads": [GONE, ODD]}, "/gone_payloads/1/payload_id", "invalid_field"),
        ({"gone_payloads": [GONE] * 1001}, "/gone_payloads", "invalid_field"),
        ({"schema_version": "nexuskv.worker.v2"}, "/schema_version", "invalid_field"),
    ],
    ids=str,
)
def test_a_heartbeat_that_is_not_acceptable_says_where(anonymous, client, changes, pointer, code):
    name = new_name()
    answer = beat(anonymous, name, **changes)
    assert refusal(answer) == (400, code)
    assert answer.json()["errors"][0]["pointer"] == pointer
    assert client.get(f"/v1/workers/{name}").status_code == 404


@pytest.mark.parametrize("body", [b"", b"{", b"[]", b"null", b"\xff"])
def test_a_body_that_is_no_heartbeat(anonymous, body):
    name = new_name()
    headers = bearer(register_token(name)) | {"content-type": "application/json"}
    answer = anonymous.put(f"/v1/workers/{name}", content=body, headers=headers)
    assert refusal(answer)[0] == 400


@pytest.mark.parametrize("name", ["-a", "a b", "a%2Fb", "é", "x" * 129])
def test_a_name_that_is_none(client, name):
    assert client.put(f"/v1/workers/{name}", json=heartbeat_body()).status_code in {400, 404}
    assert client.get(f"/v1/workers/{name}").status_code in {400, 404}


def test_a_host_that_is_not_listed_is_refused_with_the_setting_to_change(anonymous):
    answer = beat(anonymous, new_name(), url="http://169.254.169.254:80")
    assert refusal(answer) == (403, "worker_host_not_allowed")
    assert "NEXUSKV_WORKER_HOSTS" in answer.json()["detail"]


def test_two_live_processes_cannot_have_one_name(anonymous):
    name = new_name()
    first, second, third = new_instance(), new_instance(), new_instance()
    assert beat(anonymous, name, instance_id=first).status_code == 200
    elsewhere = {"url": "http://127.0.0.1:8000", "data_address": "127.0.0.1:8001"}
    taken = beat(anonymous, name, instance_id=second, **elsewhere)
    assert refusal(taken) == (409, "worker_name_taken")
    # A restart on the same port need not wait.
    assert beat(anonymous, name, instance_id=third).status_code == 200
    assert refusal(beat(anonymous, name, instance_id=first)) == (409, "worker_name_taken")


def test_a_forgotten_worker_is_gone_until_it_speaks(anonymous, client):
    name = new_name()
    beat(anonymous, name)
    assert client.delete(f"/v1/workers/{name}").status_code == 204
    assert refusal(client.get(f"/v1/workers/{name}")) == (404, "not_found")
    assert refusal(client.delete(f"/v1/workers/{name}")) == (404, "not_found")
    assert beat(anonymous, name).status_code == 200
    assert client.get(f"/v1/workers/{name}").status_code == 200


def issued(client: httpx.Client, **fields: Any) -> httpx.Response:
    return client.post("/v1/worker-tokens", json=fields)


IDS_OF = {
    "put_payload": {"payload_id": "p-1"},
    "get_payload": {"payload_id": "p-1"},
    "delete_payload": {"payload_id": "p-1"},
    "create_sink": {},
    "read_sink": {"sink_id": "s-1"},
    "finish_sink": {"sink_id": "s-1"},
    "transfer": {"payload_id": "p-1"},
    "fetch": {"payload_id": "p-1", "target_worker": "w-2", "sink_id": "s-1"},
}


@pytest.mark.parametrize("direction", IDS_OF)
def test_a_token_allows_what_was_asked_for_and_nothing_more(client, anonymous, direction):
    name, tenant = new_name(), new_tenant()
    beat(anonymous, name)
    before_s = now_s()
    answer = issued(client, worker=name, tenant=tenant, direction=direction, **IDS_OF[direction])
    assert answer.status_code == 201
    found = answer.json()
    grant = KEYS.verify(found["token"], worker=name, now_s=now_s())
    assert grant == Grant(
        name,
        tenant,
        Direction(direction),
        **IDS_OF[direction],
        # What a worker may be made to call is what the worker itself has registered.
        data_address="127.0.0.1:7001" if direction == "fetch" else "",
    )
    assert (found["url"], found["data_address"]) == ("http://127.0.0.1:7000", "127.0.0.1:7001")
    expires_s = SystemClock().now().fromisoformat(found["expires_at"]).timestamp()
    assert before_s + 60 <= expires_s <= now_s() + 60


def test_a_transfer_token_may_be_bound_to_a_sink(client, anonymous):
    name = new_name()
    beat(anonymous, name)
    fields = {"direction": "transfer", "payload_id": "p-1", "sink_id": "s-1", "ttl_s": 300}
    found = issued(client, worker=name, tenant="t", **fields).json()
    assert KEYS.verify(found["token"], worker=name, now_s=now_s() + 299).sink_id == "s-1"


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({"direction": "fetch", "payload_id": "p", "sink_id": "s"}, (400, "missing_field")),
        ({"direction": "fetch", "payload_id": "p", "target_worker": "w"}, (400, "missing_field")),
        (
            {
                "direction": "fetch",
                "payload_id": "p",
                "target_worker": "w",
                "sink_id": "s",
                "target_payload_id": "q",
            },
            (400, "invalid_field"),
        ),
        (
            {"direction": "transfer", "payload_id": "p", "target_worker": "w"},
            (400, "invalid_field"),
        ),
        ({"direction": "register"}, (400, "invalid_field")),
        ({"direction": "put_payload"}, (400, "missing_field")),
        ({"direction": "put_payload", "payload_id": ""}, (400, "invalid_field")),
        ({"direction": "put_payload", "payload_id": "a/b"}, (400, "invalid_field")),
        (
            {"direction": "put_payload", "payload_id": "p", "sink_id": "s"},
            (400, "invalid_field"),
        ),
        ({"direction": "create_sink", "payload_id": "p"}, (400, "invalid_field")),
        ({"direction": "create_sink", "sink_id": "s"}, (400, "invalid_field")),
        ({"direction": "read_sink"}, (400, "missing_field")),
        ({"direction": "read_sink", "sink_id": "../s"}, (400, "invalid_field")),
        ({"direction": "transfer", "sink_id": "s"}, (400, "missing_field")),
        ({"direction": "create_sink", "ttl_s": 301}, (400, "invalid_field")),
        ({"direction": "create_sink", "ttl_s": 0}, (400, "invalid_field")),
        ({"direction": "create_sink", "ttl_s": "60"}, (400, "invalid_field")),
        ({"direction": "create_sink", "tenant": ""}, (400, "invalid_field")),
        ({"direction": "create_sink", "worker": "nobody"}, (404, "not_found")),
        ({"direction": "create_sink", "admin": True}, (400, "unknown_field")),
        ({}, (400, "missing_field")),
    ],
    ids=str,
)
def test_tokens_that_are_not_issued(client, anonymous, fields, expected):
    name = new_name()
    beat(anonymous, name)
    assert refusal(issued(client, **({"worker": name, "tenant": "t"} | fields))) == expected


def test_a_key_issues_tokens_for_its_own_tenants_only(service, anonymous):
    name, tenant = new_name(), new_tenant()
    beat(anonymous, name)
    key = service.key(Scope.WORKER_TOKENS_ISSUE, tenants=(tenant,))
    fields = {"worker": name, "direction": "create_sink"}
    with service.client(key) as client:
        assert issued(client, tenant=tenant, **fields).status_code == 201
        foreign = issued(client, tenant=new_tenant(), **fields)
    assert refusal(foreign) == (403, "tenant_forbidden")


async def test_without_a_secret_only_keys_register_and_no_token_is_issued(database_url):
    name = new_name()
    async with running(database_url) as api:
        path = f"/v1/workers/{name}"
        by_token = await api.client.put(
            path, json=heartbeat_body(), headers=bearer(register_token(name))
        )
        assert refusal(by_token) == (503, "workers_not_configured")
        assert "NEXUSKV_WORKER_SECRET" in by_token.json()["detail"]
        assert (await api.client.put(path, json=heartbeat_body())).status_code == 200
        assert (await api.client.get("/v1/workers")).json()["items"][0]["name"] == name
        fields = {"worker": name, "tenant": "t", "direction": "create_sink"}
        refused = await api.client.post("/v1/worker-tokens", json=fields)
        assert refusal(refused) == (503, "workers_not_configured")


async def test_replicas_tell_each_other_and_remember_after_a_restart(database_url):
    name = new_name()
    settings = {"worker_secrets": (WORKER_SECRET,), "sync_interval_s": 0.01}
    async with running(database_url, **settings) as one:
        async with running(database_url, **settings) as two:
            await one.client.put(f"/v1/workers/{name}", json=heartbeat_body())
            await two.services.workers.poll()
            assert two.services.workers.available(name)
            assert (await two.client.delete(f"/v1/workers/{name}")).status_code == 204
            await one.services.workers.poll()
            assert one.services.workers.get(name) is None
        await one.client.put(f"/v1/workers/{name}", json=heartbeat_body())
    async with running(database_url, **settings) as again:
        # `running` waits for the first load, and a load includes the workers.
        assert again.services.workers.available(name)


def test_a_worker_that_falls_silent_is_shown_as_unavailable(database_url, tmp_path):
    service = ServiceProcess(database_url, tmp_path, NEXUSKV_WORKER_SILENCE_S="0.5").start()
    try:
        with service.client() as client:
            answer = client.put("/v1/workers/node-a", json=heartbeat_body())
            # Who is judged sooner has to speak more often.
            assert answer.json()["heartbeat_s"] == pytest.approx(0.1)
            deadline = time.monotonic() + 10
            while client.get("/v1/workers/node-a").json()["available"]:
                assert time.monotonic() < deadline
            metrics = client.get("/metrics").text
            assert 'nexuskv_workers{status="unavailable"} 1.0' in metrics
            assert 'nexuskv_workers{status="available"} 0.0' in metrics
            assert 'nexuskv_worker_heartbeats_total{result="accepted"} 1.0' in metrics
            assert 'nexuskv_worker_calls_total{operation="transfer",result="ok"} 0.0' in metrics
    finally:
        service.kill()
