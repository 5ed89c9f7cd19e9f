"""RFC 9457 problem documents: the one shape of every `/v1` error, on the wire and in OpenAPI."""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, Literal
from urllib.parse import quote

import orjson
import structlog
from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import Response
from pydantic import BaseModel, Field
from starlette.exceptions import HTTPException
from starlette.routing import Match
from starlette.types import Scope

from app.errors import ERROR_RULES, ErrorCode, FieldError, NexusError
from app.problem_fields import field_errors

MEDIA_TYPE = "application/problem+json"
# Where `app.request_context` leaves the id of the request in the ASGI scope.
REQUEST_ID_KEY = "nexuskv.request_id"
# Where an application leaves titles of its own for some codes: its callers show other credentials.
TITLES_KEY = "nexuskv.error_titles"
RETRY_AFTER_S = 1

ResponseParts = tuple[int, list[tuple[bytes, bytes]], bytes]

_NO_REQUEST_ID = "-"
_METHODS = ("DELETE", "GET", "HEAD", "OPTIONS", "PATCH", "POST", "PUT")
_SCHEMA_REF = {"$ref": "#/components/schemas/Problem"}
_GENERATED_422 = "HTTPValidationError"
_BY_STATUS = {
    400: ErrorCode.INVALID_JSON,  # The framework's own 400: the body was no UTF-8, or too deep.
    401: ErrorCode.UNAUTHORIZED,
    403: ErrorCode.FORBIDDEN,
    404: ErrorCode.NOT_FOUND,
    405: ErrorCode.METHOD_NOT_ALLOWED,
    413: ErrorCode.REQUEST_TOO_LARGE,
    415: ErrorCode.UNSUPPORTED_MEDIA_TYPE,
    503: ErrorCode.OVERLOADED,
}

_log = structlog.get_logger("nexuskv.problem")


class ProblemField(BaseModel):
    """One finding in the request."""

    pointer: str = Field(
        description="JSON pointer into the body, or `/query/NAME`, `/path/NAME`, `/header/NAME`."
    )
    code: ErrorCode
    detail: str
    value: str | None = Field(
        None, description="What stands there, as JSON and cut; only where that is harmless."
    )
    allowed: list[str] | None = Field(
        None, description="Every value that may stand there, where they are a closed list."
    )


class Problem(BaseModel):
    """An error, after RFC 9457."""

    type: str = Field(examples=["urn:nexuskv:error:not_found"])
    title: str
    status: int = Field(ge=400, le=599)
    detail: str = Field(description="What was wrong and what to do about it.")
    instance: str | None = Field(description="The path of the request.")
    code: ErrorCode
    retryable: bool = Field(description="Whether the same request may succeed later.")
    request_id: str = Field(description="As in `X-Request-Id`; quote it when asking for help.")
    errors: list[ProblemField]


def problem_response(
    error: NexusError,
    request_id: str,
    *,
    instance: str | None = None,
    status: int | None = None,
    title: str | None = None,
    extra_headers: Mapping[str, str] | None = None,
) -> ResponseParts:
    """Return (status, headers, body) for `error`; nothing internal is in them.

    `status` overrides the code's own where a framework chose one that our table lacks; `title`
    where the code means something more exact here.
    """
    rule = ERROR_RULES[error.code]
    status = rule.status if status is None else status
    body = orjson.dumps(
        {
            "type": f"urn:nexuskv:error:{error.code}",
            "title": rule.title if title is None else title,
            "status": status,
            "detail": error.message,
            "instance": instance,
            "code": error.code,
            "retryable": rule.retryable,
            "request_id": request_id,
            "errors": [problem_field(finding) for finding in error.errors],
        }
    )
    headers = [
        (b"content-type", MEDIA_TYPE.encode()),
        (b"content-length", str(len(body)).encode()),
    ]
    headers += [
        (name.lower().encode("latin-1"), value.encode("latin-1"))
        for name, value in (extra_headers or {}).items()
    ]
    if error.code is ErrorCode.UNAUTHORIZED:
        headers.append((b"www-authenticate", b"Bearer"))
    if status == 503 and rule.retryable:
        headers.append((b"retry-after", str(RETRY_AFTER_S).encode()))
    return status, headers, body


def problem_field(finding: FieldError) -> dict[str, Any]:
    """A `ProblemField` as plain values; what is not known is left out."""
    found: dict[str, Any] = {
        "pointer": finding.pointer,
        "code": finding.code,
        "detail": finding.detail,
    }
    if finding.value is not None:
        found["value"] = finding.value
    if finding.allowed:
        found["allowed"] = list(finding.allowed)
    return found


def problem_for(error: NexusError, scope: Scope) -> ResponseParts:
    """`problem_response` with the request id, the path and the titles of an ASGI scope."""
    return problem_response(
        error,
        request_id_in(scope),
        instance=quote(scope["path"]),
        title=scope.get(TITLES_KEY, {}).get(error.code),
    )


def request_id_in(scope: Scope) -> str:
    request_id: str = scope.get(REQUEST_ID_KEY, _NO_REQUEST_ID)
    return request_id


def problem_responses(
    *codes: ErrorCode | int, titles: Mapping[ErrorCode, str] | None = None
) -> dict[int | str, dict[str, Any]]:
    """The `responses=` of a FastAPI route that can answer with these codes.

    A bare status stands for every code of that status. `titles` are those of `TITLES_KEY`.
    """
    by_status: dict[int, list[ErrorCode]] = {}
    for code, rule in ERROR_RULES.items():
        if code in codes or rule.status in codes:
            by_status.setdefault(rule.status, []).append(code)
    return {
        status: _documented(of_status, titles or {})
        for status, of_status in sorted(by_status.items())
    }


def install_handlers(app: FastAPI) -> None:
    """Make every error of `app` a problem document, in its responses and in its OpenAPI."""
    app.add_exception_handler(NexusError, _on_nexus_error)
    app.add_exception_handler(RequestValidationError, _on_invalid_request)
    app.add_exception_handler(HTTPException, _on_http_exception)
    app.add_exception_handler(Exception, _on_unhandled)
    app.openapi = partial(_openapi, app, app.openapi)  # type: ignore[method-assign]


def describe_problems(document: dict[str, Any]) -> None:
    """Finish an OpenAPI document in place: the Problem schema, and 400 for the generated 422.

    FastAPI declares its own 422 for every route with parameters; here such errors are 400.
    """
    schemas = document.setdefault("components", {}).setdefault("schemas", {})
    schema = Problem.model_json_schema(ref_template="#/components/schemas/{model}")
    schemas.update(schema.pop("$defs"))
    schemas["Problem"] = schema
    for path_item in document.get("paths", {}).values():
        for operation in path_item.values():
            responses = operation.get("responses", {}) if isinstance(operation, dict) else {}
            if _GENERATED_422 in str(responses.get("422")):
                del responses["422"]
                invalid = _documented([ErrorCode.MISSING_FIELD, ErrorCode.INVALID_FIELD], {})
                responses.setdefault("400", invalid)
    for generated in (_GENERATED_422, "ValidationError"):
        schemas.pop(generated, None)


def internal_error(exc: BaseException) -> NexusError:
    """The public face of a bug: says nothing of it but that it is ours."""
    return NexusError(
        ErrorCode.INTERNAL_ERROR,
        "Something failed here; the log has the details under the request id",
        internal=type(exc).__name__,
    )


def _documented(codes: Sequence[ErrorCode], titles: Mapping[ErrorCode, str]) -> dict[str, Any]:
    names = [code.value for code in codes]
    said = [f"`{code}`: {titles.get(code, ERROR_RULES[code].title)}" for code in codes]
    entry: dict[str, Any] = {
        "description": "; ".join(said),
        "content": {
            MEDIA_TYPE: {
                "schema": {
                    "allOf": [_SCHEMA_REF],
                    "properties": {"code": {"type": "string", "enum": names}},
                }
            }
        },
    }
    headers = {}
    if ErrorCode.UNAUTHORIZED in codes:
        headers["WWW-Authenticate"] = _header("`Bearer`", "string")
    if any(ERROR_RULES[code].status == 503 for code in codes):
        headers["Retry-After"] = _header("Seconds to wait before trying again.", "integer")
    return entry | ({"headers": headers} if headers else {})


def _header(description: str, type_name: Literal["string", "integer"]) -> dict[str, Any]:
    return {"description": description, "schema": {"type": type_name}}


def _openapi(app: FastAPI, generate: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    if app.openapi_schema is None:
        document = generate()
        describe_problems(document)
        app.openapi_schema = document
    return app.openapi_schema


async def _on_nexus_error(request: Request, exc: Exception) -> Response:
    assert isinstance(exc, NexusError)
    if exc.internal is not None or exc.status >= 500:
        _log.info("refused", code=exc.code.value, status=exc.status, reason=exc.internal)
    return _response(problem_for(exc, request.scope))


async def _on_invalid_request(request: Request, exc: Exception) -> Response:
    assert isinstance(exc, RequestValidationError)
    findings, omitted = field_errors(exc.errors())
    first = findings[0] if findings else FieldError("", ErrorCode.INVALID_BODY, "invalid")
    where = f" at {first.pointer}" if first.pointer else ""
    more = f" ({omitted} more findings are left out)" if omitted else ""
    error = NexusError(first.code, f"{first.detail}{where}{more}", errors=findings)
    return _response(problem_for(error, request.scope))


async def _on_http_exception(request: Request, exc: Exception) -> Response:
    assert isinstance(exc, HTTPException)
    status = exc.status_code
    if status < 400:
        return Response(status_code=status, headers=dict(exc.headers or {}))
    code = _BY_STATUS.get(status)
    if code is None:
        code = ErrorCode.INVALID_BODY if status < 500 else ErrorCode.INTERNAL_ERROR
    message = {
        404: "There is nothing at this path",
        405: "This path does not take this method; Allow lists those it takes",
    }.get(status, ERROR_RULES[code].title)
    headers = dict(exc.headers or {})
    if status == 405:
        headers["Allow"] = ", ".join(_methods_of(request))
    return _response(
        problem_response(
            NexusError(code, message),
            request_id_in(request.scope),
            instance=quote(request.scope["path"]),
            status=status,
            extra_headers=headers,
        )
    )


def _methods_of(request: Request) -> list[str]:
    """What the path takes: the framework's own Allow names one route's methods only."""
    routes = request.app.router.routes
    return [
        method
        for method in _METHODS
        if any(
            route.matches({**request.scope, "method": method})[0] is Match.FULL for route in routes
        )
    ]


async def _on_unhandled(request: Request, exc: Exception) -> Response:
    _log.error(
        "unhandled_error",
        request_id=request_id_in(request.scope),
        method=request.method,
        exc_info=exc,
    )
    return _response(problem_for(internal_error(exc), request.scope))


def _response(parts: ResponseParts) -> Response:
    status, headers, body = parts
    response = Response(body, status_code=status)
    response.raw_headers = headers
    return response
