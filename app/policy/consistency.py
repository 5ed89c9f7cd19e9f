"""What a policy document must be beyond its form, and the values its findings stand on. Pure.

Both read the plain document, so that a document of the wrong form hears of everything at once.
"""

import json
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

from app.contract.findings import pointer_to
from app.errors import ErrorCode, FieldError

MAX_VALUE_CHARS = 200
# No list of a policy has more; longer ones are refused for their length.
_MAX_ITEMS = 16
_ENABLED = "enabled_transfer_backends"
_ORDER = "backend_priority_order"
_OVERLAYS = "backend_overlays"


def inconsistencies(document: object, malformed: frozenset[str]) -> Iterator[FieldError]:
    """Repeated values, and an order that does not hold exactly the enabled backends.

    `malformed` are the pointers already found wrong: nothing is concluded from what they hold.
    """
    if not isinstance(document, Mapping):
        return
    yield from _duplicates(document, "")
    overlays = document.get(_OVERLAYS)
    if isinstance(overlays, Mapping):
        for name, overlay in overlays.items():
            if isinstance(overlay, Mapping):
                yield from _duplicates(overlay, pointer_to(f"/{_OVERLAYS}", name))
    if not any(pointer.startswith((f"/{_ENABLED}", f"/{_ORDER}")) for pointer in malformed):
        yield from _order(document[_ENABLED], document[_ORDER])


def with_value(finding: FieldError, document: object) -> FieldError:
    """The finding with the value at its pointer as JSON, cut; as it is where nothing stands."""
    found = document
    for part in finding.pointer.split("/")[1:]:
        step = part.replace("~1", "/").replace("~0", "~")
        if isinstance(found, Mapping) and step in found:
            found = found[step]
        elif isinstance(found, list) and step.isdecimal() and int(step) < len(found):
            found = found[int(step)]
        else:
            return finding
    text = json.dumps(found, ensure_ascii=False).encode("utf-8", "replace").decode()
    cut = text if len(text) <= MAX_VALUE_CHARS else text[: MAX_VALUE_CHARS - 1] + "…"
    return replace(finding, value=cut)


def _duplicates(holder: Mapping[str, Any], at: str) -> Iterator[FieldError]:
    for field, items in holder.items():
        if not isinstance(items, list) or len(items) > _MAX_ITEMS:
            continue
        for index, item in enumerate(items):
            if isinstance(item, str) and item in items[:index]:
                yield _invalid(f"{pointer_to(at, field)}/{index}", "repeats an earlier value")


def _order(enabled: list[str], order: list[str]) -> Iterator[FieldError]:
    for index, backend in enumerate(order):
        if backend not in enabled:
            yield _invalid(f"/{_ORDER}/{index}", "is not an enabled backend")
    for backend in enabled:
        if backend not in order:
            yield _invalid(f"/{_ORDER}", f"must also hold {backend}, which is enabled")


def _invalid(pointer: str, detail: str) -> FieldError:
    return FieldError(pointer, ErrorCode.INVALID_FIELD, detail)
