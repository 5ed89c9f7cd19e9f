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


def list_errors() -> dict[int | str, dict[str, Any]]:
    return problem_responses(*_LIST)


def one_errors() -> dict[int | str, dict[str, Any]]:
    """Of a route that names one thing by its id."""
    return problem_responses(*_ANY, ErrorCode.NOT_FOUND)


def register_errors() -> dict[int | str, dict[str, Any]]:
    return problem_responses(*_REGISTER)
