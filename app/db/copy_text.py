"""Lines of COPY's text format: a row as Postgres reads it, made by the process that has the values.

Text and not binary, because a row put together from parts that were escaped once costs a tenth of
encoding each of its columns by itself, and the decisions are the largest part of a lookup's cost.
Format: https://www.postgresql.org/docs/current/sql-copy.html, "Text Format".
"""

from collections.abc import Iterable
from datetime import datetime
from functools import lru_cache
from types import NoneType
from typing import Any, Final
from uuid import UUID

from asyncpg.pgproto.pgproto import UUID as FastUUID  # noqa: N811 - a class, in C

NULL: Final = "\\N"
_ESCAPES: Final = str.maketrans({"\\": "\\\\", "\n": "\\n", "\r": "\\r", "\t": "\\t"})


def escaped(value: str) -> str:
    """A text or JSON value as one field; never NULL."""
    if "\\" in value or "\t" in value or "\n" in value or "\r" in value:
        return value.translate(_ESCAPES)
    return value


def json_field(value: str) -> str:
    """`escaped` for what a JSON encoder wrote: it holds no control characters."""
    return value.replace("\\", "\\\\")


def array_field(values: Iterable[str]) -> str:
    """A `text[]` as one field: every element quoted, so that none is read as NULL."""
    quoted = (value.replace("\\", "\\\\").replace('"', '\\"') for value in values)
    return escaped("{" + ",".join(f'"{value}"' for value in quoted) + "}")


def field(value: Any) -> str:
    """One value as a field. Raises TypeError for a type that no column of ours has."""
    if value is None:
        return NULL
    if isinstance(value, str):
        return escaped(value)
    if isinstance(value, bytes):
        return f"\\\\x{value.hex()}"
    if isinstance(value, (list, tuple)):
        return array_field(value)
    if isinstance(value, (bool, int, UUID, datetime)):
        return str(value)
    raise TypeError(f"COPY has no field for {type(value).__name__}")


# Stand in for what separates and marks fields while nothing else can be told from it.
_SEPARATOR, _NO_VALUE, _BYTES = "\x01", "\x02", "\x03"
_AS_STR: Final = frozenset({int, UUID, FastUUID})
_ARRAYS: Final = 1_024


@lru_cache(maxsize=_ARRAYS)
def _array(values: tuple[str, ...]) -> str:
    return array_field(values)


def line(row: Iterable[Any]) -> bytes:
    """A whole row, with its line end. Raises UnicodeEncodeError for a lone surrogate.

    Most rows have nothing to escape: then the whole line is looked at once, and not each value.
    """
    values = tuple(row)
    types = list(map(type, values))
    # Spelt out: a call for each of the values would be most of what a row costs.
    text = _SEPARATOR.join(
        [
            value if kind is str
            else _NO_VALUE if value is None
            else str(value) if kind in _AS_STR
            else value.isoformat(" ") if kind is datetime
            else _array(tuple(value)) if kind is list
            else _BYTES + value.hex() if kind is bytes
            else field(value)
            for kind, value in zip(types, values, strict=True)
        ]
    )  # fmt: skip
    if (
        "\\" in text
        or "\n" in text
        or "\t" in text
        or "\r" in text
        or text.count(_SEPARATOR) != len(types) - 1
        or text.count(_NO_VALUE) != types.count(NoneType)
        or text.count(_BYTES) != types.count(bytes)
    ):
        return ("\t".join(map(field, values)) + "\n").encode()
    text = text.replace(_SEPARATOR, "\t").replace(_NO_VALUE, NULL).replace(_BYTES, "\\\\x")
    return f"{text}\n".encode()
