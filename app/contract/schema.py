"""The JSON Schema documents (2020-12) generated from the types; checked in under `openapi/`."""

from collections.abc import Sequence
from typing import Any

import msgspec

from app.contract.execution import BackendActionResult, TransferSession
from app.contract.limits import CONTRACT_VERSION
from app.contract.match import MatchResult, PartialHitPlan
from app.contract.registration import Registration

_DIALECT = "https://json-schema.org/draft/2020-12/schema"
STATE_CONTRACT_FILE = "state_contract.v1.json"
EXECUTION_FILE = "execution.v1.json"


def schemas() -> dict[str, dict[str, Any]]:
    """One document per file name: plain JSON values, the same on every run."""
    return {
        STATE_CONTRACT_FILE: _document(
            CONTRACT_VERSION,
            "A state registration, a match result or a partial-hit plan.",
            (Registration, MatchResult, PartialHitPlan),
        ),
        EXECUTION_FILE: _document(
            "nexuskv.execution.v1",
            "A transfer session or the result of a backend's action.",
            (TransferSession, BackendActionResult),
        ),
    }


def _document(title: str, description: str, roots: Sequence[type]) -> dict[str, Any]:
    references, components = msgspec.json.schema_components(roots, ref_template="#/$defs/{name}")
    document = {
        "$schema": _DIALECT,
        "title": title,
        "description": description,
        "anyOf": list(references),
        "$defs": dict(sorted(components.items())),
    }
    # Defaults are Python values (tuples, enums); one round trip leaves JSON values only.
    return dict(msgspec.json.decode(msgspec.json.encode(document)))
