"""The errors each kind of `/v1` route can answer with, for its OpenAPI."""

from typing import Any, Final

from app.errors import ErrorCode
from app.problem import problem_responses

# Whatever is asked: also a GET may bring a body that is too large, and a fault of ours is possible.
_ANY: Final = (
    ErrorCode.INVALID_CONTENT_LENGTH,
    ErrorCode.INVALID_FIELD,
    ErrorCode.UNAUTHORIZED,
    ErrorCode.FORBIDDEN,
    ErrorCode.REQUEST_TOO_LARGE,
    ErrorCode.INTERNAL_ERROR,
    ErrorCode.DATABASE_UNAVAILABLE,
    ErrorCode.OVERLOADED,
)
_LIST: Final = (
    *_ANY,
    ErrorCode.UNKNOWN_FIELD,
    ErrorCode.INVALID_CURSOR,
    ErrorCode.TENANT_FORBIDDEN,
)
_REGISTER: Final = (
    *_ANY,
    ErrorCode.MISSING_FIELD,
    ErrorCode.UNKNOWN_FIELD,
    ErrorCode.INVALID_JSON,
    ErrorCode.INVALID_BODY,
    ErrorCode.TENANT_FORBIDDEN,
    ErrorCode.GENERATION_CONFLICT,
    ErrorCode.UNSUPPORTED_MEDIA_TYPE,
    ErrorCode.UNSUPPORTED_IDENTITY,
    ErrorCode.UNSUPPORTED_NEXUSKV_SCHEMA,
)

_HEARTBEAT: Final = (
    *_ANY,
    ErrorCode.MISSING_FIELD,
    ErrorCode.UNKNOWN_FIELD,
    ErrorCode.INVALID_JSON,
    ErrorCode.INVALID_BODY,
    ErrorCode.NOT_FOUND,
    ErrorCode.WORKER_HOST_NOT_ALLOWED,
    ErrorCode.WORKER_NAME_TAKEN,
    ErrorCode.WORKERS_NOT_CONFIGURED,
)
_TOKEN: Final = (
    *_ANY,
    ErrorCode.MISSING_FIELD,
    ErrorCode.UNKNOWN_FIELD,
    ErrorCode.INVALID_JSON,
    ErrorCode.INVALID_BODY,
    ErrorCode.TENANT_FORBIDDEN,
    ErrorCode.NOT_FOUND,
    ErrorCode.WORKERS_NOT_CONFIGURED,
)


def errors_of(*codes: ErrorCode) -> dict[int | str, dict[str, Any]]:
    """What any route can answer, and these."""
    return problem_responses(*_ANY, *codes)


def list_errors() -> dict[int | str, dict[str, Any]]:
    return problem_responses(*_LIST)


def one_errors() -> dict[int | str, dict[str, Any]]:
    """Of a route that names one thing by its id."""
    return problem_responses(*_ANY, ErrorCode.NOT_FOUND)


def register_errors() -> dict[int | str, dict[str, Any]]:
    return problem_responses(*_REGISTER)


def plain_errors() -> dict[int | str, dict[str, Any]]:
    """Of a route that takes nothing."""
    return problem_responses(*_ANY)


def heartbeat_errors() -> dict[int | str, dict[str, Any]]:
    return problem_responses(*_HEARTBEAT)


def token_errors() -> dict[int | str, dict[str, Any]]:
    return problem_responses(*_TOKEN)
