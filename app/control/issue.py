"""Making an API key: checks what was asked for, stores the digest, returns the text once."""

from collections.abc import Callable, Sequence

from app.clock import Clock
from app.control.keys import ALL_TENANTS, NewKey, Scope, generate
from app.control.repository import StoredKey, insert_key
from app.db.session import Database
from app.errors import ErrorCode, FieldError, NexusError

MAX_NAME_CHARS = 200
MAX_TENANTS = 1000


async def issue_key(
    database: Database,
    clock: Clock,
    random_bytes: Callable[[int], bytes],
    *,
    name: str,
    scopes: Sequence[Scope],
    tenants: Sequence[str],
) -> tuple[NewKey, StoredKey]:
    """Store a new key and return it: the text exists only in this answer.

    Raises INVALID_FIELD for an empty name, no scope or no tenant, DATABASE_UNAVAILABLE.
    """
    stored_tenants = _checked_tenants(tenants)
    if not name.strip() or len(name) > MAX_NAME_CHARS or not name.isprintable():
        raise _invalid("/name", f"A name has 1 to {MAX_NAME_CHARS} printable characters")
    if not scopes:
        raise _invalid("/scopes", "A key needs at least one scope")
    new = generate(random_bytes)
    stored = StoredKey(
        key_id=new.key_id,
        name=name,
        sha256=new.sha256,
        scopes=sorted({scope.value for scope in scopes}),
        tenants=stored_tenants,
        created_at=clock.now(),
        revoked_at=None,
    )
    async with database.write() as session:
        await insert_key(session, stored)
    return new, stored


def _checked_tenants(tenants: Sequence[str]) -> list[str]:
    """`*` swallows every other name. Raises INVALID_FIELD."""
    if ALL_TENANTS in tenants:
        return [ALL_TENANTS]
    if not 1 <= len(tenants) <= MAX_TENANTS:
        raise _invalid("/tenants", f"A key needs 1 to {MAX_TENANTS} tenants, or `*` for all")
    if not all(tenant.strip() and tenant.isprintable() for tenant in tenants):
        raise _invalid("/tenants", "A tenant is a non-empty name of printable characters")
    return sorted(set(tenants))


def _invalid(pointer: str, detail: str) -> NexusError:
    finding = FieldError(pointer, ErrorCode.INVALID_FIELD, detail)
    return NexusError(ErrorCode.INVALID_FIELD, detail, errors=[finding])
