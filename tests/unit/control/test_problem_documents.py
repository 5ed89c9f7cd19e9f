"""Every error of `/v1` as a caller reads it, and as OpenAPI declares it."""

import json
from typing import Annotated, Any

import httpx
import pytest
from fastapi import FastAPI, Header, HTTPException, Path, Query
from pydantic import BaseModel, ConfigDict, Field, field_validator

from app.clock import SystemClock, SystemIds
from app.errors import ErrorCode, FieldError, NexusError
from app.metrics import Metrics
from app.problem import Problem, install_handlers, problem_response, problem_responses
from app.problem_fields import MAX_FINDINGS, pointer
from app.request_context import RequestContextMiddleware

SECRET = "hunter2-hunter2"


class Inner(BaseModel):
    model_config = ConfigDict(extra="forbid")
    tokens: list[Annotated[int, Field(strict=True, ge=0)]]


class Outer(BaseModel):
    model_config = ConfigDict(extra="forbid")
    name: str
    inner: Inner
    kind: str = "x"

    @field_validator("kind")
    @classmethod
    def known(cls, value: str) -> str:
        if value != "x":
            raise ValueError(f"unknown kind {value}")
        return value


def build() -> FastAPI:
    app = FastAPI()
    install_handlers(app)

    @app.post("/things", responses=problem_responses(400, ErrorCode.UNAUTHORIZED, 503))
    async def things(body: Outer) -> None:
        raise NexusError(ErrorCode.GENERATION_CONFLICT, "Send generation 8", internal=SECRET)

    @app.get("/things/{number}")
    async def thing(
        number: Annotated[int, Path(ge=1)],
        page_size: Annotated[int, Query(ge=1)] = 1,
        x_count: Annotated[int, Header()] = 0,
    ) -> None:
        raise NexusError(ErrorCode.NOT_FOUND, "No such thing")

    @app.get("/refuse/{code}")
    async def refuse(code: ErrorCode) -> None:
        raise NexusError(
            code, "Do this", errors=[FieldError("/a", ErrorCode.INVALID_FIELD, "must be b")]
        )

    @app.get("/framework/{status}")
    async def framework(status: int) -> None:
        raise HTTPException(status, detail=SECRET, headers={"X-Kept": "yes"})

    @app.get("/bug")
    async def bug() -> None:
        raise RuntimeError(SECRET)

    return app


@pytest.fixture
async def client():
    metrics = Metrics(version="0", implementation="reference")
    app = RequestContextMiddleware(build(), clock=SystemClock(), ids=SystemIds(), metrics=metrics)
    transport = httpx.ASGITransport(app=app)
    async with httpx.AsyncClient(transport=transport, base_url="http://t") as client:
        yield client


def problem(response: httpx.Response) -> dict[str, Any]:
    assert response.headers["content-type"] == "application/problem+json"
    document = response.json()
    Problem.model_validate(document, strict=False, extra="forbid")
    assert document["status"] == response.status_code
    assert document["type"] == f"urn:nexuskv:error:{document['code']}"
    assert document["request_id"] == response.headers["x-request-id"]
    assert SECRET not in response.text
    return document


async def test_a_domain_error_says_what_to_do_and_hides_the_rest(client) -> None:
    response = await client.post("/things", json={"name": "n", "inner": {"tokens": []}})
    document = problem(response)
    assert response.status_code == 409
    assert document["code"] == "generation_conflict"
    assert document["detail"] == "Send generation 8"
    assert document["instance"] == "/things"
    assert document["errors"] == []


@pytest.mark.parametrize("code", list(ErrorCode))
async def test_every_code_has_a_document(client, code: ErrorCode) -> None:
    response = await client.get(f"/refuse/{code}")
    document = problem(response)
    assert document["code"] == code
    assert document["title"]
    assert document["errors"] == [{"pointer": "/a", "code": "invalid_field", "detail": "must be b"}]
    assert ("retry-after" in response.headers) == (response.status_code == 503)
    assert (response.headers.get("www-authenticate") == "Bearer") == (response.status_code == 401)


@pytest.mark.parametrize(
    ("body", "code", "at"),
    [
        ({"inner": {"tokens": []}}, "missing_field", "/name"),
        ({"name": "n", "inner": {}}, "missing_field", "/inner/tokens"),
        ({"name": "n", "inner": {"tokens": [1, True]}}, "invalid_field", "/inner/tokens/1"),
        ({"name": SECRET, "inner": {"tokens": [SECRET]}}, "invalid_field", "/inner/tokens/0"),
        ({"name": "n", "inner": {"tokens": [], "a/b~": 1}}, "unknown_field", "/inner/a~1b~0"),
        ({"name": "n", "inner": {"tokens": []}, "kind": SECRET}, "invalid_field", "/kind"),
        ([], "invalid_body", ""),
        ("text", "invalid_body", ""),
    ],
)
async def test_an_invalid_body_names_the_place_and_not_the_value(
    client, body: Any, code: str, at: str
) -> None:
    response = await client.post("/things", json=body)
    document = problem(response)
    assert response.status_code == 400
    assert document["code"] == code
    assert [finding["pointer"] for finding in document["errors"]] == [at]
    assert document["errors"][0]["code"] == code
    assert document["detail"]


@pytest.mark.parametrize("body", [b"", b"{", b"{'a':1}", b'{"a":}', b"\xff\xfe", b"[" * 100_000])
async def test_malformed_json_is_named_so(client, body: bytes) -> None:
    response = await client.post(
        "/things", content=body, headers={"content-type": "application/json"}
    )
    assert response.status_code == 400
    assert problem(response)["code"] == ("missing_field" if body == b"" else "invalid_json")


async def test_parameters_are_named_by_their_place(client) -> None:
    response = await client.get("/things/0?page_size=many", headers={"x-count": SECRET})
    document = problem(response)
    assert response.status_code == 400
    pointers = [finding["pointer"] for finding in document["errors"]]
    assert pointers == ["/path/number", "/query/page_size", "/header/x-count"]


async def test_thousands_of_findings_are_cut_and_counted(client) -> None:
    body = {"name": "n", "inner": {"tokens": [-1] * (MAX_FINDINGS + 900)}}
    document = problem(await client.post("/things", json=body))
    assert len(document["errors"]) == MAX_FINDINGS
    assert "900 more" in document["detail"]


async def test_a_giant_field_name_is_not_sent_back(client) -> None:
    response = await client.post("/things", json={"k" * 100_000: 1})
    assert problem(response)["code"] == "missing_field"
    assert len(response.content) < 2_000


async def test_paths_and_methods_that_do_not_exist(client) -> None:
    missing = await client.get("/no%20such%0Apath")
    assert problem(missing)["code"] == "not_found"
    assert problem(missing)["instance"] == "/no%20such%0Apath"
    wrong = await client.delete("/things")
    assert wrong.status_code == 405
    assert problem(wrong)["code"] == "method_not_allowed"
    assert wrong.headers["allow"] == "POST"


@pytest.mark.parametrize(
    ("status", "code"),
    [
        (401, "unauthorized"),
        (403, "forbidden"),
        (413, "request_too_large"),
        (415, "unsupported_media_type"),
        (418, "invalid_body"),
        (501, "internal_error"),
        (503, "overloaded"),
    ],
)
async def test_errors_of_the_framework_keep_status_and_headers(
    client, status: int, code: str
) -> None:
    response = await client.get(f"/framework/{status}")
    assert response.status_code == status
    assert problem(response)["code"] == code
    assert response.headers["x-kept"] == "yes"


async def test_a_bug_is_500_and_says_nothing(client, log_stream) -> None:
    response = await client.get("/bug", headers={"x-request-id": "find-me"})
    document = problem(response)
    assert response.status_code == 500
    assert document["code"] == "internal_error"
    logged = [json.loads(line) for line in log_stream.getvalue().splitlines()]
    unhandled = [line for line in logged if line["event"] == "unhandled_error"]
    assert [line["request_id"] for line in unhandled] == ["find-me"]
    assert "RuntimeError" in unhandled[0]["exception"]


def test_a_problem_can_be_made_without_a_request() -> None:
    status, headers, body = problem_response(
        NexusError(ErrorCode.OVERLOADED, "Later"), "r-1", extra_headers={"X-A": "b"}
    )
    assert status == 503
    assert dict(headers)[b"content-length"] == str(len(body)).encode()
    assert dict(headers)[b"x-a"] == b"b"
    assert json.loads(body)["instance"] is None


def test_pointers_of_hostile_depth_are_cut() -> None:
    assert len(pointer(["body", *["deep"] * 1000])) <= 512


def test_openapi_declares_problems_and_no_generated_422() -> None:
    document = build().openapi()
    schemas = document["components"]["schemas"]
    assert "HTTPValidationError" not in json.dumps(document)
    assert "ValidationError" not in schemas
    assert set(Problem.model_fields) == set(schemas["Problem"]["properties"])
    responses = document["paths"]["/things"]["post"]["responses"]
    assert set(responses) == {"200", "400", "401", "503"}
    media = responses["401"]["content"]
    assert list(media) == ["application/problem+json"]
    assert media["application/problem+json"]["schema"]["properties"]["code"]["enum"] == [
        "unauthorized"
    ]
    assert "WWW-Authenticate" in responses["401"]["headers"]
    assert "Retry-After" in responses["503"]["headers"]
    # A route that declares nothing still declares what its parameters can cause.
    assert "400" in document["paths"]["/things/{number}"]["get"]["responses"]
