"""Reads an operator's document, YAML or JSON, as plain values, and refuses what can mislead.

Refused: duplicate keys, anchors, aliases and tags, several documents, keys that are not text,
deep nesting, thousands of elements. Unquoted scalars follow YAML's core schema, so `no` is text
and `1:30` is no number.

Reading is linear in the document, which is short, and what Python does for each element is bounded
by their number: characters are scanned in C.
"""

import json
import re
from collections.abc import Iterable, Iterator
from typing import Any, Final, NoReturn

import yaml

from app.contract.findings import pointer_to
from app.errors import ErrorCode, FieldError, NexusError

MAX_DOCUMENT_BYTES = 256 * 1024
MAX_DEPTH = 32
# Values and keys, and in YAML the ends of lists and mappings. A policy that names everything in 64
# overlays has under four thousand.
MAX_ELEMENTS = 5_000

# libyaml's parser; a PyYAML that was built without it has its own, which takes ten times as long.
_LOADER: Final = getattr(yaml, "CSafeLoader", yaml.SafeLoader)

_NULL = frozenset({"", "~", "null", "Null", "NULL"})
_TRUE = frozenset({"true", "True", "TRUE"})
_FALSE = frozenset({"false", "False", "FALSE"})
_INTEGER = re.compile(r"[-+]?[0-9]{1,40}", re.ASCII)
_FLOAT = re.compile(
    r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?|[-+]?\.(inf|nan)",
    re.ASCII | re.IGNORECASE,
)

Events = Iterator[Any]


def parse_document(text: bytes | str) -> object:
    """The document as dicts, lists and scalars.

    Raises NexusError: REQUEST_TOO_LARGE above MAX_DOCUMENT_BYTES, INVALID_BODY when it is neither
    YAML nor JSON, INVALID_FIELD with a pointer for what is refused.
    """
    raw = text.encode("utf-8", "surrogatepass") if isinstance(text, str) else text
    if len(raw) > MAX_DOCUMENT_BYTES:
        limit = f"The document must have at most {MAX_DOCUMENT_BYTES} bytes"
        raise NexusError(ErrorCode.REQUEST_TOO_LARGE, limit)
    try:
        source = raw.decode("utf-8-sig")
    except UnicodeDecodeError as exc:
        raise NexusError(ErrorCode.INVALID_BODY, "The document is not UTF-8") from exc
    if source.lstrip().startswith("{"):
        try:
            pairs = json.loads(source, object_pairs_hook=_Pairs, parse_constant=_refuse_constant)
        except RecursionError:
            _refuse("", f"is nested deeper than {MAX_DEPTH} levels")
        except ValueError:
            # A YAML flow mapping also starts with a brace; and YAML takes numbers of any length.
            pass
        else:
            return _from_json(pairs, _count_elements(), "", 0)
    return _from_yaml(source)


class _Pairs(list[tuple[str, object]]):
    """A JSON object as written, duplicates included."""


def _from_json(value: object, counted: Iterator[None], at: str, depth: int) -> object:
    _check_depth(at, depth)
    next(counted)
    if isinstance(value, _Pairs):
        found: dict[str, object] = {}
        for key, item in value:
            next(counted)
            where = _new_key(found, key, at)
            found[key] = _from_json(item, counted, where, depth + 1)
        return found
    if isinstance(value, list):
        return [_from_json(item, counted, f"{at}/{i}", depth + 1) for i, item in enumerate(value)]
    return value


def _from_yaml(source: str) -> object:
    try:
        # Events, not nodes: an alias is refused before anything could be expanded.
        events = _bounded(yaml.parse(source, Loader=_LOADER))
        next(events)  # the stream's start
        if isinstance(next(events), yaml.StreamEndEvent):
            return None
        value = _from_event(next(events), events, "", 0)
        next(events)  # the document's end
        if not isinstance(next(events), yaml.StreamEndEvent):
            _refuse("", "must be one document, not several")
    except yaml.YAMLError as exc:
        mark = getattr(exc, "problem_mark", None)
        where = "" if mark is None else f" at line {mark.line + 1}, column {mark.column + 1}"
        text = f"The document is neither YAML nor JSON{where}"
        raise NexusError(ErrorCode.INVALID_BODY, text, internal=str(exc)) from exc
    return value


def _bounded(events: Iterable[Any]) -> Events:
    for event, _ in zip(events, _count_elements(), strict=False):
        yield event


def _count_elements() -> Iterator[None]:
    """Goes on MAX_ELEMENTS times, and refuses the document then."""
    for _ in range(MAX_ELEMENTS):
        yield None
    _refuse("", f"has more than {MAX_ELEMENTS} elements")


def _from_event(event: Any, events: Events, at: str, depth: int) -> object:
    _check_depth(at, depth)
    if isinstance(event, yaml.AliasEvent) or event.anchor is not None:
        _refuse(at, "must not use anchors or aliases")
    if event.tag is not None:
        _refuse(at, "must not use tags")
    if isinstance(event, yaml.ScalarEvent):
        return event.value if event.style else _plain(event.value)
    if isinstance(event, yaml.SequenceStartEvent):
        items: list[object] = []
        while not isinstance(item := next(events), yaml.SequenceEndEvent):
            items.append(_from_event(item, events, f"{at}/{len(items)}", depth + 1))
        return items
    found: dict[str, object] = {}
    while not isinstance(key := next(events), yaml.MappingEndEvent):
        if not isinstance(key, yaml.ScalarEvent) or key.anchor or key.tag:
            _refuse(at, "must have plain text as keys")
        where = _new_key(found, key.value, at)
        found[key.value] = _from_event(next(events), events, where, depth + 1)
    return found


def _plain(text: str) -> object:
    if text in _NULL:
        return None
    if text in _TRUE or text in _FALSE:
        return text in _TRUE
    if _INTEGER.fullmatch(text):
        return int(text)
    return float(text.replace(".i", "i").replace(".n", "n")) if _FLOAT.fullmatch(text) else text


def _new_key(found: dict[str, object], key: str, at: str) -> str:
    where = pointer_to(at, key)
    if key in found:
        _refuse(where, "is written twice")
    return where


def _check_depth(at: str, depth: int) -> None:
    if depth > MAX_DEPTH:
        _refuse(at, f"is nested deeper than {MAX_DEPTH} levels")


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not JSON")


def _refuse(at: str, detail: str) -> NoReturn:
    error = FieldError(at, ErrorCode.INVALID_FIELD, detail)
    raise NexusError(
        ErrorCode.INVALID_FIELD,
        f"The document is not acceptable: {at or '/'} {detail}",
        errors=[error],
    )
