"""Operators' documents as request bodies, YAML or JSON, and conditions on what is in force."""

import re
from typing import Annotated, Any, Final

from fastapi import Header, Request

from app.errors import ErrorCode, NexusError

MEDIA_TYPES: Final = ("application/json", "application/yaml", "text/yaml")
# What a document can be refused for, before anything is read in it and after.
UNREADABLE: Final = (ErrorCode.UNSUPPORTED_MEDIA_TYPE, ErrorCode.INVALID_BODY)
REFUSED: Final = (*UNREADABLE, ErrorCode.MISSING_FIELD, ErrorCode.UNKNOWN_FIELD)
_MAX_CONDITION_CHARS: Final = 1024
# `"NUMBER-DIGEST"`, as `entity_tag` writes it; a digest alone would not tell A, B, A apart.
_ENTITY_TAG: Final = re.compile(r'"(\d{1,18})-[0-9a-f]{16}"', re.ASCII)
_DIGEST_CHARS: Final = 16

EntityTags = Annotated[
    str | None,
    Header(
        max_length=_MAX_CONDITION_CHARS,
        description="`ETag` values of what is in force, or `*`.",
    ),
]


def require_document(request: Request) -> None:
    """Raises UNSUPPORTED_MEDIA_TYPE for a body that is neither YAML nor JSON by its type."""
    media_type = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if media_type not in MEDIA_TYPES:
        raise NexusError(
            ErrorCode.UNSUPPORTED_MEDIA_TYPE,
            f"Send the document as one of: {', '.join(MEDIA_TYPES)}",
        )


def document_body(*schemas: str) -> dict[str, Any]:
    """Bodies are decoded by the document's own reader; this publishes what they hold: one of these
    schemas.
    """
    references = [{"$ref": f"#/components/schemas/{schema}"} for schema in schemas]
    body = references[0] if len(references) == 1 else {"oneOf": references}
    content = {media_type: {"schema": body} for media_type in MEDIA_TYPES}
    return {"requestBody": {"required": True, "content": content}}


def entity_tag(number: int, content_sha256: str) -> str:
    """The tag of a version in force, by its number and the hex digest of its content."""
    return f'"{number}-{content_sha256[:_DIGEST_CHARS]}"'


def expected_numbers(if_match: str | None) -> frozenset[int] | None:
    """The versions that If-Match admits; None when it admits every one."""
    if if_match is None or if_match.strip() == "*":
        return None
    # A tag of another form was never given by us, so it matches nothing.
    found = (_ENTITY_TAG.fullmatch(tag.strip()) for tag in if_match.split(","))
    return frozenset(int(tag[1]) for tag in found if tag is not None)


def names_tag(if_none_match: str, tag: str) -> bool:
    """Whether If-None-Match names the tag; for reading, a weak one is as good."""
    named = {part.strip().removeprefix("W/") for part in if_none_match.split(",")}
    return tag in named or "*" in named
