"""The bridge in the API document: its models are the published schema, its endpoints plain ASGI."""

from typing import Any, Final, NamedTuple

from pydantic import BaseModel
from pydantic.json_schema import models_json_schema

from app.bridge import schemas

_REF: Final = "#/components/schemas/{model}"
_EVIDENCE: Final = "`validation_evidence_missing` or `validation_evidence_mismatch`."
_SOURCE: Final = "`source_handle_mismatch`, `source_state_mismatch` or `source_location_mismatch`."
_OPTION: Final = (
    "`unknown_materialization_option`, `materialization_option_mismatch`, "
    "`materialization_target_mismatch`, `materialization_option_consumed`, "
    "`materialization_option_expired` or `source_state_mismatch`."
)


_AWAY: Final = (
    "`materialization_unavailable`: the key, the database or this replica cannot answer now; try "
    "again later."
)
_NOT_PRICED: Final = (
    "`materialization_unavailable`: between two workers no backend may or can bring the state now "
    "(the policy denies it, or the source is silent or has lost it), and the message says whether "
    "to recompute or to skip; or the database does not answer."
)
_NOT_EXECUTED: Final = (
    "`materialization_unavailable`: nothing was executed, and the option can be tried again. The "
    "message has the reason in brackets: a worker did not answer in time, its payload is gone, the "
    "sink is of another size or engine generation or is not open, the policy or the tenant's quota "
    "denies it; or another request holds the option, or the database does not answer."
)


class _Operation(NamedTuple):
    name: str
    request: type[BaseModel]
    response: type[BaseModel]
    summary: str
    conflicts: str
    unavailable: str


_OPERATIONS: Final = (
    _Operation(
        "lookup",
        schemas.LookupRequest,
        schemas.LookupResponse,
        "Is there reusable state for this input?",
        _EVIDENCE,
        _AWAY,
    ),
    _Operation(
        "estimate",
        schemas.EstimateRequest,
        schemas.EstimateResponse,
        "What would it cost to bring the matched state to a target?",
        _SOURCE,
        _NOT_PRICED,
    ),
    _Operation(
        "materialize",
        schemas.MaterializeRequest,
        schemas.MaterializeResponse,
        "Bring it, once",
        _OPTION,
        _NOT_EXECUTED,
    ),
)
_ERRORS: Final = {
    400: "The body is malformed: `missing_field`, `unknown_field`, `invalid_field`, "
    "`invalid_json`, `invalid_body`, `invalid_content_length`.",
    401: "`unauthorized`",
    403: "`tenant_forbidden`: the key lacks the tenant, or the scope `bridge`.",
    404: "`not_found`: no such operation.",
    413: "`request_too_large` (over 8 MiB) or `query_too_large` (over 1,000,000 tokens).",
    422: "`unsupported_identity`, `unsupported_bridge_schema` or `unsupported_nexuskv_schema`.",
    500: "`internal_error`",
}
_DECISION_HEADERS: Final = {
    "X-NexusKV-Decision-Id": {
        "description": "The decision that this answer was recorded as; absent where none was made.",
        "schema": {"type": "string", "format": "uuid"},
    },
    "traceparent": {
        "description": "The caller's trace continued, or a new one.",
        "schema": {"type": "string"},
    },
}
_MATCH_HEADER: Final = {
    "X-NexusKV-Match": {
        "description": "`unknown` when this replica's index may be behind: null is then no miss.",
        "schema": {"type": "string", "enum": ["unknown"]},
    },
}
_REQUEST_HEADER: Final = {
    "X-Request-Id": {
        "description": "The caller's, or a new one; the log has it. Quote it when asking for help.",
        "schema": {"type": "string"},
    },
}
_ERROR_HEADERS: Final[dict[int, dict[str, Any]]] = {
    401: {"WWW-Authenticate": {"description": "`Bearer`", "schema": {"type": "string"}}},
    503: {
        "Retry-After": {
            "description": "Seconds to wait before trying again.",
            "schema": {"type": "integer"},
        }
    },
}


def add_bridge(document: dict[str, Any]) -> dict[str, Any]:
    """The OpenAPI document with the bridge's operations, models and authentication added."""
    models: list[type[BaseModel]] = [schemas.BridgeError, schemas.BridgeHealth]
    for operation in _OPERATIONS:
        models += [operation.request, operation.response]
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
    for operation in _OPERATIONS:
        paths[f"/locus/v1/{operation.name}"] = {"post": _described(operation)}
    paths["/healthz"] = {"get": _health()}
    for path, item in paths.items():
        if path.startswith(("/v1/", "/locus/", "/indexer/")):
            for described in item.values():
                described["security"] = [{"apiKey": []}]
    return document


def _described(operation: _Operation) -> dict[str, Any]:
    name = operation.name
    return {
        "tags": ["bridge"],
        "summary": operation.summary,
        "description": operation.request.__doc__,
        "operationId": f"locus_{name}",
        "requestBody": {"required": True, "content": _json(operation.request)},
        "responses": {
            "200": {
                "description": "Answered.",
                "headers": _DECISION_HEADERS | (_MATCH_HEADER if name == "lookup" else {}),
                "content": _json(operation.response),
            },
            **{
                str(status): {
                    "description": text,
                    "headers": {
                        **_REQUEST_HEADER,
                        **_DECISION_HEADERS,
                        **_ERROR_HEADERS.get(status, {}),
                    },
                    "content": _json(schemas.BridgeError),
                }
                for status, text in sorted(
                    {**_ERRORS, 409: operation.conflicts, 503: operation.unavailable}.items()
                )
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
