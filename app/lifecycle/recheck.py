"""Postgres asked again: is the state that a handle names still the one that was matched?"""

from collections import OrderedDict
from dataclasses import replace
from typing import Final
from uuid import UUID

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


# About 8 KiB of registration each.
MAX_SEEN: Final = 2_048
MAX_SEEN_BODY_CHARS: Final = 16_384


class SeenStates:
    """Rows as they were when they were read, for statements that prove them unchanged.

    What is here may be deleted, superseded or renewed by now: whoever plans with it has Postgres
    compare the tenant, the generation and the date in the statement that takes the option.
    """

    def __init__(self) -> None:
        # The one used last is at the end.
        self._rows: OrderedDict[UUID, StoredState] = OrderedDict()

    def see(self, stored: StoredState) -> None:
        """Remember it without its tokens, unless it is long."""
        if stored.body is None or len(stored.body) > MAX_SEEN_BODY_CHARS:
            self._rows.pop(stored.state_id, None)
            return
        self._rows[stored.state_id] = replace(stored, tokens=None)
        self._rows.move_to_end(stored.state_id)
        if len(self._rows) > MAX_SEEN:
            self._rows.popitem(last=False)

    def find(self, grant: OptionGrant) -> StoredState | None:
        """The row that the grant names, as it was; None when it was not of that generation."""
        stored = self._rows.get(grant.state_id)
        if stored is None or stored.tenant != grant.tenant or not stands(stored, grant):
            return None
        self._rows.move_to_end(grant.state_id)
        return stored
