"""Transfers by session: ordered once, joined, answered again, tried anew, cancelled.

At most so many run at a time, so many more wait; beyond that an order is refused. Whoever ordered
one may go away: the transfer does not depend on the request. Used from the event loop only.
"""

import asyncio
from collections import OrderedDict
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Final

import msgspec
import structlog

from app.clock import Clock
from app.contract.enums import TransferStatus
from app.errors import ErrorCode, NexusError
from app.transfer.wire import NewTransfer, SinkState, TransferFacts, TransferFailure
from app.worker.deadline import Deadline
from app.worker.failure import TransferFailedError
from app.worker.fetch import Stated, Stop
from app.worker.movement import BACKENDS, Movement
from app.worker.payloads import Payloads
from app.worker.sinks import Sinks
from app.worker.sources import Sources
from app.worker.targets import PayloadTarget, SinkTarget, Target

MAX_RUNNING: Final = 16
MAX_WAITING: Final = 256
# Sessions that ended: their facts can be read, and a repeated order is answered, for this long.
ENDED_S: Final = 3_600
MAX_ENDED: Final = 8_192
# How long a cancelled transfer may take to notice; no step inside it is longer.
_CANCEL_S: Final = 10.0

Key = tuple[str, str]

_log = structlog.get_logger("nexuskv.worker.transfers")


@dataclass(slots=True, eq=False)
class _Session:
    order: NewTransfer
    facts: TransferFacts
    stop: Stop = field(default_factory=Stop)
    task: asyncio.Task[None] | None = None
    # Waiting for its turn: no thread is at work, and the task may be interrupted.
    waiting: bool = False
    ended_us: int | None = None


class Transfers:
    """Every transfer into this worker."""

    def __init__(
        self,
        node: str,
        payloads: Payloads,
        sinks: Sinks,
        sources: Sources,
        clock: Clock,
        *,
        max_running: int = MAX_RUNNING,
        max_waiting: int = MAX_WAITING,
        max_ended: int = MAX_ENDED,
    ) -> None:
        self._node = node
        self._payloads = payloads
        self._sinks = sinks
        self._sources = sources
        self._clock = clock
        self._limit = max_running + max_waiting
        self._max_ended = max_ended
        self._slots = asyncio.Semaphore(max_running)
        self._threads = ThreadPoolExecutor(max_running, "transfer")
        self._sessions: dict[Key, _Session] = {}
        # Oldest first.
        self._ended: OrderedDict[Key, None] = OrderedDict()
        self._draining = False
        self.received_bytes = 0
        self.results: dict[str, int] = dict.fromkeys(("completed", *TransferFailure), 0)

    @property
    def running(self) -> int:
        return len(self._sessions) - len(self._ended)

    async def order(self, tenant: str, order: NewTransfer) -> TransferFacts:
        """Start, join or repeat; the facts when it ended, or after `wait_s`.

        Raises TRANSFER_CONFLICT for the same session with another order, OVERLOADED at the limit.
        """
        key = (tenant, order.session_id)
        found = self._sessions.get(key)
        if found is not None and _meaning(found.order) != _meaning(order):
            raise NexusError(
                ErrorCode.TRANSFER_CONFLICT,
                "there is a transfer of this session with another order; choose another session_id",
            )
        if found is None or not self._stands(tenant, found):
            found = self._start(key, order)
        if found.task is not None and not found.task.done():
            await asyncio.wait({found.task}, timeout=order.wait_s)
        return found.facts

    def facts(self, tenant: str, session_id: str) -> TransferFacts:
        """Raises NOT_FOUND, also for what another tenant has."""
        return self._find(tenant, session_id).facts

    async def cancel(self, tenant: str, session_id: str) -> TransferFacts:
        """The facts once it ended; of one that has ended before, as they are. Raises NOT_FOUND."""
        session = self._find(tenant, session_id)
        self._stop(session)
        if session.task is not None and not session.task.done():
            await asyncio.wait({session.task}, timeout=_CANCEL_S)
        return session.facts

    def sweep(self) -> None:
        """Forget what ended long ago."""
        oldest_us = self._clock.now_us() - ENDED_S * 1_000_000
        while self._ended:
            key = next(iter(self._ended))
            ended_us = self._sessions[key].ended_us
            if ended_us is None or ended_us > oldest_us:
                return
            self._forget(key)

    def refuse_new(self) -> None:
        self._draining = True

    async def drain(self, grace_s: float) -> None:
        """Wait for what runs, cancel what still does then, and return when nothing does."""
        self._draining = True
        tasks = {one.task for one in self._sessions.values() if one.task and not one.task.done()}
        if tasks:
            await asyncio.wait(tasks, timeout=grace_s)
        for session in self._sessions.values():
            self._stop(session)
        if tasks:
            await asyncio.wait(tasks, timeout=_CANCEL_S)
        self._threads.shutdown(wait=False)

    def _start(self, key: Key, order: NewTransfer) -> _Session:
        if self._draining or self.running >= self._limit:
            raise NexusError(
                ErrorCode.OVERLOADED,
                "the worker is stopping"
                if self._draining
                else f"{self._limit} transfers run or wait here; try again",
            )
        session = _Session(
            order,
            TransferFacts(
                session_id=order.session_id,
                status=TransferStatus.IN_FLIGHT,
                backend=order.backend,
                source_worker=order.source.worker,
                payload_id=order.source.payload_id,
                target_sink_id=order.target_sink_id,
                target_payload_id=order.target_payload_id,
            ),
        )
        self._ended.pop(key, None)
        self._sessions[key] = session
        deadline = Deadline(self._clock, order.deadline_s)
        try:
            target = self._target(key[0], order, session)
        except TransferFailedError as error:
            self._end(key, session, error)
            return session
        movement = Movement(
            self._node,
            self._payloads,
            self._sources,
            self._threads,
            key[0],
            order,
            deadline,
            session.stop,
        )
        session.task = asyncio.create_task(self._run(key, session, movement, target))
        return session

    def _stands(self, tenant: str, session: _Session) -> bool:
        """Whether the session answers for its order: it runs, or what it brought is still there.

        What the runtime took from its sink was there for it.
        """
        facts = session.facts
        if facts.status is not TransferStatus.COMPLETED:
            return facts.status is TransferStatus.IN_FLIGHT
        try:
            if facts.target_payload_id is not None:
                kept = self._payloads.facts(tenant, facts.target_payload_id)
                return kept.checksum == facts.checksum
            sink = self._sinks.facts(tenant, facts.target_sink_id or "")
        except NexusError:
            return False
        if sink.session_id != facts.session_id:
            return False
        if sink.state is SinkState.CONSUMED:
            # The receipt for it was lost, and with it perhaps what the runtime said.
            self._sinks.tell_again(tenant, sink.sink_id)
        return sink.state in (SinkState.COMPLETE, SinkState.CONSUMED)

    def _target(self, tenant: str, order: NewTransfer, session: _Session) -> Target:
        if order.backend not in BACKENDS:
            raise TransferFailedError(
                TransferFailure.BACKEND_UNSUPPORTED, f"this worker has no {order.backend}"
            )
        if order.target_payload_id is not None:
            return PayloadTarget(self._payloads, tenant, order.target_payload_id)
        return SinkTarget(self._sinks, tenant, order, lambda: self._stop(session))

    async def _run(self, key: Key, session: _Session, movement: Movement, target: Target) -> None:
        started_us = self._clock.monotonic_us()
        outcome: Stated | TransferFailedError
        try:
            try:
                await self._turn(session, movement)
            except TransferFailedError:
                target.abandon()
                raise
            started_us = self._clock.monotonic_us()
            try:
                outcome = await movement.run(target)
            finally:
                self._slots.release()
        except TransferFailedError as error:
            outcome = error
        except Exception:  # noqa: BLE001 - whoever waits for it is told, the log has the rest
            _log.exception("transfer_failed", session_id=session.order.session_id)
            outcome = TransferFailedError(
                TransferFailure.INTERNAL, "a fault of this worker; its log has the details"
            )
        self._end(key, session, outcome, self._clock.monotonic_us() - started_us)

    async def _turn(self, session: _Session, movement: Movement) -> None:
        """Wait for one. Raises TransferFailedError, and then has none."""
        movement.stop.check()
        session.waiting = True
        try:
            async with asyncio.timeout(movement.deadline.left_s()):
                await self._slots.acquire()
        except TimeoutError:
            raise TransferFailedError(
                TransferFailure.DEADLINE, "it had to wait for others until its deadline"
            ) from None
        except asyncio.CancelledError:
            raise TransferFailedError(
                TransferFailure.CANCELLED, "the transfer was cancelled"
            ) from None
        finally:
            session.waiting = False

    def _end(
        self,
        key: Key,
        session: _Session,
        outcome: Stated | TransferFailedError,
        transfer_us: int | None = None,
    ) -> None:
        if isinstance(outcome, Stated):
            session.facts = msgspec.structs.replace(
                session.facts,
                status=TransferStatus.COMPLETED,
                bytes_transferred=outcome.payload_bytes,
                checksum=outcome.checksum,
                transfer_us=transfer_us,
            )
            self.received_bytes += outcome.payload_bytes
            self.results["completed"] += 1
        else:
            cancelled = outcome.failure is TransferFailure.CANCELLED
            session.facts = msgspec.structs.replace(
                session.facts,
                status=TransferStatus.CANCELLED if cancelled else TransferStatus.FAILED,
                failure=outcome.failure,
                detail=outcome.detail,
            )
            self.results[outcome.failure] += 1
            _log.info("transfer_ended", failure=outcome.failure.value, detail=outcome.detail)
        session.ended_us = self._clock.now_us()
        self._ended[key] = None
        while len(self._ended) > self._max_ended:
            self._forget(next(iter(self._ended)))

    def _stop(self, session: _Session) -> None:
        if session.ended_us is not None:
            return
        session.stop.set()
        if session.task is not None and session.waiting:
            session.task.cancel()

    def _forget(self, key: Key) -> None:
        del self._ended[key]
        del self._sessions[key]

    def _find(self, tenant: str, session_id: str) -> _Session:
        found = self._sessions.get((tenant, session_id))
        if found is None:
            raise NexusError(ErrorCode.NOT_FOUND, "this worker has no such transfer")
        return found


def _meaning(order: NewTransfer) -> tuple[object, ...]:
    """What makes two orders the same: not the token, the address, nor how long to wait."""
    source = order.source
    return (
        source.worker,
        source.payload_id,
        source.checksum,
        source.payload_bytes,
        order.backend,
        order.target_sink_id,
        order.target_payload_id,
        order.engine_id,
        order.engine_generation,
    )
