"""Lines of COPY's text format: a row as Postgres reads it, made by the process that has the values.

Text and not binary, because a row put together from parts that were escaped once costs a tenth of
encoding each of its columns by itself, and the decisions are the largest part of a lookup's cost.
Format: https://www.postgresql.org/docs/current/sql-copy.html, "Text Format".
"""

from collections.abc import Callable, Iterable
from datetime import datetime
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


# By exact type: a row has thirty values, and most are one of these.
_BY_TYPE: Final[dict[type, Callable[[Any], str]]] = {
    str: escaped,
    int: str,
    type(None): lambda _: NULL,
    UUID: str,
    FastUUID: str,
    datetime: str,
}


def line(values: Iterable[Any]) -> bytes:
    """A whole row, with its line end. Raises UnicodeEncodeError for a lone surrogate."""
    by_type = _BY_TYPE
    return ("\t".join([by_type.get(type(value), field)(value) for value in values]) + "\n").encode()
