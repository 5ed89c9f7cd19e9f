"""Why a body of `/v1/match` is refused, in words for its sender, at a cost that is bounded."""

import re
from collections.abc import Mapping
from typing import Any, Final, TypeVar

import msgspec
import orjson
from pydantic import BaseModel, ValidationError

from app.api import match_schemas as schemas
from app.errors import ErrorCode, FieldError, NexusError
from app.problem_fields import MAX_SEGMENT_CHARS, field_errors, pointer
from app.settings import MAX_QUERY_TOKENS

MAX_REPORTED: Final = 20
# Of a larger body that is refused only the first fault is named.
MAX_JUDGED_BYTES: Final = 128 * 1024
_T = TypeVar("_T")
_UNKNOWN: Final = re.compile(r"Object contains unknown field `(.*)`", re.DOTALL)
_MISSING: Final = re.compile(r"Object missing required field `(.*)`")
_STEP: Final = re.compile(r"\.(\w+)|\[(\d+)\]")


def field_error(pointer: str, code: ErrorCode, detail: str) -> NexusError:
    """A refusal for one field."""
    return NexusError(code, f"{pointer}: {detail}", errors=[FieldError(pointer, code, detail)])


def too_large() -> NexusError:
    return NexusError(
        ErrorCode.QUERY_TOO_LARGE,
        f"In one request at most {MAX_QUERY_TOKENS:,} tokens, {schemas.MAX_QUERY_HASHES:,} hashes "
        f"and entries of extra_keys, and {schemas.MAX_EXTRA_VALUES:,} values in these",
    )


def judged(body: bytes, error: Exception, decoder: "msgspec.json.Decoder[_T]") -> _T:
    """What the published model makes of a body that was refused; raises what it finds."""
    if len(body) > MAX_JUDGED_BYTES:
        raise first_fault(error)
    try:
        value = orjson.loads(body)
    except orjson.JSONDecodeError as fault:
        raise NexusError(ErrorCode.INVALID_JSON, f"The body is not valid JSON: {fault}") from None
    judge(value, schemas.MatchQueries)
    try:
        return decoder.decode(orjson.dumps(value))
    except (TypeError, msgspec.MsgspecError, RecursionError, UnicodeError):
        raise NexusError(ErrorCode.INVALID_BODY, "The body is nested too deep") from None


def judge(value: Any, model: type[BaseModel]) -> BaseModel:
    """Raises NexusError with what the model finds in the body."""
    try:
        return model.model_validate(_reported(value, model))
    except ValidationError as error:
        found, left_out = field_errors(
            error.errors(include_url=False, include_context=False, include_input=False)
        )
    first = found[0]
    more = len(found) + left_out - 1
    message = f"{first.pointer or 'the body'}: {first.detail}" + (f", and {more} more" * bool(more))
    raise NexusError(first.code, message, errors=found[:MAX_REPORTED])


def _reported(value: Any, model: type[BaseModel]) -> Any:
    """The body with no more unknown fields in an object than are reported."""
    if not isinstance(value, Mapping):
        return value
    unknown = [name for name in value if name not in model.model_fields]
    left_out = set(unknown[MAX_REPORTED + 1 :])
    kept = {name: each for name, each in value.items() if name not in left_out}
    if isinstance(queries := kept.get("queries"), list) and model is schemas.MatchQueries:
        kept["queries"] = [_reported(each, schemas.MatchQuery) for each in queries]
    if isinstance(states := kept.get("states"), Mapping) and model is schemas.MatchQuery:
        kept["states"] = _reported(states, schemas.StateScope)
    return kept


def first_fault(error: Exception) -> NexusError:
    """The first fault as the decoder has it; it quotes nothing but the names of fields."""
    if not isinstance(error, msgspec.ValidationError):
        return NexusError(ErrorCode.INVALID_JSON, "The body is not valid JSON")
    what, _, path = str(error).rpartition(" - at `$")
    steps = [name or int(at) for name, at in _STEP.findall(path)]
    what = what or str(error)
    for pattern, code, detail in (
        (_UNKNOWN, ErrorCode.UNKNOWN_FIELD, "This field is not known"),
        (_MISSING, ErrorCode.MISSING_FIELD, "This field is required"),
    ):
        named = pattern.match(what)
        if named is not None:
            return field_error(pointer([*steps, named[1]]), code, detail)
    code = ErrorCode.INVALID_FIELD if steps else ErrorCode.INVALID_BODY
    return field_error(pointer(steps), code, what[:MAX_SEGMENT_CHARS])
