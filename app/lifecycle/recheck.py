"""Postgres asked again: is the state that a handle names still the one that was matched?"""

from app.db.session import ReadSession
from app.execution.grants import OptionGrant, SourceGrant
from app.index.repository import StoredState, state_get


async def named_state(session: ReadSession, grant: SourceGrant | OptionGrant) -> StoredState | None:
    """The row that the grant names, whatever became of it; None when it never was that tenant's."""
    stored = await state_get(session, grant.state_id)
    return stored if stored is not None and stored.tenant == grant.tenant else None


def stands(stored: StoredState | None, grant: SourceGrant | OptionGrant) -> bool:
    """Whether it is live and still of the generation that was matched."""
    return (
        stored is not None and stored.deleted_at is None and stored.generation == grant.generation
    )
