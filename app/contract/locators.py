"""Locators of payloads: `node://WORKER/state/PAYLOAD`. Pure."""

import re
from typing import Final

_NODE: Final = re.compile(
    r"node://(?P<worker>[A-Za-z0-9][A-Za-z0-9._-]{0,127})"
    r"/state/(?P<payload>[A-Za-z0-9][A-Za-z0-9._~-]{0,254})",
    re.ASCII,
)


def parse_locator(locator: str) -> tuple[str, str] | None:
    """(worker, payload id); None for a locator of any other form: it is nothing of a worker's."""
    found = _NODE.fullmatch(locator)
    return None if found is None else (found["worker"], found["payload"])


def node_locator(worker: str, payload_id: str) -> str:
    """The locator of a payload; what `parse_locator` takes apart again."""
    return f"node://{worker}/state/{payload_id}"
