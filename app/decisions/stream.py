"""The stream of decisions as they become known: each reader polls in short reads, none waits."""

import asyncio
import re
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final
from uuid import UUID

import structlog
from sqlalchemy import Row

from app.db.session import Database
from app.decisions.repository import DecisionFilter
from app.decisions.stream_repository import StreamPosition, StreamRepository
from app.errors import ErrorCode, FieldError, NexusError

POLL_S: Final = 0.5
HEARTBEAT_S: Final = 15.0
# Of all tenants, chosen or not: what one read looks at has a bound.
BATCH_ROWS: Final = 500
# Half a minute of Postgres away; then the client comes back by itself.
MAX_FAILED_POLLS: Final = 60
_EVENT_ID: Final = re.compile(r"([0-9]{1,19})-([0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12})")
_MAX_XID: Final = 2**63 - 1

log = structlog.get_logger("nexuskv.stream")


@dataclass(frozen=True, slots=True)
class Batch:
    """Decisions in order, and up to where all was read; `full` when more is there already."""

    rows: Sequence[Row[Any]]
    position: StreamPosition
    full: bool


def event_id(position: StreamPosition) -> str:
    """What a client sends back as Last-Event-ID."""
    return f"{position.xid}-{position.decision_id}"


def position_of(last_event_id: str) -> StreamPosition:
    """Raises INVALID_FIELD for what is no id of this stream."""
    found = _EVENT_ID.fullmatch(last_event_id.strip())
    if found is None or int(found[1]) > _MAX_XID:
        raise _unknown_id()
    return StreamPosition(int(found[1]), UUID(found[2]))


class DecisionStream:
    """One reader's place in the stream."""

    def __init__(self, database: Database, chosen: DecisionFilter) -> None:
        self._database = database
        self._chosen = chosen
        self.position = StreamPosition(0)

    async def begin(self, after: StreamPosition | None) -> None:
        """Go to a position, or to now.

        Raises INVALID_FIELD for a position that this database has not come to, and
        DATABASE_UNAVAILABLE.
        """
        async with self._database.read() as session:
            fence = await StreamRepository(session).fence()
        if after is not None and after.xid > fence.next_one:
            raise _unknown_id()
        self.position = StreamPosition(fence.xid) if after is None else after

    async def read(self) -> Batch:
        """What has become known since. Raises DATABASE_UNAVAILABLE, and may be called again."""
        after = self.position
        async with self._database.read() as session:
            repository = StreamRepository(session)
            fence = await repository.fence()
            through = await repository.reach(after, fence, limit_rows=BATCH_ROWS)
            full = through is not None
            if through is None:
                # Below the fence nothing comes any more: the place is just before it.
                through = max(after, StreamPosition(fence.xid))
            rows = await repository.between(after, through, self._chosen)
        self.position = through
        return Batch(rows, through, full)


async def batches(
    stream: DecisionStream,
    goes_on: Callable[[], Awaitable[bool]],
    *,
    sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
) -> AsyncGenerator[Batch]:
    """What a stream reads, until `goes_on` says no; without rows when there were none for a while.

    The first tells where the stream begins. Ends by itself when Postgres stays away.
    """
    silent_s, failed = HEARTBEAT_S, 0
    while await goes_on():
        try:
            batch = await stream.read()
        except NexusError as error:
            failed += 1
            log.warning("stream_not_read", failed=failed, reason=error.internal)
            if failed >= MAX_FAILED_POLLS:
                return
            full = False
        else:
            failed, full = 0, batch.full
            if batch.rows:
                silent_s = 0.0
                yield batch
        if silent_s >= HEARTBEAT_S:
            silent_s = 0.0
            yield Batch((), stream.position, full=full)
        if not full:
            await sleep(POLL_S)
            silent_s += POLL_S


def _unknown_id() -> NexusError:
    detail = "Last-Event-ID must be the id of an event of this stream; leave it out to begin now"
    finding = FieldError("/header/Last-Event-ID", ErrorCode.INVALID_FIELD, detail)
    return NexusError(ErrorCode.INVALID_FIELD, detail, errors=[finding])
