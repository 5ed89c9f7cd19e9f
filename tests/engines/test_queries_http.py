"""Queries over HTTP: `/v1/match`, and the interface that indexers have in common."""

import base64
import json
import time
from array import array
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from datetime import datetime
from typing import Any
from uuid import uuid4

import httpx
import pytest

from app.bridge.http import HELD_S
from app.control.keys import Scope
from tests.bridge.test_at_once import ask, connection
from tests.engines.rig import BLOCK, prompt, told
from tests.engines.wires import packed, stored
from tests.fixtures.service import ServiceProcess
from tests.fixtures.wire import TOKENS, new_tenant, registration
from tests.fixtures.wire import register as register_states

LONG = prompt(6)
PACKED = array("I", LONG).tobytes()
MOVED = {"token_ids": [], "block_size": 0, "medium": "CPU"}


class Fleet:
    """Two engines of a tenant and a model of their own: `near` with 24 tokens, `far` with 8."""

    def __init__(self, service: ServiceProcess) -> None:
        self.tenant, self.model = new_tenant(), f"m-{uuid4()}"
        self.near, self.far = f"near-{uuid4()}", f"far-{uuid4()}"
        self.admin = service.client()
        self.reader = service.client(service.key(Scope.STATES_READ, tenants=(self.tenant,)))
        self.tell(self.near, told(LONG[:16]), told(LONG[16:], 5, parent_block_hash=4, medium="CPU"))
        self.tell(self.far, told(LONG[:8]))

    def tell(self, name: str, *events: Any) -> None:
        registration = {
            "instance_id": name, "model": self.model, "block_tokens": BLOCK,
            "tenants": [self.tenant],
        }  # fmt: skip
        self.admin.post("/v1/engines", json=registration).raise_for_status()
        self.admin.post(
            f"/v1/engines/{name}/events",
            params={"sequence": 0},
            content=packed(*events),
            headers={"content-type": "application/octet-stream"},
        ).raise_for_status()

    def query(self, **more: Any) -> dict[str, Any]:
        return {"tenant": self.tenant, "model": self.model} | more

    def match(self, *queries: dict[str, Any]) -> list[dict[str, Any]]:
        answer = self.reader.post("/v1/match", json={"queries": list(queries)})
        return answer.raise_for_status().json()["results"]

    def packed(self, path: str, **params: str) -> httpx.Response:
        return self.reader.post(
            path,
            params=params,
            content=PACKED,
            headers={"content-type": "application/octet-stream"},
        )


@pytest.fixture(scope="module")
def fleet(service: ServiceProcess) -> Iterator[Fleet]:
    made = Fleet(service)
    yield made
    made.admin.close()
    made.reader.close()


Clients = Callable[..., httpx.Client]


@pytest.fixture
def clients(service: ServiceProcess) -> Iterator[Clients]:
    """Clients with a key, or the admin's; "" for none. They are closed."""
    with ExitStack() as stack:
        yield lambda key=None: stack.enter_context(service.client(key))


def test_every_form_of_a_prompt_has_the_same_answer(fleet: Fleet) -> None:
    by_tokens, by_b64, by_hashes, nothing = fleet.match(
        fleet.query(tokens=LONG),
        fleet.query(tokens_b64=base64.b64encode(PACKED).decode()),
        fleet.query(hashes=[1, 2, 3, 4, 5, 6]),
        fleet.query(tokens=prompt(6, seed=9)),
    )
    (by_body,) = fleet.packed("/v1/match", tenant=fleet.tenant, model=fleet.model).json()["results"]

    def matched(answer: dict[str, Any]) -> list[tuple[str, int]]:
        return [(each["instance_id"], each["matched_tokens"]) for each in answer["candidates"]]

    assert matched(by_tokens) == [(fleet.near, 24), (fleet.far, 8)]
    assert matched(by_tokens) == matched(by_b64) == matched(by_hashes) == matched(by_body)
    first = by_tokens["candidates"][0]
    assert first["tiers"] == {
        "gpu": {"only": 16, "cumulative": 16}, "cpu": {"only": 0, "cumulative": 24},
    }  # fmt: skip
    assert (first["state"], first["epoch"], first["last_sequence"], first["gap"]) == (
        "live", 1, 0, False,
    )  # fmt: skip
    assert (nothing["result"], nothing["reason"]) == ("miss", "not_cached")
    assert nothing["engines"] == {"asked": 2, "live": 2, "pending": 0, "unknown": 0, "stale": 0}


def test_a_request_that_takes_long_is_answered_in_slices_like_a_short_one(fleet: Fleet) -> None:
    longer = array("I", [*LONG, *range(900_000)]).tobytes()
    one = base64.b64encode(longer[: 4 * 60_000]).decode()
    many = fleet.match(*[fleet.query(tokens_b64=one)] * 16)
    (whole,) = fleet.match(fleet.query(tokens_b64=base64.b64encode(longer).decode()))
    (by_hash,) = fleet.match(fleet.query(hashes=list(range(1, 60_000))))
    for found in (*many, whole, by_hash):
        assert (found["result"], found["matched_tokens"]) == ("hit", 24)
        assert [each["instance_id"] for each in found["candidates"]] == [fleet.near, fleet.far]
    refused = fleet.reader.post(
        "/v1/match", json={"queries": [fleet.query(hashes=list(range(40_000)))] * 2}
    )
    assert (refused.status_code, refused.json()["code"]) == (413, "query_too_large")
    listed = fleet.admin.get("/v1/engines", params={"model": fleet.model}).json()
    assert listed["forgotten"] == 0


def test_a_tenant_without_engines_misses(
    fleet: Fleet, service: ServiceProcess, clients: Clients
) -> None:
    other = new_tenant()
    reader = clients(service.key(Scope.STATES_READ, tenants=(other,)))
    answer = reader.post(
        "/v1/match", json={"queries": [fleet.query(tokens=LONG) | {"tenant": other}]}
    )
    (result,) = answer.json()["results"]
    assert (result["result"], result["reason"]) == ("miss", "no_engine")


def test_refusals_are_problems(fleet: Fleet, service: ServiceProcess, clients: Clients) -> None:
    foreign = fleet.reader.post(
        "/v1/match", json={"queries": [fleet.query(tokens=LONG) | {"tenant": "somebody"}]}
    )
    assert (foreign.status_code, foreign.json()["code"]) == (403, "tenant_forbidden")
    without = clients("").post("/v1/match", json={})
    assert (without.status_code, without.headers["www-authenticate"]) == (401, "Bearer")
    scoped = clients(service.key(Scope.BRIDGE)).post("/v1/match", json={})
    assert scoped.status_code == 403
    text = fleet.reader.post("/v1/match", content=b"a", headers={"content-type": "text/plain"})
    assert (text.status_code, text.json()["code"]) == (415, "unsupported_media_type")
    large = fleet.reader.post("/v1/match", content=b" " * (8 * 1024 * 1024 + 1))
    assert (large.status_code, large.json()["code"]) == (413, "request_too_large")
    bad = fleet.reader.post("/v1/match", json={}, headers={"x-request-id": "r-1"})
    assert (bad.json()["code"], bad.json()["request_id"]) == ("missing_field", "r-1")
    assert bad.headers["content-type"] == "application/problem+json"
    assert fleet.reader.get("/v1/match").status_code == 405


def test_queries_that_left_out_blocks_of_an_unknown_kind_are_counted(
    service: ServiceProcess,
) -> None:
    fleet = Fleet(service)

    def counted() -> float:
        name = "nexuskv_engine_queries_unusable_kind_total "
        lines = fleet.admin.get("/metrics").text.splitlines()
        (found,) = [line for line in lines if line.startswith(name)]
        return float(found.removeprefix(name))

    try:
        before = counted()
        other = prompt(2, seed=3)
        fleet.tell(f"new-{uuid4()}", told(other, kv_cache_spec_kind="of_tomorrow"))
        (found,) = fleet.match(fleet.query(tokens=other))
        assert (found["result"], found["reason"]) == ("miss", "unknown_attention_kind")
        assert counted() == before + 1
    finally:
        fleet.admin.close()
        fleet.reader.close()


# ---- /indexer


def test_the_rfcs_spelling_counts_each_tier_alone(fleet: Fleet) -> None:
    answer = fleet.reader.post(
        "/indexer/query",
        json={"model": fleet.model, "block_size": BLOCK, "token_ids": LONG, "cache_salt": ""},
    )
    assert answer.json() == {
        fleet.tenant: {
            fleet.near: {"longest_matched": 24, "GPU": 16, "DP": {"0": 24}, "CPU": 0, "DISK": 0},
            fleet.far: {"longest_matched": 8, "GPU": 8, "DP": {"0": 8}, "CPU": 0, "DISK": 0},
        }
    }
    assert answer.headers["x-nexuskv-tier-counting"] == "only"
    assert answer.headers["x-nexuskv-match"] == "hit"
    other_blocks = fleet.reader.post(
        "/indexer/query", json={"model": fleet.model, "block_size": 64, "token_ids": LONG}
    )
    assert other_blocks.json() == {fleet.tenant: {}}
    one = fleet.reader.post(
        "/indexer/query_by_hash",
        json={"model": fleet.model, "seq_hashes": [1, 2], "instance_id": fleet.far},
    )
    assert list(one.json()[fleet.tenant]) == [fleet.far]


def test_the_other_spelling_counts_tiers_with_the_nearer_ones(fleet: Fleet) -> None:
    by_tokens = fleet.reader.post(
        "/indexer/query", json={"model_name": fleet.model, "token_ids": LONG}
    )
    assert by_tokens.json() == {
        "scores": {fleet.near: {"0": 16}, fleet.far: {"0": 8}},
        "frequencies": [2, 2, 1, 1],
        "instances": {
            fleet.near: {"longest_matched": 24, "gpu": 16, "dp": {"0": 24}, "cpu": 24, "disk": 24},
            fleet.far: {"longest_matched": 8, "gpu": 8, "dp": {"0": 8}, "cpu": 8, "disk": 8},
        },
    }
    assert by_tokens.headers["x-nexuskv-tier-counting"] == "cumulative"
    assert fleet.packed("/indexer/query", model_name=fleet.model).json() == by_tokens.json()
    by_hash = fleet.reader.post(
        "/indexer/query_by_hash",
        json={"model_name": fleet.model, "block_hashes": [1, 2, 3, 4, 5, 6]},
    )
    assert by_hash.json() == by_tokens.json()
    elsewhere = fleet.reader.post(
        "/indexer/query",
        json={"model_name": fleet.model, "routing_group": "blue", "token_ids": LONG},
    )
    assert (elsewhere.status_code, elsewhere.json()["error"]) == (
        404, f"no indexer for model={fleet.model} routing_group=blue",
    )  # fmt: skip


@pytest.mark.parametrize(
    ("call", "status", "code"),
    [
        (("query", {"model": "none-such", "token_ids": [1]}), 404, "not_found"),
        (("query", {"token_ids": [1]}), 400, "missing_field"),
        (("query", {"model": "m"}), 400, "missing_field"),
        (("query", {"model": "m", "token_ids": ["1"]}), 400, "invalid_field"),
        (("query", {"model": "m", "token_ids": [1], "tenant_id": "x"}), 403, "tenant_forbidden"),
        (("query_by_hash", {"model_name": "m"}), 400, "missing_field"),
        (
            ("query_by_hash", {"model_name": "m", "block_hashes": [1], "cache_salt": "s"}),
            400,
            "invalid_field",
        ),
        (("register", {"model_name": "m"}), 403, "forbidden"),
        (("unregister", {"model_name": "m"}), 403, "forbidden"),
    ],
)
def test_indexer_errors_have_their_shape(fleet: Fleet, call, status: int, code: str) -> None:
    answer = fleet.reader.post(f"/indexer/{call[0]}", json=call[1])
    assert (answer.status_code, answer.json()["code"]) == (status, code)
    assert answer.json()["error"]
    assert answer.headers["content-type"] == "application/json"


def test_errors_of_every_layer_have_that_shape(clients: Clients) -> None:
    for answer in (
        clients("").post("/indexer/register", json={}),
        clients().post("/indexer/register", json={}),
        clients().post("/indexer/register", content=b"{"),
        clients().get("/indexer/query"),
        clients().get("/indexer/nothing"),
        clients().post("/indexer/unregister", content=b" " * (8 * 1024 * 1024 + 1)),
    ):
        assert answer.status_code >= 400
        assert set(answer.json()) == {"error", "code"}, answer.request.url


def test_engines_come_and_go_in_both_spellings(clients: Clients) -> None:
    admin, model, number = clients(), f"m-{uuid4()}", str(uuid4().int % 2**40)
    there = {"endpoint": "tcp://127.0.0.1:9", "block_size": 16}
    for rank in (0, 1):
        answer = admin.post(
            "/indexer/register",
            json=there | {"instance_id": int(number), "model_name": model, "dp_rank": rank},
        )
        assert (answer.status_code, answer.json()) == (201, {"status": "ok"})
    name = f"inst-{uuid4()}"
    answer = admin.post(
        "/indexer/register",
        json=there | {"instance_id": name, "modelname": model, "type": "SGLang", "dp_rank": 0},
    )
    assert (answer.status_code, answer.json()) == (
        200, {"status": "registered successfully", "instance_id": name},
    )  # fmt: skip
    workers = admin.get("/indexer/workers", params={"model_name": model}).json()
    assert [worker["instance_id"] for worker in workers] == [int(number), name]
    assert workers[0] | {"listeners": None} == {
        "instance_id": int(number), "source": "zmq", "status": "pending", "model_name": model,
        "routing_group": "default", "block_size": 16, "listeners": None,
        "endpoints": {"0": "tcp://127.0.0.1:9", "1": "tcp://127.0.0.1:9"},
    }  # fmt: skip
    clash = admin.post(
        "/indexer/register",
        json=there | {"instance_id": name, "modelname": model, "block_size": 32, "dp_rank": 0},
    )
    assert (clash.status_code, clash.json()["code"]) == (409, "engine_conflict")
    gone = admin.post("/indexer/unregister", json={"instance_id": name, "modelname": model})
    assert gone.json() == {
        "status": "unregistered successfully", "removed_instances": [f"{name}|default|0"],
    }  # fmt: skip
    leave = {"instance_id": int(number), "model_name": model}
    assert admin.post("/indexer/unregister", json=leave).json() == {"status": "ok"}
    assert admin.post("/indexer/unregister", json=leave).status_code == 404
    assert admin.get("/indexer/workers", params={"model_name": model}).json() == []


def test_a_prompt_that_may_be_somewhere_is_unknown_and_not_a_miss(clients: Clients) -> None:
    admin, model = clients(), f"m-{uuid4()}"
    admin.post(
        "/indexer/register",
        json={
            "endpoint": "tcp://127.0.0.1:9", "block_size": 16, "instance_id": f"i-{uuid4()}",
            "model_name": model,
        },
    ).raise_for_status()  # fmt: skip
    answer = admin.post("/indexer/query", json={"model_name": model, "token_ids": LONG})
    assert (answer.status_code, answer.headers["x-nexuskv-match"]) == (200, "unknown")
    assert answer.json() == {"scores": {}, "frequencies": [], "instances": {}}


def test_media_without_a_tier_of_their_own_count_as_the_farthest(
    fleet: Fleet,
) -> None:
    name = f"moved-{uuid4()}"
    tokens = prompt(2, seed=77)
    fleet.tell(name, told(tokens), stored([1, 2], **MOVED | {"medium": "OBJ"}))
    answer = fleet.reader.post("/indexer/query", json={"model": fleet.model, "token_ids": tokens})
    assert answer.json()[fleet.tenant][name] == {
        "longest_matched": 8, "GPU": 8, "DP": {"0": 8}, "CPU": 0, "DISK": 8,
    }  # fmt: skip


def test_a_query_in_pieces_is_answered_like_a_whole_one(
    fleet: Fleet, service: ServiceProcess
) -> None:
    key = service.key(Scope.STATES_READ, tenants=(fleet.tenant,))
    listed = json.dumps({"model_name": fleet.model, "token_ids": LONG, "lora_name": ""}).encode()
    nested = json.dumps(
        {"model_name": fleet.model, "x": {"token_ids": [7]}, "token_ids": LONG}
    ).encode()
    path, with_model = "/indexer/query", f"/indexer/query?model_name={fleet.model}"
    asked = (
        (path, "application/json", listed),
        (path, "application/json", nested),
        (path, "application/json", listed + b" " * 70_000),
        (with_model, "application/octet-stream", PACKED),
    )
    answers = []
    for target, media, body in asked:
        head = (
            f"POST {target} HTTP/1.1\r\nhost: 127.0.0.1\r\nauthorization: Bearer {key}\r\n"
            f"content-type: {media}\r\ncontent-length: {len(body)}\r\n\r\n"
        ).encode()
        ways = ([head + body], [head, body], [head + body[:9], body[9:40], body[40:]])
        with connection(service) as sock:
            for pieces in ways:
                for piece in pieces[:-1]:
                    sock.sendall(piece)
                    time.sleep(0.02)
                (answer,) = ask(sock, pieces[-1])
                answers.append(answer)
            # Slower than is waited for without a task; and the connection goes on.
            sock.sendall(head + body[:9])
            time.sleep(HELD_S * 2)
            answers += ask(sock, body[9:] + head + body, answers=2)
    assert {status for status, _, _ in answers} == {200}
    assert {headers["x-nexuskv-match"] for _, headers, _ in answers} == {"hit"}
    assert len({body for _, _, body in answers}) == 1
    assert json.loads(answers[0][2])["scores"] == {fleet.near: {"0": 16}, fleet.far: {"0": 8}}


def test_registered_states_are_matched_to_the_token_where_a_query_asks(service):
    tenant = new_tenant()
    asked = {"tenant": tenant, "model": "model-1", "tokens": [*TOKENS, 5, 6]}
    scope = {"engine_family": "sglang", "semantic_type": "mha_kv"}
    with service.client() as client:
        register_states(client, registration(tenant, "registered"))
        answer = client.post(
            "/v1/match", json={"queries": [asked | {"states": scope}, asked]}
        ).json()
        refused = client.post(
            "/v1/match",
            json={"queries": [{"tenant": tenant, "model": "m", "hashes": [1], "states": scope}]},
        )
    # No engine of the model is registered: that it is there is known by its registration.
    both, engines = answer["results"]
    assert (both["result"], both["reason"], both["matched_tokens"]) == ("hit", None, len(TOKENS))
    assert (engines["result"], engines["reason"]) == ("miss", "no_engine")
    [found, nothing] = answer["states"]
    assert nothing is None
    assert (found["freshness"], found["left_off"]) == ("current", 0)
    [state] = found["candidates"]
    assert state["entry_id"] == "registered"
    assert (state["matched_tokens"], state["classification"]) == (len(TOKENS), "prefix")
    assert (state["learnt"], state["freshness"]) == ("registration", "current")
    assert datetime.fromisoformat(state["registered_at"]).tzinfo is not None
    assert 0 <= state["age_us"] < 60_000_000
    assert (state["source"], state["tier"], state["worker"]) == ("state", "host_dram", "node-a")
    assert refused.status_code == 400
    assert refused.json()["errors"][0]["pointer"] == "/queries/0/states"
