"""Where a page of decisions ends, and the cursor that continues there.

The order is (`created_at`, `decision_id`), newest first. It is not the order of commit: a row
that commits late, behind a position a reader has passed, is missed by that walk.
"""

from datetime import datetime
from typing import Any, NamedTuple
from uuid import UUID

from app.paging import decode_cursor, encode_cursor

# Names the list and the meaning of its position: change it with the order.
_KIND = "decisions.created_at.v1"


class Position(NamedTuple):
    """The last decision of a page."""

    created_at: datetime
    decision_id: UUID


def cursor_after(position: Position, filters: dict[str, Any]) -> str:
    return encode_cursor(_KIND, filters, position)


def position_of(cursor: str, filters: dict[str, Any]) -> Position:
    """Return where the page begins; raises INVALID_CURSOR."""
    return decode_cursor(_KIND, filters, cursor, Position)
