"""`GET /v1/decisions/stream`: decisions as server-sent events, as they become known."""

from collections.abc import AsyncGenerator
from typing import Annotated, Any, Final

from fastapi import Header, Query, Request
from fastapi.responses import Response

from app.api.declared import errors_of
from app.api.long_answers import LongAnswer, Places
from app.decisions.export import json_line
from app.decisions.schemas import StreamQuery
from app.decisions.stream import (
    Batch,
    DecisionStream,
    batches,
    event_id,
    position_of,
)
from app.decisions.stream_repository import StreamPosition
from app.dependencies import DecisionsReader, ServicesDep
from app.errors import ErrorCode, NexusError
from app.services import Services

MEDIA_TYPE: Final = "text/event-stream"
MAX_STREAMS: Final = 32
# For a client that lost its connection.
_RETRY_MS: Final = 2_000
_ROWS_AT_A_TIME: Final = 50
_HEADERS: Final = {"cache-control": "no-store", "x-accel-buffering": "no"}

LastEventId = Annotated[
    str | None,
    Header(
        alias="Last-Event-ID",
        max_length=64,
        description="The `id` of the last event seen: the stream goes on after it.",
    ),
]


class StreamRoute:
    """The route, and the places of the streams of one process."""

    def __init__(self) -> None:
        self._places = Places(MAX_STREAMS, "streams")

    async def serve(
        self,
        query: Annotated[StreamQuery, Query()],
        request: Request,
        principal: DecisionsReader,
        services: ServicesDep,
        last_event_id: LastEventId = None,
    ) -> Response:
        """Each event `decision` has one decision as in the list. They come in the order in which
        they were stored, none twice and none left out, also after a pause: send `Last-Event-ID`.
        Without it the stream begins now. It ends when the key is revoked, when the service stops,
        and after `for_s`; an event `end` says which.
        """
        after = position_of(last_event_id) if last_event_id is not None else None
        stream = DecisionStream(services.database, query.chosen(principal))
        await stream.begin(after)
        watch = _Watch(request, services, query.for_s)
        return LongAnswer(
            _events(stream, watch), self._places, media_type=MEDIA_TYPE, headers=_HEADERS
        )


def stream_responses() -> dict[int | str, dict[str, Any]]:
    """What the route answers with, for OpenAPI."""
    event = {
        "type": "object",
        "properties": {
            "event": {"type": "string", "enum": ["decision", "end"]},
            "data": {"type": "string", "description": "JSON: a decision, or the `reason`."},
            "id": {"type": "string", "description": "For `Last-Event-ID`."},
        },
    }
    events = {
        "description": "Events until the stream ends.",
        "content": {MEDIA_TYPE: {"schema": event}},
    }
    return {200: events} | errors_of(ErrorCode.UNKNOWN_FIELD, ErrorCode.TENANT_FORBIDDEN)


class _Watch:
    """Why a stream has to end, if it has to."""

    def __init__(self, request: Request, services: Services, for_s: float) -> None:
        self._scope = request.scope
        self._services = services
        self._until_us = services.clock.monotonic_us() + round(for_s * 1_000_000)
        self.reason = "database_unavailable"

    async def goes_on(self) -> bool:
        """Asked before each read. A key that is known to hold needs no look-up."""
        ended = None
        if self._services.draining:
            ended = "service_stops"
        elif self._services.clock.monotonic_us() > self._until_us:
            ended = "time_is_over"
        else:
            try:
                await self._services.access.authenticate(self._scope)
            except NexusError as error:
                ended = str(error.code)
        if ended is not None:
            self.reason = ended
        return ended is None


async def _events(stream: DecisionStream, watch: _Watch) -> AsyncGenerator[bytes]:
    yield b"retry: %d\n\n" % _RETRY_MS
    async for batch in batches(stream, watch.goes_on):
        for piece in _pieces(batch):
            yield piece
    yield b'event: end\ndata: {"reason":"%s"}\n\n' % watch.reason.encode()


def _pieces(batch: Batch) -> list[bytes]:
    """The events of a batch, some at a time; then where it ends, which is an event for nobody."""
    rows = batch.rows
    pieces = [
        b"".join(_event(row) for row in rows[first : first + _ROWS_AT_A_TIME])
        for first in range(0, len(rows), _ROWS_AT_A_TIME)
    ]
    pieces.append(b": up to here\nid: %s\n\n" % event_id(batch.position).encode())
    return pieces


def _event(row: Any) -> bytes:
    position = StreamPosition(row.xid, row.decision_id)
    return b"id: %s\nevent: decision\ndata: %s\n" % (
        event_id(position).encode(),
        json_line(row, leave_out="xid"),
    )
