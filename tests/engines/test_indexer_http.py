"""`/indexer` in every spelling, and what it says of workers."""

from array import array
from collections.abc import Iterator
from typing import Any
from uuid import uuid4

import httpx
import pytest

from tests.engines.rig import BLOCK, prompt, told
from tests.engines.wires import packed
from tests.fixtures.service import ServiceProcess
from tests.process.waiting import until

LONG = prompt(3)
THERE = {"endpoint": "tcp://127.0.0.1:9", "block_size": BLOCK}


@pytest.fixture(scope="module")
def client(service: ServiceProcess) -> Iterator[httpx.Client]:
    with service.client() as opened:
        yield opened


def pushed(client: httpx.Client, **fields: Any) -> dict[str, Any]:
    """An engine whose events are pushed."""
    body = {
        "instance_id": f"i-{uuid4()}", "model": f"m-{uuid4()}", "block_tokens": BLOCK,
        "tenants": ["default"],
    } | fields  # fmt: skip
    client.post("/v1/engines", json=body).raise_for_status()
    return body


def push(client: httpx.Client, body: dict[str, Any], sequence: int, *events: Any, **params: Any):
    client.post(
        f"/v1/engines/{body['instance_id']}/events",
        params={"sequence": sequence, "dp_rank": body.get("dp_rank", 0)} | params,
        content=packed(*events, at_s=sequence + 0.5, rank=body.get("dp_rank", 0)),
        headers={"content-type": "application/octet-stream"},
    ).raise_for_status()


def workers(client: httpx.Client, **params: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = client.get("/indexer/workers", params=params).json()
    return found


def test_a_packed_body_takes_every_field_that_one_of_json_takes(client):
    body = pushed(client, revision="salted", tenants=["default"])
    push(client, body, 0, told(LONG))
    fields = {"tenant_id": "default", "block_size": BLOCK, "instance_id": body["instance_id"]}
    for salt in ("additional_salt", "additionalsalt"):
        for model in ("model", "modelname", "model_name"):
            asked = fields | {model: body["model"], salt: "salted", "lora_id": -1}
            by_url = client.post(
                "/indexer/query",
                params=asked,
                content=array("I", LONG).tobytes(),
                headers={"content-type": "application/octet-stream"},
            )
            by_json = client.post("/indexer/query", json=asked | {"token_ids": LONG})
            assert by_url.status_code == 200, by_url.text
            assert by_url.json() == by_json.json()
            assert by_url.headers["x-nexuskv-match"] == "hit"


@pytest.mark.parametrize(
    "fields",
    [{"model": "a", "modelname": "b"}, {"model_name": "a", "modelname": "b"},
     {"model": "a", "additionalsalt": "x", "additional_salt": "y"}],
)  # fmt: skip
def test_spellings_of_one_field_must_agree(client, fields):
    answer = client.post("/indexer/query", json=fields | {"token_ids": [1]})
    assert (answer.status_code, answer.json()["code"]) == (400, "invalid_field")
    assert "must not differ" in answer.json()["error"]


def test_an_instance_may_be_named_by_its_address(client):
    name, model = f"10.0.0.7:{uuid4().int % 60_000}", f"m-{uuid4()}"
    body = THERE | {"instance_id": name, "modelname": model}
    assert client.post("/indexer/register", json=body).status_code == 200
    [found] = workers(client, modelname=model)
    assert found["instance_id"] == name
    [report] = client.get("/v1/doctor", params={"engine": name}).json()["reports"]
    assert report["instance_id"] == name
    assert client.delete(f"/v1/engines/{name}").status_code == 204
    assert workers(client, modelname=model) == []
    push_there = pushed(client, instance_id=name)
    push(client, push_there, 0, told(LONG))
    answer = client.post(
        "/indexer/query", json={"model_name": push_there["model"], "token_ids": LONG}
    )
    assert answer.json()["scores"] == {name: {"0": 12}}


@pytest.mark.parametrize("name", ["i/4:80", "../x", "a|b", "a\n", "[::1]:80", "a b", "", "x" * 129])
def test_names_that_do_not_fit_a_path_are_refused(client, name):
    for call, status in (("register", 400), ("unregister", 400)):
        answer = client.post(
            f"/indexer/{call}", json=THERE | {"instance_id": name, "modelname": "m"}
        )
        assert (answer.status_code, answer.json()["code"]) == (status, "invalid_field")


def test_workers_say_how_they_are_and_why(client):
    body = pushed(client)
    second = pushed(client, **body | {"dp_rank": 1})
    unlike = pushed(client)
    [worker] = workers(client, model_name=body["model"])
    assert (worker["source"], worker["status"]) == ("push", "pending")
    assert worker["endpoints"] == {"0": None, "1": None}
    push(client, body, 0, told(LONG))
    push(client, second, 0, told(LONG))
    for spelling in ("model", "modelname", "model_name"):
        [worker] = workers(client, **{spelling: body["model"]})
        assert worker["listeners"] == {
            "0": {"endpoint": None, "status": "active"},
            "1": {"endpoint": None, "status": "active"},
        }
    push(client, second, 7, lost="true")
    [worker] = workers(client, model_name=body["model"])
    assert (worker["status"], worker["listeners"]["0"]["status"]) == ("failed", "active")
    assert worker["listeners"]["1"]["status"] == "failed"
    assert "6 frames are missing" in worker["listeners"]["1"]["last_error"]
    named = {one["instance_id"] for one in workers(client)}
    assert {body["instance_id"], unlike["instance_id"]} <= named
    differing = client.get("/indexer/workers", params={"modelname": "a", "model_name": "b"})
    assert (differing.status_code, differing.json()["code"]) == (400, "invalid_field")


def test_silence_is_a_failure(own_service: ServiceProcess) -> None:
    own_service.stop()
    own_service.env["NEXUSKV_ENGINE_STALE_S"] = "3"
    own_service.start()
    with own_service.client() as client:
        body = pushed(client)
        push(client, body, 0, told(LONG))

        def failed() -> bool:
            return workers(client, modelname=body["model"])[0]["status"] == "failed"

        until(failed, "it was silent for too long")
        [worker] = workers(client, modelname=body["model"])
        assert "Nothing was heard for too long" in worker["listeners"]["0"]["last_error"]
