"""The published documents: what is checked in is what the code renders, and it is all there."""

from pathlib import Path
from typing import Any

import jsonschema
import pytest
from schemathesis.specs.openapi.definitions import OPENAPI_31

from app.bridge import schemas
from app.cli.openapi import documents, rendered
from app.errors import ERROR_RULES, ErrorCode
from app.problem import MEDIA_TYPE

OPENAPI = Path(__file__).resolve().parents[2] / "openapi"
BRIDGE = {"/locus/v1/lookup", "/locus/v1/estimate", "/locus/v1/materialize"}
METHODS = {"get", "post", "put", "patch", "delete"}
NAMES_IN_BODY = {
    "POST /v1/plans",
    "POST /v1/prefetches",
    "POST /v1/transfers",
    "POST /v1/worker-tokens",
}
# No route declares it: a declared operation has its method, so only undeclared ones meet it.
UNDECLARED = {ErrorCode.METHOD_NOT_ALLOWED}
# Of the control port of workers, which is another service.
OF_WORKERS = {
    ErrorCode.CHECKSUM_MISMATCH,
    ErrorCode.SINK_CONFLICT,
    ErrorCode.SINK_NOT_COMPLETE,
    ErrorCode.STALE_GENERATION,
    ErrorCode.LENGTH_REQUIRED,
    ErrorCode.RANGE_NOT_SATISFIABLE,
    ErrorCode.WORKER_FULL,
}


@pytest.fixture(scope="module")
def rendered_now() -> dict[str, dict[str, Any]]:
    return documents()


@pytest.fixture(scope="module")
def api(rendered_now) -> dict[str, Any]:
    return rendered_now["v1.json"]


def operations(api: dict[str, Any], prefix: str) -> list[tuple[str, dict[str, Any]]]:
    return [
        (f"{method.upper()} {path}", operation)
        for path, item in api["paths"].items()
        if path.startswith(prefix)
        for method, operation in item.items()
        if method in METHODS
    ]


def references(value: Any) -> set[str]:
    if isinstance(value, dict):
        found = {value["$ref"]} if isinstance(value.get("$ref"), str) else set()
        return found.union(*(references(item) for item in value.values()))
    if isinstance(value, list):
        return set().union(*(references(item) for item in value))
    return set()


def test_the_files_are_what_the_code_renders(rendered_now) -> None:
    assert {path.name for path in OPENAPI.glob("*.json")} == set(rendered_now)
    stale = [
        name
        for name, document in rendered_now.items()
        if (OPENAPI / name).read_text(encoding="utf-8") != rendered(document)
    ]
    assert not stale, f"run `make openapi` and commit openapi/: {stale}"


def test_rendering_is_deterministic(rendered_now) -> None:
    again = documents()
    for name, document in rendered_now.items():
        assert rendered(again[name]) == rendered(document)


def test_the_api_document_is_openapi_3_1(api) -> None:
    assert api["openapi"].startswith("3.1.")
    jsonschema.Draft202012Validator(OPENAPI_31).validate(api)
    for name, schema in api["components"]["schemas"].items():
        jsonschema.Draft202012Validator.check_schema(schema)
        assert schema or name == "JsonValue", name


def test_every_reference_leads_somewhere(api) -> None:
    found = references(api)
    assert "#/components/schemas/Problem" in found
    known = {f"#/components/schemas/{name}" for name in api["components"]["schemas"]}
    assert found <= known, found - known


def test_every_operation_has_its_own_id(api) -> None:
    ids = [operation["operationId"] for _, operation in operations(api, "/")]
    assert len(ids) == len(set(ids))


def test_every_link_names_an_operation_and_its_parameter(api) -> None:
    parameters = {
        operation["operationId"]: {item["name"] for item in operation.get("parameters", ())}
        for _, operation in operations(api, "/")
    }
    links = [
        link
        for _, operation in operations(api, "/v1/")
        for response in operation["responses"].values()
        for link in response.get("links", {}).values()
    ]
    assert links
    for link in links:
        assert set(link["parameters"]) <= parameters[link["operationId"]]


def test_every_v1_error_is_declared_as_a_problem(api) -> None:
    found = operations(api, "/v1/")
    assert len(found) >= 6
    for name, operation in found:
        responses = operation["responses"]
        assert operation["security"] == [{"apiKey": []}], name
        # Any call may meet these: see app.http_limits, app.control.auth and a bug of ours.
        assert {"400", "401", "403", "413", "500", "503"} <= set(responses), name
        # What a body names may be missing as well.
        assert ("404" in responses) == ("{" in name or name in NAMES_IN_BODY), name
        for status, response in responses.items():
            if int(status) >= 400:
                assert set(response["content"]) == {MEDIA_TYPE}, (name, status)
        assert "WWW-Authenticate" in responses["401"]["headers"], name
        assert "Retry-After" in responses["503"]["headers"], name


def test_the_bridge_is_in_the_document(api) -> None:
    found = operations(api, "/locus/")
    assert {name for name, _ in found} == {f"POST {path}" for path in BRIDGE}
    components = api["components"]["schemas"]
    for name, operation in found:
        for status, response in operation["responses"].items():
            content = response["content"]["application/json"]["schema"]
            error = content == {"$ref": "#/components/schemas/BridgeError"}
            assert error == (int(status) >= 400), (name, status)
            assert "X-NexusKV-Decision-Id" in response["headers"], (name, status)
    assert "get" in api["paths"]["/healthz"]
    for model in (
        schemas.LookupRequest,
        schemas.LookupResponse,
        schemas.EstimateRequest,
        schemas.EstimateResponse,
        schemas.MaterializeRequest,
        schemas.MaterializeResponse,
        schemas.BridgeError,
        schemas.BridgeHealth,
    ):
        published = components[model.__name__]
        assert set(published["properties"]) == set(model.model_fields)
        assert published["additionalProperties"] is False


def test_a_registration_is_described_to_its_last_field(api) -> None:
    components = api["components"]["schemas"]
    entries = components["StateBatch"]["properties"]["entries"]
    assert entries["items"] == {"$ref": "#/components/schemas/ContractRegistration"}
    assert set(components["ContractRegistration"]["required"]) == {"reuse_key", "entry"}
    assert "tensor_specs" in components["ContractAttentionStateDescriptor"]["properties"]


def test_every_error_code_has_a_rule_and_is_declared_where_it_can_happen(api) -> None:
    assert set(ERROR_RULES) == set(ErrorCode)
    declared = {
        (code, int(status))
        for _, operation in operations(api, "/")
        for status, response in operation["responses"].items()
        for code in ErrorCode
        if f"`{code}`" in response["description"]
    }
    assert {code for code, _ in declared} == set(ErrorCode) - UNDECLARED - OF_WORKERS
    for code, status in declared:
        assert status == ERROR_RULES[code].status, code


def test_retryable_errors_are_exactly_those_of_the_service() -> None:
    for code, rule in ERROR_RULES.items():
        assert rule.retryable == (rule.status >= 500), code
        assert 400 <= rule.status < 600
        assert rule.title
