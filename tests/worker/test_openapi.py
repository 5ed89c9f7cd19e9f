"""The published document of a worker's port is what the port does: routes, tokens, bodies.

That answers are the declared ones is checked with every request of the other tests in this folder.
"""

import json
import socket
from typing import Any

import jsonschema
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from schemathesis.specs.openapi.definitions import OPENAPI_31
from starlette.routing import Route

from app.clock import SystemClock, SystemIds
from app.contract.findings import Shape
from app.errors import ERROR_RULES, ErrorCode, NexusError
from app.problem import MEDIA_TYPE
from app.transfer.tokens import Direction
from app.transfer.wire import FinishSink, NewSink, NewTransfer
from app.worker.node import NodeSettings, WorkerNode
from app.worker.openapi import DIRECTION_KEY, worker_document
from tests.worker.published import component, operations, validator
from tests.worker.rig import MIB, SECRET, Worker

OPERATIONS = operations()
IDS = [f"{method} {path}" for method, path, _ in OPERATIONS]
E = ErrorCode
# What no other service answers.
OF_WORKERS = {
    *(E.CHECKSUM_MISMATCH, E.LENGTH_REQUIRED, E.RANGE_NOT_SATISFIABLE, E.WORKER_FULL),
    *(E.SINK_CONFLICT, E.SINK_NOT_COMPLETE, E.STALE_GENERATION),
}


def filled(path: str) -> str:
    return path.replace("{payload_id}", "p").replace("{sink_id}", "s").replace("{session_id}", "x")


def request(worker: Worker, method: str, path: str, direction: Direction) -> int:
    """The status of a request for payload `p` or sink `s`, with a token for that direction."""
    payload = "p" if "payload_id" in path or "/transfers" in path else ""
    sink = "s" if "sink_id" in path or "/transfers" in path else ""
    body: Any = {"engine_id": "engine-1", "engine_generation": 1}
    if path == "/v1/transfers":
        body = worker.order(worker, "p", "x", target_sink_id="s")
    elif path == "/v1/sinks":
        body |= {"payload_bytes": 4096, "sink_id": "s"}
    options = {} if method in ("get", "head") else {"content": json.dumps(body)}
    answer = worker.ask(method.upper(), filled(path), direction, payload, sink, **options)
    return answer.status_code


def test_the_document_is_served_and_whole(workers) -> None:
    worker, _ = workers
    document = worker_document()
    answer = worker.http.get(worker.url + "/openapi.json")
    assert answer.json() == document
    jsonschema.Draft202012Validator(OPENAPI_31).validate(document)
    for schema in document["components"]["schemas"].values():
        jsonschema.Draft202012Validator.check_schema(schema)
    names = [operation["operationId"] for _, _, operation in OPERATIONS]
    assert len(names) == len(set(names))


async def test_every_route_that_is_served_is_published_and_the_other_way_round() -> None:
    with socket.create_server(("127.0.0.1", 0)) as data:
        options = NodeSettings("n", MIB, (SECRET,), "http://127.0.0.1:1", "127.0.0.1:1")
        node = WorkerNode(options, data, SystemClock(), SystemIds())
        routes = node.app.routes
        assert all(isinstance(route, Route) for route in routes)
        served = {(method.lower(), route.path) for route in routes for method in route.methods}
        await node.stop(1)
    # The framework adds HEAD to every GET of its own accord.
    published = {(method, path) for method, path, _ in OPERATIONS}
    heads = {("head", path) for method, path in published if method == "get"}
    assert served - heads == published - heads
    assert published <= served


@pytest.mark.parametrize(("method", "path", "operation"), OPERATIONS, ids=IDS)
def test_every_operation_answers_with_its_own_token_only(workers, method, path, operation) -> None:
    worker, _ = workers
    url = worker.url + filled(path)
    if DIRECTION_KEY not in operation:
        assert worker.http.request(method, url).status_code == 200
        assert "security" not in operation
        return
    assert worker.http.request(method, url).status_code == 401
    own = Direction(operation[DIRECTION_KEY])
    for direction in Direction:
        found = request(worker, method, path, direction)
        assert (found in (401, 403)) == (direction is not own), direction
    if path == "/v1/sinks":
        worker.sinks.append(("s", 1))


def test_every_error_is_declared_where_it_can_happen() -> None:
    declared = {
        (ErrorCode(code), int(status))
        for _, _, operation in OPERATIONS
        for status, response in operation["responses"].items()
        if MEDIA_TYPE in response["content"]
        for code in response["content"][MEDIA_TYPE]["schema"]["properties"]["code"]["enum"]
    }
    for code, status in declared:
        assert status == ERROR_RULES[code].status
    assert {code for code, _ in declared} > OF_WORKERS
    for _, path, operation in OPERATIONS:
        if path.startswith("/v1/"):
            assert {"400", "401", "403", "413", "500"} <= set(operation["responses"]), path


WELL_FORMED = {
    "NewSink": {"payload_bytes": 1, "engine_id": "e", "engine_generation": 0},
    "FinishSink": {"engine_id": "e", "engine_generation": 0},
    "NewTransfer": {
        "session_id": "s",
        "source": {"worker": "w", "payload_id": "p"},
        "backend": "staged_copy",
        "target_sink_id": "s",
    },
}
SHAPES = {
    "NewSink": Shape(NewSink, "sink"),
    "FinishSink": Shape(FinishSink, "order"),
    "NewTransfer": Shape(NewTransfer, "transfer"),
}
VALUES = st.one_of(
    st.none(),
    st.booleans(),
    st.sampled_from([-1, 0, 1, 600, 601, 86_400, 86_401, 2**32 - 1, 2**32, 2**63 - 1, 2**63]),
    st.floats(-1, 601, allow_nan=False).filter(lambda value: not value.is_integer()),
    st.sampled_from(
        ["", "a", "a/b", "a\n", "-a", "0" * 32, "A" * 32, "h:1", "h:x", "é", "zero_copy"]
    ),
    st.sampled_from([128, 129, 255, 256, 512, 513, 2048, 2049]).map(lambda count: "x" * count),
    st.just("01890000-0000-7000-8000-000000000001"),
    st.just([]),
    st.just({}),
)


@st.composite
def bodies(draw: st.DrawFn, name: str) -> dict[str, Any]:
    """A body that is well formed, with a few fields changed, added or left out."""
    body = json.loads(json.dumps(WELL_FORMED[name]))
    places = [(body, component(name)["properties"])]
    if name == "NewTransfer":
        places.append((body["source"], component("TransferSource")["properties"]))
    for _ in range(draw(st.integers(0, 3))):
        target, fields = draw(st.sampled_from(places))
        field = draw(st.sampled_from([*fields, "unknown"]))
        if draw(st.booleans()):
            target[field] = draw(VALUES)
        else:
            target.pop(field, None)
    return body


def accepts(name: str, body: dict[str, Any]) -> bool:
    try:
        order = SHAPES[name].accept(json.dumps(body).encode())
    except NexusError:
        return False
    if isinstance(order, NewTransfer):
        return (order.target_sink_id is None) != (order.target_payload_id is None)
    return True


@pytest.mark.parametrize("name", WELL_FORMED)
@settings(max_examples=300)
@given(data=st.data())
def test_a_body_is_accepted_exactly_when_its_schema_says_so(name, data) -> None:
    body = data.draw(bodies(name))
    assert accepts(name, body) == validator(component(name)).is_valid(body), body
