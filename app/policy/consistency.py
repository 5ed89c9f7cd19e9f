"""What a policy document must be beyond its form, and the values its findings stand on. Pure.

Both read the plain document, so that a document of the wrong form hears of everything at once.
"""

import json
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any, Final

from app.contract.enums import TransferBackend
from app.contract.findings import pointer_to
from app.errors import ErrorCode, FieldError

MAX_VALUE_CHARS = 200
# No list of a policy has more; longer ones are refused for their length.
_MAX_ITEMS = 16
_MAX_OVERLAYS = 64
_ENABLED = "enabled_transfer_backends"
_ORDER = "backend_priority_order"
_OVERLAYS = "backend_overlays"
_BACKENDS: Final = frozenset(backend.value for backend in TransferBackend)
_RESTRICTIONS = (
    "allowed_source_tiers",
    "allowed_target_tiers",
    "allowed_device_classes",
    "allowed_buffer_kinds",
)
_LISTS = (_ENABLED, _ORDER, *_RESTRICTIONS)
_OVERLAY_LISTS = (*_RESTRICTIONS, "allowed_materialization_capabilities")


def inconsistencies(document: object) -> Iterator[FieldError]:
    """Repeated values, and an order that does not hold exactly the enabled backends.

    What is malformed besides hides none of it: each conclusion is drawn from the items that are
    well-formed, and says what is true of them as they stand. What is no list, or longer than any
    list may be, has no such items.
    """
    if not isinstance(document, Mapping):
        return
    yield from _duplicates(document, _LISTS, "")
    yield from _order(_items(document, _ENABLED), _items(document, _ORDER))
    overlays = document.get(_OVERLAYS)
    if not isinstance(overlays, Mapping) or len(overlays) > _MAX_OVERLAYS:
        return
    for name, overlay in overlays.items():
        if isinstance(overlay, Mapping):
            yield from _duplicates(overlay, _OVERLAY_LISTS, pointer_to(f"/{_OVERLAYS}", name))


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


def _items(holder: Mapping[str, Any], field: str) -> list[Any]:
    """The list there, whatever its items are; empty for anything else."""
    items = holder.get(field)
    return items if isinstance(items, list) and len(items) <= _MAX_ITEMS else []


def _duplicates(
    holder: Mapping[str, Any], fields: tuple[str, ...], at: str
) -> Iterator[FieldError]:
    for field in fields:
        items = _items(holder, field)
        for index, item in enumerate(items):
            if isinstance(item, str) and item in items[:index]:
                yield _invalid(f"{pointer_to(at, field)}/{index}", "repeats an earlier value")


def _order(enabled: list[Any], order: list[Any]) -> Iterator[FieldError]:
    """Nothing follows from a list without a single backend: it has a finding of its own."""
    known_enabled, known_order = _backends(enabled), _backends(order)
    if not known_enabled or not known_order:
        return
    for index, backend in enumerate(order):
        if isinstance(backend, str) and backend in known_order.keys() - known_enabled.keys():
            yield _invalid(f"/{_ORDER}/{index}", "is not an enabled backend")
    for backend in known_enabled:
        if backend not in known_order:
            yield _invalid(f"/{_ORDER}", f"must also hold {backend}, which is enabled")


def _backends(items: list[Any]) -> dict[str, None]:
    """The backends among the items, each once, in their order."""
    return {item: None for item in items if isinstance(item, str) and item in _BACKENDS}


def _invalid(pointer: str, detail: str) -> FieldError:
    return FieldError(pointer, ErrorCode.INVALID_FIELD, detail)
