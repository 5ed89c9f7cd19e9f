"""Postgres asked again: is the state that a handle names still the one that was matched?"""

from uuid import UUID

from app.db.session import ReadSession
from app.index.repository import StoredState, state_get


async def still_valid(
    session: ReadSession, state_id: UUID, generation: int, tenant: str
) -> StoredState | None:
    """The live row; None when it was deleted, superseded, or never was that tenant's."""
    stored = await state_get(session, state_id)
    if stored is None or stored.deleted_at is not None:
        return None
    if stored.generation != generation or stored.tenant != tenant:
        return None
    return stored
