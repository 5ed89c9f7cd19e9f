"""The SQL of the stream: decisions in the order in which their transactions began.

Below the oldest transaction that still runs, the fence, nothing can be added any more; so whoever
reads up to it and remembers where, misses nothing and meets nothing twice.
"""

from collections.abc import Sequence
from typing import Any, Final, NamedTuple
from uuid import UUID

from sqlalchemy import Row, literal, or_, select, text

from app.db.base import Xid8
from app.db.session import ReadSession
from app.decisions.models import DecisionRow
from app.decisions.repository import EXPORT_COLUMNS, DecisionFilter, conditions, named

_COLUMNS: Final = [column for column in EXPORT_COLUMNS if column.name != "inputs"]
_NO_ID: Final = UUID(int=0)
_FENCE: Final = text(
    "SELECT CAST(CAST(pg_snapshot_xmin(pg_current_snapshot()) AS text) AS bigint) AS fence,"
    " CAST(CAST(pg_snapshot_xmax(pg_current_snapshot()) AS text) AS bigint) AS next_one,"
    " set_config('plan_cache_mode', 'force_custom_plan', true)"
)


class StreamPosition(NamedTuple):
    """Everything up to here was read: of the transaction `xid`, up to and with this id."""

    xid: int
    decision_id: UUID = _NO_ID


class Fence(NamedTuple):
    """Transactions below `xid` have ended; from `next_one` on none has begun."""

    xid: int
    next_one: int


class StreamRepository:
    """Queries over one read session."""

    def __init__(self, session: ReadSession) -> None:
        self._session = session

    async def fence(self) -> Fence:
        """Comes before everything else in the session."""
        row = (await self._session.execute(_FENCE)).one()
        return Fence(row.fence, row.next_one)

    async def reach(
        self, after: StreamPosition, fence: Fence, *, limit_rows: int
    ) -> StreamPosition | None:
        """Where `limit_rows` decisions of all tenants end; None when fewer are below the fence."""
        ahead = (
            select(DecisionRow.xid, DecisionRow.decision_id)
            .where(*_after(after), DecisionRow.xid < _xid(fence.xid))
            .order_by(DecisionRow.xid, DecisionRow.decision_id)
            .offset(limit_rows - 1)
            .limit(1)
        )
        row = (await self._session.execute(ahead)).one_or_none()
        return None if row is None else StreamPosition(row.xid, row.decision_id)

    async def between(
        self, after: StreamPosition, through: StreamPosition, chosen: DecisionFilter
    ) -> Sequence[Row[Any]]:
        """The chosen of the decisions after one position up to another, in order.

        With `xid`, without `inputs`, and JSON columns as text.
        """
        values = named(chosen)
        statement = (
            select(*_COLUMNS, DecisionRow.xid)
            .where(*conditions(values), *_after(after), *_through(through))
            .order_by(DecisionRow.xid, DecisionRow.decision_id)
        )
        found: Sequence[Row[Any]] = (await self._session.execute(statement, values)).all()
        return found


def _after(position: StreamPosition) -> list[Any]:
    xid = _xid(position.xid)
    return [
        DecisionRow.xid.is_not(None),
        # Of a row comparison, only the first column could be looked up in the index.
        DecisionRow.xid >= xid,
        or_(DecisionRow.xid > xid, DecisionRow.decision_id > position.decision_id),
    ]


def _through(position: StreamPosition) -> list[Any]:
    xid = _xid(position.xid)
    return [
        DecisionRow.xid <= xid,
        or_(DecisionRow.xid < xid, DecisionRow.decision_id <= position.decision_id),
    ]


def _xid(number: int) -> Any:
    return literal(number, Xid8())
