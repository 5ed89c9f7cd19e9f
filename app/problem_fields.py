"""pydantic's findings as ours: JSON pointers, codes of the closed enum, and no input echoed."""

from collections.abc import Mapping, Sequence
from typing import Any

from app.errors import ErrorCode, FieldError

MAX_FINDINGS = 100
# Pointers repeat field names that the caller chose, so they are cut.
MAX_SEGMENT_CHARS = 64
MAX_POINTER_CHARS = 512

_CODES = {
    "missing": ErrorCode.MISSING_FIELD,
    "extra_forbidden": ErrorCode.UNKNOWN_FIELD,
    "json_invalid": ErrorCode.INVALID_JSON,
}
# What a body that is no object at all is called, whatever model stood there.
_WRONG_SHAPE = frozenset(
    {"model_type", "model_attributes_type", "dict_type", "list_type", "dataclass_type"}
)
_DETAILS = {
    "missing": "This field is required",
    "extra_forbidden": "This field is not known",
    "json_invalid": "The body is not valid JSON",
}
# Messages that pydantic makes from the schema alone. Every other message may quote the input.
_SCHEMA_ONLY = frozenset(
    {
        "bool_parsing", "bool_type", "bytes_type", "date_type", "datetime_type", "dict_type",
        "enum", "finite_number", "float_parsing", "float_type", "frozen_set_type",
        "greater_than", "greater_than_equal", "int_from_float", "int_parsing",
        "int_parsing_size", "int_type", "less_than", "less_than_equal", "list_type",
        "literal_error", "model_attributes_type", "model_type", "multiple_of", "none_required",
        "string_pattern_mismatch", "string_too_long", "string_too_short", "string_type",
        "timezone_aware", "timezone_naive", "too_long", "too_short", "uuid_type",
    }
)  # fmt: skip


def field_errors(errors: Sequence[Mapping[str, Any]]) -> tuple[list[FieldError], int]:
    """Return the findings of a `ValidationError`, at most 100, and how many were left out."""
    findings = [_field_error(error) for error in errors[:MAX_FINDINGS]]
    return findings, max(0, len(errors) - MAX_FINDINGS)


def pointer(loc: Sequence[str | int]) -> str:
    """`("body", "a/b", 0)` -> `/a~1b/0`; parameters keep their place: `/query/page_size`."""
    parts = loc[1:] if loc and loc[0] == "body" else loc
    text = "".join(f"/{_escaped(part)}" for part in parts)
    return text[:MAX_POINTER_CHARS]


def _field_error(error: Mapping[str, Any]) -> FieldError:
    kind = error["type"]
    loc = error["loc"]
    code = _CODES.get(kind, ErrorCode.INVALID_FIELD)
    if code is ErrorCode.INVALID_JSON:
        loc = loc[:1]  # The rest is an offset into the text.
    at = pointer(loc)
    if not at and kind in _WRONG_SHAPE:
        code = ErrorCode.INVALID_BODY
    return FieldError(at, code, _detail(kind, error["msg"]))


def _detail(kind: str, message: str) -> str:
    if kind in _DETAILS:
        return _DETAILS[kind]
    if kind in _SCHEMA_ONLY:
        return message
    return "The value is not valid here"


def _escaped(part: str | int) -> str:
    text = str(part)[:MAX_SEGMENT_CHARS]
    return text.replace("~", "~0").replace("/", "~1")
