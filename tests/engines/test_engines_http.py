"""`/v1/engines` and `/v1/doctor`, as operators and those who push events meet them."""

import json
from itertools import count
from typing import Any

import pytest
from typer.testing import CliRunner

from app.cli import cli
from app.control.keys import Scope
from tests.engines.publisher import BLOCK, free_port
from tests.engines.wires import CLEARED, as_envelope, packed, removed, stored
from tests.fixtures.service import ServiceProcess
from tests.process.waiting import until
from tests.states.pages import refusal

BINARY = {"content-type": "application/octet-stream"}
_names = count(1)


@pytest.fixture(scope="module")
def client(service: ServiceProcess):
    with service.client() as opened:
        yield opened


def spec(**changes: Any) -> dict[str, Any]:
    number = next(_names)
    return {
        "instance_id": f"http-{number}",
        "model": f"http-model-{number}",
        "block_tokens": BLOCK,
        "tenants": [f"http-tenant-{number}"],
    } | changes


def register(client, body, **params):
    return client.post("/v1/engines", json=body, params=params)


def listed(client, **params) -> list[str]:
    return [one["instance_id"] for one in client.get("/v1/engines", params=params).json()["items"]]


def shown(client, body) -> dict[str, Any]:
    [found] = client.get("/v1/engines", params={"model": body["model"]}).json()["items"]
    return found


def push(client, body, sequence, *events, rank=0, payload=None, headers=BINARY, **params):
    content = packed(*events, at_s=sequence + 0.5, rank=rank) if payload is None else payload
    return client.post(
        f"/v1/engines/{body['instance_id']}/events",
        params={"sequence": sequence} | params,
        content=content,
        headers=headers,
    )


def block(number: int, **fields: Any) -> dict[str, Any]:
    """The block at this place of one long prompt."""
    given = {
        "parent_block_hash": number or None,
        "block_size": BLOCK,
        "token_ids": list(range(BLOCK * number, BLOCK * (number + 1))),
    }
    return stored([number + 1], **(given | fields))


def test_a_registration_is_idempotent_and_another_one_is_a_conflict(client):
    body = spec()
    created = register(client, body)
    assert (created.status_code, created.json()["result"]) == (201, "created")
    again = register(client, body | {"dp_rank": 0})
    assert (again.status_code, again.json()["result"]) == (200, "unchanged")
    other = body | {"block_tokens": 32}
    conflict = register(client, other)
    assert refusal(conflict) == (409, "engine_conflict")
    assert "block_tokens" in conflict.json()["detail"]
    replaced = register(client, other, replace="true")
    assert (replaced.status_code, replaced.json()["result"]) == (200, "replaced")
    assert shown(client, body)["block_tokens"] == 32
    rank = register(client, body | {"dp_rank": 1})
    assert rank.status_code == 201
    assert client.delete(f"/v1/engines/{body['instance_id']}?dp_rank=1").status_code == 204
    assert client.delete(f"/v1/engines/{body['instance_id']}").status_code == 204
    gone = client.delete(f"/v1/engines/{body['instance_id']}")
    assert refusal(gone) == (404, "not_found")
    # A name that was given up is free, also for another registration.
    assert register(client, body).status_code == 201


def test_declared_groups_hold_from_the_start(client):
    groups = [
        {"group_idx": 0, "kind": "full_attention", "window_tokens": None},
        {"group_idx": 1, "kind": "mamba", "window_tokens": None},
    ]
    body = spec()
    tenant, model = body["tenants"][0], body["model"]
    query = {"tenant": tenant, "model": model, "tokens": list(range(2 * BLOCK))}

    def usable() -> int:
        answer = client.post("/v1/match", json={"queries": [query]}).json()
        return answer["results"][0]["matched_tokens"]

    assert register(client, body).status_code == 201
    conflict = register(client, body | {"groups": groups})
    assert refusal(conflict) == (409, "engine_conflict")
    assert "groups" in conflict.json()["detail"]
    assert register(client, body | {"groups": groups}, replace="true").status_code == 200
    assert register(client, body | {"groups": groups}).json()["result"] == "unchanged"
    assert shown(client, body)["groups"] == groups
    assert push(client, body, 0, block(0), block(1)).status_code == 200
    assert usable() == 0
    assert push(client, body, 1, block(1, group_idx=1)).status_code == 200
    assert usable() == 2 * BLOCK


def test_events_of_others_are_left_out_and_the_doctor_says_so(client):
    body = spec()
    assert register(client, body).status_code == 201
    other = as_envelope(block(0), 0) | {"model_name": "another"}
    mine = as_envelope(block(0), 0) | {"model_name": body["model"]}
    assert push(client, body, 0, other, mine).status_code == 200
    assert push(client, body, 1, mine | {"event_id": 7}).json()["state"] == "unknown"
    found = shown(client, body)
    assert (found["left_out"]["other_model"], found["lost_events"], found["gaps"]) == (1, 6, 1)
    [report] = client.get("/v1/doctor", params={"engine": body["instance_id"]}).json()["reports"]
    said = {finding["check"]: finding["what"] for finding in report["findings"]}
    assert "other_model" in said["identity"]
    assert "6 events" in said["continuity"]


@pytest.mark.parametrize(
    ("changes", "code", "pointer"),
    [
        ({"block_tokens": 0}, "invalid_field", "/block_tokens"),
        ({"tenants": []}, "invalid_field", "/tenants"),
        ({"kind": "trtllm"}, "invalid_field", "/kind"),
        ({"instance_id": "a/b"}, "invalid_field", "/instance_id"),
        ({"endpoints": "tcp://127.0.0.1:1"}, "unknown_field", "/endpoints"),
        ({"salts": {"s": "stranger"}}, "invalid_field", "/salts"),
        ({"endpoint": "tcp://*:5557"}, "invalid_field", "/endpoint"),
        ({"model": "a\u0000b"}, "invalid_field", "/model"),
        # What is in a URL has no newline at its end.
        ({"instance_id": "a\n"}, "invalid_field", "/instance_id"),
        ({"node": "n\n"}, "invalid_field", "/node"),
        ({"groups": [{"group_idx": 0, "kind": "new"}]}, "invalid_field", "/groups/0/kind"),
        (
            {"groups": [{"group_idx": 0, "kind": "mamba"}] * 2},
            "invalid_field",
            "/groups",
        ),
        (
            {"groups": [{"group_idx": 0, "kind": "mamba", "window_tokens": 8}]},
            "invalid_field",
            "/groups",
        ),
    ],
)
def test_a_registration_that_is_wrong_says_where(client, changes, code, pointer):
    body = spec(**changes)
    answer = register(client, body)
    assert refusal(answer) == (400, code)
    assert answer.json()["errors"][0]["pointer"] == pointer


def test_endpoints_elsewhere_are_refused(client):
    for endpoint in ("tcp://10.9.9.9:5557", "ipc:///tmp/engine.sock"):
        assert refusal(register(client, spec(endpoint=endpoint))) == (
            403,
            "engine_host_not_allowed",
        )
    body = spec(endpoint=f"tcp://127.0.0.1:{free_port()}", attach="bind")
    assert register(client, body).status_code == 201
    second = register(client, spec(endpoint=body["endpoint"], attach="bind"))
    assert refusal(second) == (409, "engine_conflict")
    client.delete(f"/v1/engines/{body['instance_id']}")


def test_who_may_do_what(client, service):
    body = spec()
    [tenant] = body["tenants"]
    reader = service.key(Scope.ENGINES_READ, tenants=(tenant,))
    pusher = service.key(Scope.EVENTS_WRITE, tenants=(tenant,))
    stranger = service.key(Scope.ADMIN, tenants=("somebody-else",))
    assert register(client, body).status_code == 201
    with service.client(reader) as one:
        assert listed(one) == [body["instance_id"]]
        assert refusal(register(one, body)) == (403, "forbidden")
        assert refusal(push(one, body, 0)) == (403, "forbidden")
        assert one.get("/v1/doctor").json()["reports"][0]["instance_id"] == body["instance_id"]
    with service.client(pusher) as one:
        assert push(one, body, 0, block(0)).status_code == 200
        assert refusal(one.get("/v1/engines")) == (403, "forbidden")
    with service.client(stranger) as one:
        assert listed(one) == []
        assert refusal(register(one, body)) == (403, "tenant_forbidden")
        # Not even by taking its name for tenants of its own.
        mine = body | {"tenants": ["somebody-else"]}
        assert refusal(register(one, mine, replace="true")) == (403, "tenant_forbidden")
        assert refusal(push(one, body, 1)) == (404, "not_found")
        assert refusal(one.delete(f"/v1/engines/{body['instance_id']}")) == (404, "not_found")
        [report] = one.get("/v1/doctor", params={"engine": body["instance_id"]}).json()["reports"]
        assert report["findings"][0]["check"] == "registered"


def test_pages_follow_instance_and_rank(client):
    model = spec()["model"]
    for rank in range(3):
        register(client, spec(instance_id="paged", model=model, dp_rank=rank))
    seen, cursor = [], None
    while True:
        params = {"model": model, "page_size": 2} | ({"cursor": cursor} if cursor else {})
        page = client.get("/v1/engines", params=params).json()
        seen += [one["dp_rank"] for one in page["items"]]
        cursor = page["next_cursor"]
        if cursor is None:
            break
    assert seen == [0, 1, 2]
    first = client.get("/v1/engines", params={"model": model, "page_size": 1}).json()
    foreign = client.get("/v1/engines", params={"cursor": first["next_cursor"]})
    assert refusal(foreign) == (400, "invalid_cursor")


def test_pushed_frames_are_applied_in_their_order(client):
    body = spec(salts={})
    register(client, body)
    assert push(client, body, 0, block(0), block(1)).json() == {
        "applied": 2, "repeated": False, "lost": 0, "missing": None, "epoch": 1, "state": "live",
    }  # fmt: skip
    again = push(client, body, 0, block(0), block(1)).json()
    assert (again["applied"], again["repeated"]) == (0, True)
    hole = push(client, body, 4, block(2))
    assert refusal(hole) == (409, "events_missing")
    [finding] = hole.json()["errors"]
    assert json.loads(finding["value"]) == {"from": 1, "to": 3}
    # Nothing of it was taken: the frames that are missing can still come.
    for number in (1, 2, 3):
        assert push(client, body, number).json()["state"] == "live"
    assert push(client, body, 4, block(2)).json()["state"] == "live"
    found = shown(client, body)
    assert (found["blocks"], found["last_sequence"], found["gaps"]) == ({"gpu": {"0": 3}}, 4, 0)
    lost = push(client, body, 7, removed([3]), lost="true").json()
    assert lost["missing"] == {"from": 5, "to": 6}
    assert (lost["lost"], lost["state"]) == (2, "unknown")
    assert push(client, body, 8, CLEARED).json()["state"] == "live"
    # A number that goes back is another process.
    assert push(client, body, 0, block(5)).json()["epoch"] == 2


@pytest.mark.parametrize(
    ("changes", "status", "code"),
    [
        ({"payload": b"\xc1"}, 400, "invalid_body"),
        ({"payload": b""}, 400, "invalid_body"),
        ({"rank": 3}, 400, "invalid_field"),
        ({"headers": {"content-type": "application/json"}}, 415, "unsupported_media_type"),
        ({"dp_rank": 9}, 404, "not_found"),
        ({"sequence": -1}, 400, "invalid_field"),
        ({"sequence": 2**63}, 400, "invalid_field"),
        ({"last": 1}, 400, "unknown_field"),
    ],
)
def test_a_frame_that_is_refused_changes_nothing(client, changes, status, code):
    body = spec()
    register(client, body)
    assert refusal(push(client, body, **({"sequence": 0} | changes))) == (status, code)
    found = shown(client, body)
    assert (found["state"], found["frames"]) == ("pending", 0)


def test_frames_of_an_engine_with_an_endpoint_are_not_pushed(client):
    body = spec(endpoint=f"tcp://127.0.0.1:{free_port()}")
    register(client, body)
    assert refusal(push(client, body, 0, block(0))) == (409, "engine_conflict")


def doctor(service, *options):
    wanted = ["doctor", "--url", service.url, "--key", service.admin_key, *options]
    return CliRunner().invoke(cli, wanted, env={"COLUMNS": "200"})


def checks(client, body) -> dict[str, str]:
    found = client.get("/v1/doctor", params={"engine": body["instance_id"]}).json()
    return {one["check"]: one["severity"] for one in found["reports"][0]["findings"]}


def test_the_doctor_names_the_failing_precondition(client, service):
    body = spec(tenants=["http-a", "http-b"], salts={"known": "http-a"})
    register(client, body)
    assert checks(client, body) == {"events": "error"}
    push(client, body, 0, block(0, cache_salt="known"))
    found = checks(client, body)
    # Frames are dated by the test's own clock, which is in 1970.
    assert found == {"clock": "warning"}
    push(client, body, 1, stored([11], block_size=8, cache_salt="strange"))
    push(client, body, 2, stored([77], block_size=BLOCK), {"type": "BlockMoved"})
    push(client, body, 4, stored([b"0" * 32], block_size=BLOCK), lost="true")
    found = checks(client, body)
    assert found == {
        "block_size": "warning", "salts": "warning", "tenants": "warning", "version": "warning",
        "continuity": "error", "clock": "warning", "hashes": "note",
    }  # fmt: skip
    said = doctor(service, "--engine", body["instance_id"])
    assert said.exit_code == 1
    assert f"{body['instance_id']} rank 0: unknown" in said.output
    assert "block_tokens 8" in said.output
    plain = json.loads(doctor(service, "--engine", body["instance_id"], "--json").stdout)
    assert plain["ok"] is False
    assert plain["reports"][0]["passed"][0] == "registered"


def test_the_doctor_of_an_engine_that_nobody_registered(service):
    said = doctor(service, "--engine", "nobody")
    assert said.exit_code == 1
    assert "POST /v1/engines" in said.output


def test_what_is_pushed_is_counted(client):
    def series(name):
        text = client.get("/metrics").text
        [line] = [one for one in text.splitlines() if one.startswith(name + " ")]
        return float(line.rpartition(" ")[2])

    names = {
        'nexuskv_engine_events_total{type="stored"}': 2,
        'nexuskv_engine_frames_total{result="lost"}': 3,
        "nexuskv_engine_gaps_total": 1,
    }
    before = {name: series(name) for name in names}
    body = spec()
    register(client, body)
    push(client, body, 3, block(0), block(9, parent_block_hash=99), lost="true")
    assert {name: series(name) - before[name] for name in names} == names
    assert series("nexuskv_engine_blocks_quarantined") >= 1
    assert series("nexuskv_block_index_blocks") >= 1
    assert series('nexuskv_engines{state="unknown"}') >= 1
    # What was counted stays counted when the engine goes.
    client.delete(f"/v1/engines/{body['instance_id']}")
    assert {name: series(name) - before[name] for name in names} == names


def test_two_services_on_one_database_know_the_same_engines(service, tmp_path):
    other = ServiceProcess(service.database_url, tmp_path).start()
    try:
        with service.client() as here, other.client() as there:
            body = spec()
            register(here, body)
            until(lambda: body["instance_id"] in listed(there, model=body["model"]), "it is known")
            # Events are pushed to each of them.
            assert push(there, body, 0, block(0)).json()["applied"] == 1
            assert shown(here, body)["state"] == "pending"
            register(there, body | {"block_tokens": 8}, replace="true")
            until(lambda: shown(here, body)["block_tokens"] == 8, "it is replaced")
            there.delete(f"/v1/engines/{body['instance_id']}")
            until(lambda: not listed(here, model=body["model"]), "it is forgotten")
    finally:
        assert other.stop() == 0, other.log()
