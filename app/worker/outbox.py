"""What the API has yet to hear: what became of sinks, and which payloads are gone.

Bounded; when the API stays away for long, the oldest news are kept, what comes after them is
counted and logged, and a sink's facts still answer whoever asks. Used from the event loop only.
"""

import asyncio
from collections.abc import Iterable
from typing import Final, NamedTuple

import structlog

from app.transfer.wire import GonePayload, SinkEvent

MAX_EVENTS: Final = 10_000
MAX_GONE: Final = 20_000
# What one heartbeat carries at most of each.
BATCH: Final = 1_000

_log = structlog.get_logger("nexuskv.worker.outbox")


class News(NamedTuple):
    """What one heartbeat tells."""

    events: tuple[SinkEvent, ...]
    gone_payloads: tuple[GonePayload, ...]


class Outbox:
    """Keeps news until they were taken. `wake` is set whenever there are urgent ones."""

    def __init__(self, *, max_events: int = MAX_EVENTS, max_gone: int = MAX_GONE) -> None:
        self.wake = asyncio.Event()
        self.dropped_events = 0
        self.dropped_gone = 0
        self._max_events = max_events
        self._max_gone = max_gone
        # Insertion order is the order of sending.
        self._events: dict[str, SinkEvent] = {}
        # By tenant and id; each report is an object of its own.
        self._gone: dict[tuple[str, str], GonePayload] = {}
        # Whether something came after the last `news`.
        self._newer = False

    @property
    def pending(self) -> int:
        return len(self._events)

    def put(self, event: SinkEvent) -> None:
        if event.event_id not in self._events and len(self._events) >= self._max_events:
            self.dropped_events += 1
            _log.error("sink_event_dropped", sink_id=event.sink_id, state=event.state)
            return
        self._events[event.event_id] = event
        self._newer = True
        self.wake.set()

    def gone(self, tenant: str, payload_id: str) -> None:
        key = (tenant, payload_id)
        if key in self._gone:
            return
        if len(self._gone) >= self._max_gone:
            self.dropped_gone += 1
            _log.error("gone_payload_not_reported", tenant=tenant, payload_id=payload_id)
            return
        self._gone[key] = GonePayload(tenant, payload_id)

    def kept(self, tenant: str, payload_id: str) -> None:
        """The payload is there again: whatever was not told yet is not true any more."""
        self._gone.pop((tenant, payload_id), None)

    def news(self) -> News:
        """The oldest news; they stay until `taken`."""
        self._newer = False
        return News(tuple(self._events.values())[:BATCH], tuple(self._gone.values())[:BATCH])

    def taken(self, accepted_events: Iterable[str], told: News) -> None:
        """The API has these: of what `news` gave out, the events of these ids and every payload.

        An event that was put again meanwhile, or a payload that came back and went again, is
        another report: it is still to be told.
        """
        accepted = set(accepted_events)
        for event in told.events:
            if event.event_id in accepted and self._events.get(event.event_id) is event:
                del self._events[event.event_id]
        for report in told.gone_payloads:
            key = (report.tenant, report.payload_id)
            if self._gone.get(key) is report:
                del self._gone[key]
        if not self._newer and len(self._events) < BATCH and len(self._gone) < BATCH:
            self.wake.clear()
