"""States as the index takes them, without a database."""

from array import array
from hashlib import sha256
from typing import Any
from uuid import UUID

from app.clock import SystemIds
from app.contract.registration import Registration, parse_registration, registration_bytes
from app.index.registered import ScopeIdentity, StateRow
from tests.fixtures.wire import registration

IDS = SystemIds()
SECRET = bytes(range(32))


def parsed(tenant: str, entry_id: str = "state-1", **changes: Any) -> Registration:
    return parse_registration(registration(tenant, entry_id, **changes))


def row(
    tenant: str,
    entry_id: str = "state-1",
    *,
    id_: UUID | None = None,
    registered_us: int = 1,
    **changes: Any,
) -> StateRow:
    registered = parsed(tenant, entry_id, **changes)
    return StateRow(
        id_ or IDS.uuid7(),
        registered,
        array("I", registered.entry.identity.key.tokens).tobytes(),
        sha256(registration_bytes(registered)).digest(),
        registered_us,
    )


def scope(tenant: str, **changes: Any) -> ScopeIdentity:
    """The scope of `registration(tenant)`."""
    named = {
        "namespace": "default",
        "model": "model-1",
        "engine_family": "sglang",
        "semantic_type": "mha_kv",
    }
    return ScopeIdentity(tenant=tenant, **(named | changes))
