"""Filters of a list as they stand in its address, so that a view can be handed on as a link."""

from collections.abc import Iterable, Mapping
from typing import Final
from urllib.parse import urlencode

from pydantic import ValidationError
from starlette.requests import Request

from app.errors import ErrorCode, FieldError, NexusError
from app.problem_fields import field_errors

_MAX_CHARS: Final = 512


class Chosen(dict[str, str]):
    """The filters that are filled in; any other is "", so that templates need not ask."""

    def __missing__(self, name: str) -> str:
        return ""


def given(request: Request, names: Iterable[str]) -> Chosen:
    """Those of these that are filled in. Raises INVALID_FIELD for one that is too long."""
    found = Chosen()
    for name in names:
        value = request.query_params.get(name, "").strip()
        if len(value) > _MAX_CHARS or "\x00" in value:
            detail = f"{name} has at most {_MAX_CHARS} characters, none of them U+0000"
            finding = FieldError(f"/query/{name}", ErrorCode.INVALID_FIELD, detail)
            raise NexusError(ErrorCode.INVALID_FIELD, detail, errors=[finding])
        if value:
            found[name] = value
    return found


def link(path: str, chosen: Mapping[str, str | None]) -> str:
    """The address of a list with these filters; None and "" are left out."""
    query = urlencode({name: value for name, value in chosen.items() if value})
    return f"{path}?{query}" if query else path


def refusal(error: ValidationError) -> NexusError:
    """A filter that no list takes, with what would be right."""
    findings, _ = field_errors([{**one, "loc": ("query", *one["loc"])} for one in error.errors()])
    first = findings[0]
    name = first.pointer.removeprefix("/query/")
    return NexusError(first.code, f"The filter {name}: {first.detail}", errors=findings)
