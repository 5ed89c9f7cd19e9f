"""The OpenAPI document of the control port, made from the table of its operations."""

from functools import cache
from importlib.metadata import version
from inspect import cleandoc
from typing import Any, Final

import msgspec

from app.problem import describe_problems, problem_responses
from app.transfer.wire import (
    CHECKSUM_HEADER,
    FinishSink,
    NewSink,
    NewTransfer,
    PayloadFacts,
    SinkFacts,
    TransferFacts,
)
from app.worker.access import TITLES
from app.worker.operations import (
    BOUND_TO,
    BYTES,
    JSON,
    OPERATIONS,
    Answer,
    Operation,
    Parameter,
    errors_of,
)

DIRECTION_KEY: Final = "x-nexuskv-token-direction"
_REF: Final = "#/components/schemas/{name}"
_SCHEME: Final = "workerToken"
_SCHEMAS: Final = (NewSink, FinishSink, NewTransfer, PayloadFacts, SinkFacts, TransferFacts)
_DESCRIPTION: Final = """\
The control port of a worker: payloads, sinks and transfers. A worker decides nothing; the API of
NexusKV orders, and callers with a token do what it says.

Every `/v1` route takes a short-lived token (`POST /v1/worker-tokens` of the API) for exactly this
worker, direction, payload and sink, and acts for the token's tenant: what another tenant has is not
found. Errors are problem documents (RFC 9457). HEAD answers wherever GET does. Sizes are in bytes,
times in microseconds where a name ends in `_us`, in seconds in `_s`; checksums are XXH3-128 as 32
lower-case hex digits.
"""
_SCHEME_DESCRIPTION: Final = """\
A JSON Web Token, HS256 under the secret that the API and its workers share: `aud` the worker, `sub`
the tenant, `dir` the direction, `pay` the payload and `snk` the sink, empty where there is none.
`iat` and `exp` may be off by 5 seconds. One for `fetch`, inside an order, also has `dst` (the
worker that pulls), `tpl` (the payload that it becomes there) and `adr` (the source's data address).
"""
_HEADERS: Final[dict[str, tuple[str, dict[str, Any]]]] = {
    "x-request-id": ("The caller's, or a new one; the log has it.", {"type": "string"}),
    "traceparent": ("The caller's trace continued, or a new one.", {"type": "string"}),
    CHECKSUM_HEADER: (
        "XXH3-128 of all bytes, also where only some are sent.",
        {"type": "string", "pattern": "^[0-9a-f]{32}$"},
    ),
    "accept-ranges": ("`bytes`", {"type": "string", "enum": ["bytes"]}),
    "content-range": ("Which bytes these are, of how many.", {"type": "string"}),
}
_EVERY: Final = ("x-request-id", "traceparent")
_EITHER_TARGET: Final = [
    {"required": [name], "properties": {name: {"type": "string"}}}
    for name in ("target_sink_id", "target_payload_id")
]


@cache
def worker_document() -> dict[str, Any]:
    """OpenAPI 3.1, the same for every worker. It is shared: do not change it."""
    _, schemas = msgspec.json.schema_components(_SCHEMAS, ref_template=_REF)
    paths: dict[str, dict[str, Any]] = {}
    for operation in OPERATIONS:
        paths.setdefault(operation.path, {})[operation.method] = _described(operation)
    document = {
        "openapi": "3.1.0",
        "info": {
            "title": "NexusKV worker",
            "version": version("nexuskv"),
            "description": _DESCRIPTION,
        },
        "paths": paths,
        "components": {
            "schemas": schemas,
            "securitySchemes": {
                _SCHEME: {
                    "type": "http",
                    "scheme": "bearer",
                    "bearerFormat": "JWT",
                    "description": _SCHEME_DESCRIPTION,
                }
            },
        },
    }
    describe_problems(document)
    for schema in schemas.values():
        if "description" in schema:
            schema["description"] = cleandoc(schema["description"])
    # Exactly one target; the type itself has no words for that.
    schemas[NewTransfer.__name__]["oneOf"] = _EITHER_TARGET
    # Defaults are Python values; one round trip leaves JSON values only.
    plain: dict[str, Any] = msgspec.json.decode(msgspec.json.encode(document))
    return plain


def _described(operation: Operation) -> dict[str, Any]:
    direction = operation.direction
    found: dict[str, Any] = {
        "operationId": operation.name,
        "summary": operation.summary,
        "responses": _responses(operation),
    }
    texts = [operation.description] if operation.description else []
    if direction is not None:
        texts.append(f"Token: `{direction}` for {BOUND_TO[direction]}.")
        found["security"] = [{_SCHEME: []}]
        found[DIRECTION_KEY] = direction.value
    if texts:
        found["description"] = " ".join(texts)
    if operation.parameters:
        found["parameters"] = [_parameter(one) for one in operation.parameters]
    if operation.body is not None:
        found["requestBody"] = {"required": True, "content": _body(operation.body)}
    return found


def _parameter(parameter: Parameter) -> dict[str, Any]:
    return {
        "name": parameter.name,
        "in": parameter.place,
        "required": parameter.place == "path",
        "description": parameter.description,
        "schema": _schema(parameter.type_),
    }


def _body(body: type[msgspec.Struct] | str) -> dict[str, Any]:
    if isinstance(body, str):
        return {body: {"schema": {"type": "string", "format": "binary", "minLength": 1}}}
    return {JSON: {"schema": _schema(body)}}


def _responses(operation: Operation) -> dict[str, Any]:
    errors = problem_responses(*errors_of(operation), titles=TITLES)
    found: dict[str, Any] = {}
    for status, response in errors.items():
        more = {"content-range"} if status == 416 else set()
        headers = response.get("headers", {}) | _headers(*_EVERY, *more)
        found[str(status)] = {**response, "headers": headers}
    for answer in operation.answers:
        found[str(answer.status)] = _answered(operation, answer)
    if operation.method == "head":
        found = {status: {**one, "content": {}} for status, one in found.items()}
    return dict(sorted(found.items()))


def _answered(operation: Operation, answer: Answer) -> dict[str, Any]:
    schema = {} if answer.media_type == BYTES else _schema(answer.content)
    # Who only asks for the headers is answered by the same ones.
    assert operation.method != "head" or answer.media_type == BYTES
    return {
        "description": answer.description,
        "headers": _headers(*_EVERY, *answer.headers),
        "content": {answer.media_type: {"schema": schema}},
    }


def _headers(*names: str) -> dict[str, Any]:
    return {
        name: {"description": _HEADERS[name][0], "schema": _HEADERS[name][1], "required": True}
        for name in names
    }


def _schema(type_: Any) -> dict[str, Any]:
    """A schema as it is, that of a plain type, or a reference to a struct's."""
    if isinstance(type_, dict):
        return type_
    (found,), _ = msgspec.json.schema_components([type_], ref_template=_REF)
    return found
