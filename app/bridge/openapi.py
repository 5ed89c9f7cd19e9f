"""The bridge in the API document: its models are the published schema, its endpoints plain ASGI."""

from typing import Any, Final

from pydantic import BaseModel
from pydantic.json_schema import models_json_schema

from app.bridge import schemas

_REF: Final = "#/components/schemas/{model}"
_OPERATIONS: Final[
    tuple[tuple[str, type[BaseModel], type[BaseModel], str, tuple[int, ...]], ...]
] = (
    (
        "lookup",
        schemas.LookupRequest,
        schemas.LookupResponse,
        "Is there reusable state for this input?",
        (400, 401, 403, 404, 409, 413, 422, 500, 503),
    ),
    (
        "estimate",
        schemas.EstimateRequest,
        schemas.EstimateResponse,
        "What would it cost to bring the matched state to a target?",
        (400, 401, 403, 404, 409, 413, 422, 500, 503),
    ),
    (
        "materialize",
        schemas.MaterializeRequest,
        schemas.MaterializeResponse,
        "Bring it, once",
        (400, 401, 403, 404, 409, 413, 422, 500, 503),
    ),
)
_ERRORS: Final = {
    400: "The body is malformed: `missing_field`, `unknown_field`, `invalid_field`, "
    "`invalid_json`, `invalid_body`, `invalid_content_length`.",
    401: "`unauthorized`",
    403: "`tenant_forbidden`: the key lacks the tenant, or the scope `bridge`.",
    404: "`not_found`: no such operation.",
    409: "Evidence, handle, option or target differ from what was registered or issued.",
    413: "`request_too_large` (over 8 MiB) or `query_too_large` (over 1,000,000 tokens).",
    422: "`unsupported_identity`, `unsupported_bridge_schema` or `unsupported_nexuskv_schema`.",
    500: "`internal_error`",
    503: "`materialization_unavailable`: try again later.",
}
_DECISION_HEADERS: Final = {
    "X-NexusKV-Decision-Id": {
        "description": "The decision that this answer was recorded as.",
        "schema": {"type": "string", "format": "uuid"},
    },
    "traceparent": {
        "description": "The caller's trace continued, or a new one.",
        "schema": {"type": "string"},
    },
}


def add_bridge(document: dict[str, Any]) -> dict[str, Any]:
    """The OpenAPI document with the bridge's operations, models and authentication added."""
    models: list[type[BaseModel]] = [schemas.BridgeError, schemas.BridgeHealth]
    for _, request, response, _, _ in _OPERATIONS:
        models += [request, response]
    _, definitions = models_json_schema(
        [(model, "validation") for model in models], ref_template=_REF
    )
    components = document.setdefault("components", {})
    components.setdefault("schemas", {}).update(definitions["$defs"])
    components.setdefault("securitySchemes", {})["apiKey"] = {
        "type": "http",
        "scheme": "bearer",
        "description": "An API key; `nexuskv keys create` makes one.",
    }
    paths = document["paths"]
    for name, request, response, summary, errors in _OPERATIONS:
        paths[f"/locus/v1/{name}"] = {"post": _operation(name, request, response, summary, errors)}
    paths["/healthz"] = {"get": _health()}
    for path, item in paths.items():
        if path.startswith(("/v1/", "/locus/")):
            for operation in item.values():
                operation["security"] = [{"apiKey": []}]
    return document


def _operation(
    name: str,
    request: type[BaseModel],
    response: type[BaseModel],
    summary: str,
    errors: tuple[int, ...],
) -> dict[str, Any]:
    return {
        "tags": ["bridge"],
        "summary": summary,
        "description": request.__doc__,
        "operationId": f"locus_{name}",
        "requestBody": {"required": True, "content": _json(request)},
        "responses": {
            "200": {
                "description": "Answered.",
                "headers": _DECISION_HEADERS,
                "content": _json(response),
            },
            **{
                str(status): {
                    "description": _ERRORS[status],
                    "content": _json(schemas.BridgeError),
                }
                for status in errors
            },
        },
    }


def _health() -> dict[str, Any]:
    return {
        "tags": ["bridge"],
        "summary": "Does the bridge answer?",
        "operationId": "healthz",
        "responses": {
            "200": {"description": "It does.", "content": _json(schemas.BridgeHealth)},
        },
    }


def _json(model: type[BaseModel]) -> dict[str, Any]:
    return {"application/json": {"schema": {"$ref": _REF.format(model=model.__name__)}}}
