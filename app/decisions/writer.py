"""Takes decisions off the request path: a bounded queue, and one task that copies it to Postgres.

Every recorded row takes the next number of this writer's sequence, also one that is refused
because the queue is full: a gap in the stored numbers of a `writer_id` is a loss, and nothing
else makes one.
"""

import asyncio
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from enum import StrEnum
from itertools import islice
from typing import Protocol

import structlog

from app.clock import Clock, IdSource
from app.db.session import Database
from app.decisions.record import Decision, Outcome, PendingDecision
from app.decisions.store import LOGGED_ROWS_PER_FLIGHT, BatchStore, Flight, Line, Waiting
from app.errors import NexusError

log = structlog.get_logger(__name__)

# A row's tuple, ids, dates and short strings, as CPython holds them.
_ROW_BASE_BYTES = 1024
# An observation and what it refers to that nothing else does.
_DEFERRED_BYTES = 2048
_ROWS_AT_A_TIME = 64
_FAILING_LONG_US = 10_000_000
_LOSS_LOG_INTERVAL_US = 10_000_000


class DecisionSink(Protocol):
    """Where the pipeline leaves what it decided. Neither call blocks, waits or raises."""

    def record(self, decision: Decision) -> None: ...

    def defer(self, pending: PendingDecision) -> None: ...

    def record_outcome(self, outcome: Outcome) -> None: ...


class LossReason(StrEnum):
    """Why a recorded row is not stored."""

    QUEUE_FULL = "queue_full"
    CLOSED = "closed"
    INVALID = "invalid"
    SHUTDOWN = "shutdown"


@dataclass(frozen=True, slots=True)
class WriterLimits:
    """Bounds of memory and time. `batch_rows` bounds how long encoding holds the event loop."""

    max_rows: int = 200_000
    max_bytes: int = 256 * 1024 * 1024
    batch_rows: int = 500
    # A batch must fit into one statement time-out, also when its rows are large.
    batch_bytes: int = 8 * 1024 * 1024
    flush_interval_s: float = 0.2
    retry_first_s: float = 0.05
    retry_max_s: float = 5.0


class DecisionWriter:
    """The sink of one API process. All calls come from its event loop's thread.

    Rows leave the queue only when their COPY is known to be committed. While Postgres is away the
    queue keeps them; once it is full the newest rows are refused, counted and logged.
    """

    def __init__(
        self,
        database: Database,
        ids: IdSource,
        clock: Clock,
        *,
        limits: WriterLimits | None = None,
        observe_flush_s: Callable[[float], object] = lambda _duration_s: None,
    ) -> None:
        self.writer_id = ids.uuid7()
        self.lost: dict[str, int] = dict.fromkeys(LossReason, 0)
        self._ids = ids
        self._clock = clock
        self._observe_flush_s = observe_flush_s
        self._limits = limits or WriterLimits()
        self._max_rows = self._limits.max_rows
        self._max_bytes = self._limits.max_bytes
        self._batch_rows = self._limits.batch_rows
        # Passing this length wakes the task; above it, the task goes on by itself.
        self._wake_at = self._batch_rows - 1
        self._store = BatchStore(database, self.writer_id)
        self._queue: deque[Waiting] = deque()
        self._queue_bytes = 0
        self._seq = 0
        self._closed = False
        self._flight: Flight | None = None
        self._wake = asyncio.Event()
        self._hurry = asyncio.Event()
        self._waiters: dict[asyncio.Future[None], int] = {}
        self._task: asyncio.Task[None] | None = None
        self._failing_since_us: int | None = None
        self._loss_logged = 0
        self._loss_logged_us: int | None = None

    @property
    def alive(self) -> bool:
        """Whether the task that stores rows is running, and has not been failing for long."""
        if self._task is None or self._task.done():
            return False
        failing_us = self._failing_since_us
        return failing_us is None or self._clock.monotonic_us() - failing_us < _FAILING_LONG_US

    @property
    def recorded(self) -> int:
        """Rows handed in so far: also the sequence number of the newest one."""
        return self._seq

    @property
    def pending(self) -> int:
        """Rows neither stored nor lost."""
        return len(self._queue)

    @property
    def pending_bytes(self) -> int:
        """Approximate memory of the pending rows."""
        return self._queue_bytes

    @property
    def lost_rows(self) -> int:
        """Rows that will never be stored; `lost` has them by reason."""
        return sum(self.lost.values())

    @property
    def stored(self) -> int:
        """Rows known to be in Postgres."""
        return self._seq - len(self._queue) - self.lost_rows

    @property
    def flushed_through(self) -> int:
        """Every row up to this number is stored, or counted as lost."""
        return self._queue[0][0] - 1 if self._queue else self._seq

    def record(self, decision: Decision) -> None:
        """Queue a decision for storage."""
        self._append(
            decision,
            _ROW_BASE_BYTES
            + len(decision.inputs)
            + len(decision.excluded)
            + len(decision.match or "")
            + len(decision.compatibility or "")
            + len(decision.estimate or ""),
        )

    def defer(self, pending: PendingDecision) -> None:
        """Queue a decision whose row is made when its batch is stored."""
        self._append(pending, _DEFERRED_BYTES)

    def record_outcome(self, outcome: Outcome) -> None:
        """Queue an outcome for storage; its decision was recorded before."""
        self._append(outcome, _ROW_BASE_BYTES + len(outcome.detail))

    def _append(self, row: Decision | Outcome | PendingDecision, row_bytes: int) -> None:
        self._seq = seq = self._seq + 1
        waiting = len(self._queue)
        queue_bytes = self._queue_bytes + row_bytes
        if waiting >= self._max_rows or queue_bytes > self._max_bytes:
            self.lost[LossReason.CLOSED if self._closed else LossReason.QUEUE_FULL] += 1
            return
        self._queue_bytes = queue_bytes
        self._queue.append((seq, row_bytes, row))
        if waiting == self._wake_at:
            self._wake.set()

    async def start(self) -> None:
        """Begin to flush. Rows recorded before are kept and flushed too."""
        self._task = asyncio.create_task(self._run(), name="decision-writer")

    async def wait_flushed(self, seq: int, *, wait_s: float) -> bool:
        """Flush now, and wait until every row up to `seq` is stored or lost; False when late."""
        if self.flushed_through >= seq:
            return True
        waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiters[waiter] = seq
        self._wake.set()
        with suppress(TimeoutError):
            async with asyncio.timeout(wait_s):
                await waiter
        self._waiters.pop(waiter, None)
        return self.flushed_through >= seq

    async def drain(self, deadline_s: float) -> int:
        """Refuse new rows and store the queued ones; return how many were left at the deadline.

        Rows left are counted as lost: they are not known to be stored.
        """
        self._closed = True
        self._max_rows = 0
        self._wake.set()
        self._hurry.set()
        if self._task is not None:
            await asyncio.wait([self._task], timeout=deadline_s)
            self._task.cancel()
            with suppress(asyncio.CancelledError):
                await self._task
        left = len(self._queue)
        if flight := self._flight:
            left -= flight.rows - flight.open_rows
            self.lost[LossReason.INVALID] += flight.given_up
            self._flight = None
        self.lost[LossReason.SHUTDOWN] += left
        self._queue.clear()
        self._queue_bytes = 0
        self._release_waiters()
        self._log_losses(now_us=None)
        return left

    async def _run(self) -> None:
        while not self._closed or self._queue:
            await _pause(self._wake, self._limits.flush_interval_s)
            if self._queue:
                await self._fly(Flight(await self._made_lines(list(self._next_batch()))))
            self._release_waiters()
            if self._must_go_on():
                self._wake.set()
            self._log_losses(now_us=self._clock.monotonic_us())

    def _next_batch(self) -> Iterator[Waiting]:
        room_bytes = self._limits.batch_bytes
        for queued in islice(self._queue, self._batch_rows):
            yield queued
            room_bytes -= queued[1]
            if room_bytes <= 0:
                return

    async def _made_lines(self, batch: list[Waiting]) -> list[Line | None]:
        """The batch as lines of COPY, made a few at a time: requests go on meanwhile.

        A row that cannot be made is None, and given up: it must not hold up the others.
        """
        made: list[Line | None] = []
        for position, (seq, _, row) in enumerate(batch, start=1):
            try:
                made.append(self._store.line(seq, row))
            except Exception as error:  # noqa: BLE001 - whatever it is, it is this row's
                if made.count(None) < LOGGED_ROWS_PER_FLIGHT:
                    # Without its traceback, which may quote what the row holds.
                    log.error(  # noqa: TRY400
                        "decision_row_refused", writer_seq=seq, error=type(error).__name__
                    )
                made.append(None)
            if position % _ROWS_AT_A_TIME == 0:
                await asyncio.sleep(0)
        return made

    def _must_go_on(self) -> bool:
        """Whether rows are left that should not wait for the interval."""
        full = len(self._queue) >= self._batch_rows or self._queue_bytes >= self._limits.batch_bytes
        return bool(self._queue) and (full or self._closed or bool(self._waiters))

    async def _fly(self, flight: Flight) -> None:
        self._flight = flight
        began_us = self._clock.monotonic_us()
        retry_s = self._limits.retry_first_s
        while flight.open_rows:
            try:
                await self._store.store(flight)
            except Exception as error:  # noqa: BLE001 - a writer that dies loses all that follows
                self._failing_since_us = self._failing_since_us or self._clock.monotonic_us()
                log.warning(
                    "decision_flush_failed",
                    error=type(error).__name__,
                    reason=error.internal if isinstance(error, NexusError) else None,
                    pending_rows=len(self._queue),
                    retry_s=retry_s,
                )
                self._log_losses(now_us=self._clock.monotonic_us())
                await _pause(self._hurry, retry_s * (0.5 + 0.5 * self._jitter()))
                retry_s = min(2 * retry_s, self._limits.retry_max_s)
        self._flight = self._failing_since_us = None
        self.lost[LossReason.INVALID] += flight.given_up
        take = self._queue.popleft
        self._queue_bytes -= sum(take()[1] for _ in range(flight.rows))
        self._observe_flush_s((self._clock.monotonic_us() - began_us) / 1e6)

    def _jitter(self) -> float:
        """A fraction from an id's random bits, so that replicas do not retry in step."""
        return (self._ids.uuid7().int & 0xFFFF) / 0x10000

    def _release_waiters(self) -> None:
        through = self.flushed_through
        for waiter in [waiter for waiter, seq in self._waiters.items() if seq <= through]:
            del self._waiters[waiter]
            if not waiter.done():
                waiter.set_result(None)

    def _log_losses(self, *, now_us: int | None) -> None:
        """One line for all losses since the last, at most every ten seconds; None logs now."""
        total = self.lost_rows
        if total == self._loss_logged:
            return
        last_us = self._loss_logged_us
        if now_us is not None and last_us is not None and now_us - last_us < _LOSS_LOG_INTERVAL_US:
            return
        log.error(
            "decisions_lost",
            lost_rows=total - self._loss_logged,
            lost_rows_total=total,
            by_reason=dict(self.lost),
            pending_rows=len(self._queue),
        )
        self._loss_logged = total
        self._loss_logged_us = now_us


async def _pause(signal: asyncio.Event, wait_s: float) -> None:
    """Wait for the signal, at most `wait_s`, and consume it."""
    with suppress(TimeoutError):
        async with asyncio.timeout(wait_s):
            await signal.wait()
    signal.clear()
