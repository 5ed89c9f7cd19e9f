"""Accepts a document into a type, or names everything that is wrong with it.

msgspec decides, in one fast pass, and stops at the first fault. Only after a refusal does a
second, slower walk over the same type (`msgspec.inspect`) collect the findings, so there is one
schema and not two.
"""

import json
import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import islice
from typing import Any, Generic, NoReturn, TypeVar, cast

import msgspec
from msgspec import inspect

from app.errors import ErrorCode, FieldError, NexusError

MAX_FINDINGS = 100
_MAX_POINTER_PART = 128
_MAX_INT_DIGITS = 40

T = TypeVar("T")
Findings = Iterator[FieldError]


class Shape(Generic[T]):
    """One type, ready to accept documents. `noun` is what messages call the document."""

    def __init__(self, type_: type[T], noun: str) -> None:
        self.noun = noun
        self._type = type_
        self._decoder = msgspec.json.Decoder(type_)
        self._info = inspect.type_info(type_)

    def accept(self, raw: bytes | Mapping[str, Any]) -> T:
        """The typed value of JSON text or of decoded JSON; nothing is coerced.

        Raises NexusError with every finding (at most `MAX_FINDINGS`), each a JSON pointer;
        INVALID_JSON when the text is not JSON.
        """
        try:
            if isinstance(raw, Mapping):
                value = msgspec.convert(raw, self._type)
                text = msgspec.json.encode(value)
            else:
                value = self._decoder.decode(raw)
                text = raw
        except (msgspec.MsgspecError, UnicodeError, RecursionError) as exc:
            self._refuse(raw, str(exc))
        # One byte is found several times faster than six. An escaped backslash before "u0000"
        # looks the same; the walk tells them apart.
        if b"\\" in text and b"\\u0000" in text and (found := self.findings(_document(raw))):
            raise refusal(self.noun, found)
        return value

    def findings(self, document: object) -> tuple[FieldError, ...]:
        """Everything wrong with a decoded document, in document order, at most MAX_FINDINGS."""
        return tuple(islice(_walk(self._info, document, "", None), MAX_FINDINGS))

    def _refuse(self, raw: bytes | Mapping[str, Any], reason: str) -> NoReturn:
        found = self.findings(_document(raw)) or (
            FieldError("", ErrorCode.INVALID_BODY, f"is not a valid {self.noun}"),
        )
        raise refusal(self.noun, found, internal=reason)


def refusal(noun: str, found: Sequence[FieldError], internal: str | None = None) -> NexusError:
    """One error for many findings; the code is that of the finding that explains the most.

    A foreign schema version comes first, since it explains unknown fields; then the first
    malformed field; an identity that is well-formed but not supported comes last.
    """
    codes = [error.code for error in found]
    code = next((c for c in codes if c is not ErrorCode.UNSUPPORTED_IDENTITY), codes[0])
    if ErrorCode.UNSUPPORTED_NEXUSKV_SCHEMA in codes:
        code = ErrorCode.UNSUPPORTED_NEXUSKV_SCHEMA
    first = next(error for error in found if error.code is code)
    more = f" (and {len(found) - 1} more findings)" if len(found) > 1 else ""
    message = f"The {noun} is not acceptable: {first.pointer or '/'} {first.detail}{more}"
    return NexusError(code, message, errors=found, internal=internal)


def not_finite(value: object, at: str) -> Findings:
    """Numbers in a decoded document that are none: a NaN passes every bound."""
    if isinstance(value, float) and not math.isfinite(value):
        yield _invalid(at, "must be a finite number")
    elif isinstance(value, Mapping):
        for key, item in value.items():
            yield from not_finite(item, pointer_to(at, key))
    elif isinstance(value, list):
        for number, item in enumerate(value):
            yield from not_finite(item, f"{at}/{number}")


def pointer_to(pointer: str, part: str | int) -> str:
    """`pointer` extended by one step (RFC 6901), cut where a caller's key is overlong."""
    text = str(part)[:_MAX_POINTER_PART].encode("utf-8", "replace").decode()
    text = text.replace("\x00", "\ufffd").replace("~", "~0").replace("/", "~1")
    return f"{pointer}/{text}"


def _document(raw: bytes | Mapping[str, Any]) -> object:
    if isinstance(raw, Mapping):
        return raw
    try:
        try:
            return msgspec.json.decode(raw)
        except msgspec.ValidationError:
            # JSON whose numbers no machine type holds: keep them, so that a finding names them.
            return json.loads(raw, parse_int=_bounded_int, parse_constant=_refuse_constant)
    except (msgspec.DecodeError, ValueError) as exc:
        text = "The document is not JSON"
        raise NexusError(ErrorCode.INVALID_JSON, text, internal=str(exc)) from None
    except RecursionError:
        text = "The document is nested too deeply"
        raise NexusError(ErrorCode.INVALID_JSON, text) from None


def _bounded_int(digits: str) -> int | float:
    return int(digits) if len(digits) <= _MAX_INT_DIGITS else float("inf")


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not JSON")


def _walk(info: inspect.Type, value: object, at: str, code: ErrorCode | None) -> Findings:
    """Findings of `value` against `info`; `code` is what a well-typed foreign value means."""
    if isinstance(info, inspect.Metadata):
        extra = info.extra or {}
        return _walk(info.type, value, at, extra.get("code", code))
    if isinstance(info, inspect.UnionType):
        members = [t for t in info.types if not isinstance(t, inspect.NoneType)]
        if value is None and len(members) < len(info.types):
            return iter(())
        (info,) = members  # the contract has no other unions than "or null"
        return _walk(info, value, at, code)
    return _WALKERS[type(info)](info, value, at, code)


def _wrong(at: str, wanted: str, value: object) -> FieldError:
    code = ErrorCode.INVALID_FIELD if at else ErrorCode.INVALID_BODY
    return FieldError(at, code, f"must be {wanted}, not {_kind(value)}")


def _kind(value: object) -> str:
    kinds: tuple[tuple[type | tuple[type, ...], str], ...] = (
        (bool, "a boolean"),
        (int, "an integer"),
        (float, "a number with a fraction or exponent"),
        (str, "a string"),
        (Mapping, "an object"),
        ((list, tuple), "an array"),
        (type(None), "null"),
    )
    return next((name for kind, name in kinds if isinstance(value, kind)), "another type")


def _invalid(at: str, detail: str) -> FieldError:
    return FieldError(at, ErrorCode.INVALID_FIELD, detail)


def _struct(info: inspect.StructType, value: object, at: str, _: ErrorCode | None) -> Findings:
    if not isinstance(value, Mapping):
        yield _wrong(at, "an object", value)
        return
    known = {field.encode_name: field for field in info.fields}
    for name, field in known.items():
        if name in value:
            yield from _walk(field.type, value[name], pointer_to(at, name), None)
        elif field.required:
            yield FieldError(pointer_to(at, name), ErrorCode.MISSING_FIELD, "is required")
    for name in value:
        if name not in known:
            yield FieldError(
                pointer_to(at, name), ErrorCode.UNKNOWN_FIELD, "is not a field of the contract"
            )


def _sequence(
    info: inspect.ListType | inspect.VarTupleType, value: object, at: str, code: ErrorCode | None
) -> Findings:
    if not isinstance(value, list | tuple):
        yield _wrong(at, "an array", value)
        return
    yield from _length(info, value, at, "items")
    if _too_long(info, value):
        return  # its items are beyond every limit that keeps a walk short
    item = info.item_type
    for index, element in enumerate(value):
        # A million tokens are walked too; those in range must cost next to nothing.
        if type(item) is inspect.IntType and type(element) is int and _in_range(item, element):
            continue
        yield from _walk(item, element, f"{at}/{index}", code)


def _dict(info: inspect.DictType, value: object, at: str, code: ErrorCode | None) -> Findings:
    if not isinstance(value, Mapping):
        yield _wrong(at, "an object", value)
        return
    yield from _length(info, value, at, "fields")
    if _too_long(info, value):
        return
    for key, item in value.items():
        where = pointer_to(at, key)
        yield from _walk(info.key_type, key, where, code)
        yield from _walk(info.value_type, item, where, code)


def _text(info: inspect.StrType, value: object, at: str, _: ErrorCode | None) -> Findings:
    if not isinstance(value, str):
        yield _wrong(at, "a string", value)
        return
    yield from _length(info, value, at, "characters")
    if info.pattern is not None and not re.search(info.pattern, value):
        yield _invalid(at, f"must match {info.pattern}")
    if "\x00" in value:
        yield _invalid(at, "must not hold the character U+0000")
    if not value.isascii() and any("\ud800" <= c <= "\udfff" for c in value):
        yield _invalid(at, "must not hold half of a surrogate pair")


def _integer(info: inspect.IntType, value: object, at: str, _: ErrorCode | None) -> Findings:
    if isinstance(value, bool) or not isinstance(value, int):
        yield _wrong(at, "an integer", value)
    elif not _in_range(info, value):
        yield _invalid(at, f"must be between {info.ge} and {info.le}")


def _number(info: inspect.FloatType, value: object, at: str, _: ErrorCode | None) -> Findings:
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        yield _wrong(at, "a number", value)
    elif (
        (info.ge is not None and not value >= info.ge)
        or (info.gt is not None and not value > info.gt)
        or (info.le is not None and not value <= info.le)
    ):
        least = f"at least {info.ge}" if info.ge is not None else f"above {info.gt}"
        yield _invalid(at, f"must be {least} and at most {info.le}")


def _boolean(_info: inspect.BoolType, value: object, at: str, _: ErrorCode | None) -> Findings:
    if not isinstance(value, bool):
        yield _wrong(at, "a boolean", value)


def _choice(
    info: inspect.EnumType | inspect.LiteralType, value: object, at: str, code: ErrorCode | None
) -> Findings:
    allowed = (
        [str(member.value) for member in info.cls]
        if isinstance(info, inspect.EnumType)
        else [str(member) for member in info.values]
    )
    if not isinstance(value, str):
        yield _wrong(at, "a string", value)
    elif value not in allowed:
        meaning = code if code is not None and value else ErrorCode.INVALID_FIELD
        detail = f"must be one of: {', '.join(allowed)}"
        yield FieldError(at, meaning, detail, allowed=tuple(allowed))


def _length(info: Any, value: Any, at: str, unit: str) -> Findings:
    count = len(value)
    if info.min_length is not None and count < info.min_length:
        yield _invalid(at, f"must have at least {info.min_length} {unit}, and has {count}")
    if _too_long(info, value):
        yield _invalid(at, f"must have at most {info.max_length} {unit}, and has {count}")


def _too_long(info: Any, value: Any) -> bool:
    return info.max_length is not None and len(value) > info.max_length


def _in_range(info: inspect.IntType, value: int) -> bool:
    return (info.ge is None or value >= info.ge) and (info.le is None or value <= info.le)


_Walker = Callable[[Any, object, str, ErrorCode | None], Findings]
_WALKERS = cast(
    "dict[type[inspect.Type], _Walker]",
    {
        inspect.StructType: _struct,
        inspect.ListType: _sequence,
        inspect.VarTupleType: _sequence,
        inspect.DictType: _dict,
        inspect.StrType: _text,
        inspect.IntType: _integer,
        inspect.FloatType: _number,
        inspect.BoolType: _boolean,
        inspect.EnumType: _choice,
        inspect.LiteralType: _choice,
    },
)
