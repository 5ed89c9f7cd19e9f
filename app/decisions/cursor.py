"""Where a page of decisions ends, of which moment the walk is, and the cursor that continues there.

The order is (`created_at`, `decision_id`), newest first, which is not the order of commit. So the
first page notes what had committed, and every page shows of that: a row that commits later, behind
or ahead of a position that a reader has passed, is in no page of that walk, and the others are in
one each.
"""

from collections.abc import Mapping
from datetime import UTC, datetime
from itertools import accumulate, pairwise
from typing import NamedTuple, Self
from uuid import UUID

from app.errors import ErrorCode, NexusError
from app.paging import decode_cursor, encode_cursor

# Names the list and the meaning of its position: change it with the order.
_KIND = "decisions.created_at.v2"
_MAX_XID = 2**63 - 1
_LAST_YEAR = 9999


class Moment(NamedTuple):
    """What had committed at one moment: Postgres's `pg_snapshot`, small enough for a cursor.

    Transactions below `oldest` had ended, those from `next_one` on had not begun; of those between,
    the ones that `steps` leads to, each counted from the one before, were running.
    """

    oldest: int
    next_one: int
    steps: tuple[int, ...]

    @classmethod
    def read(cls, text: str) -> Self:
        """From the text that Postgres writes, `xmin:xmax:xip,xip,...`."""
        oldest, next_one, running = text.split(":")
        ids = [int(oldest), *(int(xid) for xid in running.split(",") if xid)]
        return cls(ids[0], int(next_one), tuple(b - a for a, b in pairwise(ids)))

    def __str__(self) -> str:
        """The text that Postgres reads."""
        running = list(accumulate(self.steps, initial=self.oldest))[1:]
        return f"{self.oldest}:{self.next_one}:{','.join(map(str, running))}"

    @property
    def sound(self) -> bool:
        """Whether Postgres reads it: a cursor comes from outside, and its tag is no signature."""
        last = self.oldest + sum(self.steps)
        first, *rest = self.steps or (0,)
        return (
            0 < self.oldest <= self.next_one <= _MAX_XID
            and first >= 0
            and all(step > 0 for step in rest)
            and (not self.steps or last < self.next_one)
        )


class Position(NamedTuple):
    """The last decision of a page."""

    created_at: datetime
    decision_id: UUID


class Place(NamedTuple):
    """What a cursor holds."""

    position: Position
    moment: Moment


def cursor_after(place: Place, filters: Mapping[str, object]) -> str:
    return encode_cursor(_KIND, filters, place)


def _in_calendar(moment: datetime) -> bool:
    """Whether Postgres and the driver can be asked with it."""
    try:
        return moment.tzinfo is not None and moment.astimezone(UTC).year < _LAST_YEAR
    except OverflowError:
        return False


def place_of(cursor: str, filters: Mapping[str, object]) -> Place:
    """Return where the page begins; raises INVALID_CURSOR."""
    place = decode_cursor(_KIND, filters, cursor, Place)
    if not place.moment.sound or not _in_calendar(place.position.created_at):
        raise NexusError(ErrorCode.INVALID_CURSOR, "The cursor is altered; start again without it")
    return place
