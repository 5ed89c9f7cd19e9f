"""Keyset pages: the opaque cursor and the page length every list of the API shares.

A cursor is `base64url(version | tag | position)`. The tag covers kind, filters and position, so
a cursor presented to another list, with other filters, or altered, is refused. It carries no
authority: every query applies the caller's tenants whatever the cursor says. The tag is therefore
a checksum and needs no secret, and any replica honours any other's cursors.
"""

import hashlib
from base64 import b64decode, urlsafe_b64encode
from collections.abc import Mapping
from typing import Annotated, TypeVar

import msgspec
from pydantic import AfterValidator, Field

from app.errors import ErrorCode, FieldError, NexusError

DEFAULT_PAGE_ITEMS = 100
MAX_PAGE_ITEMS = 1000
MAX_CURSOR_CHARS = 1024

# Raise it when the position of any list changes meaning: older cursors are then refused, not
# misread.
_VERSION = b"\x01"
_TAG_BYTES = 16

P = TypeVar("P")


def coerce_page_size(requested_items: int) -> int:
    """Return the items of a page: 1,000 at most; below 1 raises INVALID_FIELD."""
    if requested_items < 1:
        finding = FieldError(
            "/query/page_size", ErrorCode.INVALID_FIELD, "page_size must be at least 1"
        )
        raise NexusError(ErrorCode.INVALID_FIELD, finding.detail, errors=[finding])
    return min(requested_items, MAX_PAGE_ITEMS)


PageSize = Annotated[
    int,
    AfterValidator(coerce_page_size),
    Field(
        description=f"Items of a page; more than {MAX_PAGE_ITEMS} is taken as {MAX_PAGE_ITEMS}.",
        json_schema_extra={"minimum": 1},
    ),
]
Cursor = Annotated[
    str | None,
    Field(description="`next_cursor` of the page before, with the same filters."),
]


def encode_cursor(kind: str, filters: Mapping[str, object], position: object) -> str:
    """Return the opaque cursor that continues after `position` of the list `kind`.

    `filters` and `position` hold what msgspec can encode (str, int, UUID, aware datetime, None);
    filters that are None count as absent, and their order does not matter.
    """
    body = msgspec.msgpack.encode(position)
    return urlsafe_b64encode(_VERSION + _tag(kind, filters, body) + body).decode().rstrip("=")


def decode_cursor(
    kind: str, filters: Mapping[str, object], cursor: str, position_type: type[P]
) -> P:
    """Return the position in `cursor`.

    Raises INVALID_CURSOR when it is malformed, altered, of another version, list or filters.
    """
    if len(cursor) > MAX_CURSOR_CHARS:
        raise _invalid("cursor too long")
    try:
        raw = b64decode(cursor + "=" * (-len(cursor) % 4), altchars=b"-_", validate=True)
    except ValueError as error:
        raise _invalid("cursor is not base64url") from error
    version, tag, body = raw[:1], raw[1 : 1 + _TAG_BYTES], raw[1 + _TAG_BYTES :]
    if version != _VERSION:
        raise _invalid("cursor version unknown")
    if tag != _tag(kind, filters, body):
        raise _invalid("cursor of another list or other filters, or altered")
    try:
        return msgspec.msgpack.decode(body, type=position_type)
    except msgspec.DecodeError as error:
        raise _invalid("cursor position of another shape") from error


def _tag(kind: str, filters: Mapping[str, object], body: bytes) -> bytes:
    bound = sorted((name, value) for name, value in filters.items() if value is not None)
    digest = hashlib.blake2b(digest_size=_TAG_BYTES, person=b"nexuskv-cursor")
    digest.update(_VERSION)
    digest.update(msgspec.msgpack.encode((kind, bound)))
    digest.update(body)
    return digest.digest()


def _invalid(internal: str) -> NexusError:
    return NexusError(
        ErrorCode.INVALID_CURSOR,
        "The cursor does not belong to this list and these filters; start again without it",
        internal=internal,
    )
