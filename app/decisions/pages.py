"""Pages of the history: one walk shows one moment, whatever commits while it goes on."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Row

from app.db.session import ReadSession
from app.decisions.cursor import Place, Position, cursor_after, place_of
from app.decisions.repository import DecisionFilter, DecisionRepository


@dataclass(frozen=True, slots=True)
class DecisionList:
    """A page, newest first; `next_cursor` is None at the end."""

    rows: Sequence[Row[Any]]
    next_cursor: str | None


async def decision_page(
    session: ReadSession, chosen: DecisionFilter, *, cursor: str | None, page_items: int
) -> DecisionList:
    """The first page, or the one after `cursor`, which belongs to the same filters.

    Raises INVALID_CURSOR when it does not.
    """
    bound_to = chosen.bound()
    place = place_of(cursor, bound_to) if cursor is not None else None
    repository = DecisionRepository(session)
    now = await repository.moment()
    moment = now if place is None else place.moment
    after = None if place is None else place.position
    found = await repository.page(chosen, moment, after=after, limit_rows=page_items + 1)
    rows = found[:page_items]
    next_cursor = None
    if len(found) > page_items:
        last = Position(rows[-1].created_at, rows[-1].decision_id)
        next_cursor = cursor_after(Place(last, moment), bound_to)
    return DecisionList(rows, next_cursor)
