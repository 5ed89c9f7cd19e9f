"""What the document promises at its edges: media types, methods, and ids on every refusal."""

from uuid import UUID

import pytest

from app.problem import MEDIA_TYPE
from tests.fixtures.service import ServiceProcess
from tests.fixtures.wire import error_code, new_tenant, registration
from tests.process.waiting import until


def problem(answer, status: int, code: str):
    assert (answer.status_code, answer.headers["content-type"]) == (status, MEDIA_TYPE)
    document = answer.json()
    assert (document["status"], document["code"]) == (status, code)
    assert document["request_id"] == answer.headers["x-request-id"]
    return document


@pytest.mark.parametrize(
    "media_type", ["text/plain", "application/x-www-form-urlencoded", "application/jsonp", "*/*"]
)
def test_a_registration_of_another_media_type(service: ServiceProcess, media_type) -> None:
    with service.client() as client:
        answer = client.post(
            "/v1/states", content=b'{"entries": []}', headers={"content-type": media_type}
        )
    problem(answer, 415, "unsupported_media_type")


@pytest.mark.parametrize(
    "media_type", ["application/json", "Application/JSON; charset=utf-8", None]
)
def test_a_registration_of_the_declared_media_type(service: ServiceProcess, media_type) -> None:
    body = {"entries": [registration(new_tenant())]}
    headers = {} if media_type is None else {"content-type": media_type}
    with service.client() as client:
        request = client.build_request("POST", "/v1/states", json=body, headers=headers)
        if media_type is None:
            del request.headers["content-type"]
        assert client.send(request).status_code == 201


@pytest.mark.parametrize(
    ("path", "allow"),
    [
        ("/v1/states", "GET, POST"),
        (f"/v1/states/{UUID(int=0)}", "DELETE, GET"),
        ("/v1/decisions", "GET"),
        ("/livez", "GET"),
    ],
)
def test_an_undeclared_method_hears_of_all_declared_ones(
    service: ServiceProcess, path, allow
) -> None:
    with service.client() as client:
        for method in ("PUT", "PATCH", "OPTIONS", "TRACE"):
            answer = client.request(method, path)
            problem(answer, 405, "method_not_allowed")
            assert answer.headers["allow"] == allow, method


def test_a_refusal_of_the_bridge_can_be_quoted(service: ServiceProcess) -> None:
    with service.client() as client:
        named = client.post("/locus/v1/lookup", headers={"x-request-id": "mine"})
        made = client.post("/locus/v1/lookup", headers={"x-request-id": "not, ours"})
    assert error_code(named) == error_code(made) == (400, "invalid_json")
    assert named.headers["x-request-id"] == "mine"
    assert UUID(made.headers["x-request-id"]).version == 7
    # The line is written behind the answer.
    for request_id in ("mine", made.headers["x-request-id"]):
        line = f'"request_id":"{request_id}"'
        until(lambda line=line: line in service.log(), f"the log holds {line}", within_s=5)
