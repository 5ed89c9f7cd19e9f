"""What a heartbeat does: it keeps the name, moves the worker's news on, and says what was taken."""

import asyncio
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime, timedelta
from typing import Final
from uuid import UUID

import msgspec
import structlog

from app.clock import Clock
from app.db.session import Database
from app.errors import ErrorCode, FieldError, NexusError
from app.host_list import HostAllowList
from app.settings import DEFAULT_WORKER_LOST_S
from app.topology.directory import WorkerDirectory
from app.topology.hosts import check_host
from app.topology.repository import WorkerWrite, worker_claim, worker_forget
from app.transfer.wire import GonePayload, Heartbeat, HeartbeatAnswer, SinkEvent

OnSinkEvent = Callable[[str, SinkEvent], Awaitable[None]]
OnGone = Callable[[str, tuple[GonePayload, ...]], Awaitable[None]]
OnNewInstance = Callable[[str, datetime], Awaitable[None]]

MAX_WORKERS: Final = 1_000
# Heartbeats come this often, unless silence is judged sooner than five of them.
_HEARTBEAT_S: Final = 1.0
_BEATS_OF_SILENCE: Final = 5
# How often it is looked for workers that are lost.
_LOST_CHECK_S: Final = 30.0
_CHECKS_OF_LOSS: Final = 4
# The worker waits five seconds for its answer; events that are not through by then come again.
_EVENTS_S: Final = 2.5
_US_PER_S: Final = 1_000_000
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
log = structlog.get_logger("nexuskv.workers")


class WorkerIntake:
    """Takes heartbeats. `results` counts them: accepted, refused, or failed through no fault of
    the worker's.

    `on_sink_event` and `on_gone` return once their news is as durable as it has to be; what they
    raise for is not acknowledged, and the worker sends it again. Without `on_sink_event` no event
    is acknowledged. `on_new_instance` is told since when a name has its process, or that it was
    forgotten, or silent for `lost_s`: what was held under that name before is lost. It may be told
    so again.
    """

    def __init__(
        self,
        database: Database,
        directory: WorkerDirectory,
        hosts: HostAllowList,
        clock: Clock,
        *,
        silence_s: float,
        lost_s: float = DEFAULT_WORKER_LOST_S,
        on_sink_event: OnSinkEvent | None = None,
        on_gone: OnGone | None = None,
        on_new_instance: OnNewInstance | None = None,
    ) -> None:
        self._database = database
        self._directory = directory
        self._hosts = hosts
        self._clock = clock
        self._silence = timedelta(seconds=silence_s)
        self._lost_s = lost_s
        self._heartbeat_s = min(_HEARTBEAT_S, silence_s / _BEATS_OF_SILENCE)
        self._on_sink_event = on_sink_event
        self._on_gone = on_gone
        self._on_new_instance = on_new_instance
        # Worker -> when its row was last written, monotonic.
        self._written_us: dict[str, int] = {}
        # Worker -> the instance that `on_new_instance` was told of.
        self._told: dict[str, str] = {}
        self.results: dict[str, int] = {"accepted": 0, "refused": 0, "failed": 0}

    async def heartbeat(self, name: str, heartbeat: Heartbeat) -> HeartbeatAnswer:
        """Registers the worker, or renews its registration.

        Raises INVALID_FIELD, WORKER_HOST_NOT_ALLOWED, WORKER_NAME_TAKEN, OVERLOADED when there are
        too many workers, DATABASE_UNAVAILABLE.
        """
        try:
            answer = await self._take(name, heartbeat)
        except NexusError as error:
            self.results["failed" if error.retryable else "refused"] += 1
            raise
        except Exception:
            self.results["failed"] += 1
            raise
        self.results["accepted"] += 1
        return answer

    async def forget(self, name: str) -> bool:
        """Give the name up; a process that still has it registers again with its next heartbeat.

        False when there is no such worker. Raises DATABASE_UNAVAILABLE.
        """
        async with self._database.write() as session:
            forgotten = await worker_forget(session, name)
        self._written_us.pop(name, None)
        self._told.pop(name, None)
        self._directory.forget(name)
        if self._on_new_instance is not None:
            await self._on_new_instance(name, self._clock.now())
        return forgotten

    async def watch_lost(self) -> None:
        """`release_lost` again and again, for as long as the process runs."""
        failing = False
        while True:
            await asyncio.sleep(min(_LOST_CHECK_S, self._lost_s / _CHECKS_OF_LOSS))
            try:
                await self.release_lost()
            except Exception as error:  # noqa: BLE001 - what is not given back now is tried again
                if not failing:
                    log.warning("lost_workers_not_released", cause=repr(error))
                failing = True
            else:
                failing = False

    async def release_lost(self) -> None:
        """Tell of workers that were silent for `lost_s`: nobody is charged for them any longer.

        Silent for now, too: while Postgres is away nobody is, however long ago its heartbeat was.
        Raises DATABASE_UNAVAILABLE.
        """
        if self._on_new_instance is None:
            return
        await self._directory.poll()
        lost = [
            worker.name
            for worker in self._directory.workers()
            if not worker.available and worker.heartbeat_age_us >= self._lost_s * _US_PER_S
        ]
        # Whoever is silent was not heard since: what is charged later is for one that came back.
        before = self._clock.now() - self._silence
        for name in lost:
            await self._on_new_instance(name, before)

    async def _take(self, name: str, heartbeat: Heartbeat) -> HeartbeatAnswer:
        check_host("url", heartbeat.url, self._hosts)
        check_host("data_address", heartbeat.data_address, self._hosts)
        await self._register(name, heartbeat)
        await self._tell_of_instance(name)
        if heartbeat.gone_payloads:
            self._directory.note_gone(name, heartbeat.gone_payloads)
            if self._on_gone is not None:
                await self._on_gone(name, heartbeat.gone_payloads)
        return HeartbeatAnswer(
            accepted_events=await self._accepted(name, heartbeat.events),
            heartbeat_s=self._heartbeat_s,
        )

    async def _tell_of_instance(self, name: str) -> None:
        known = self._directory.get(name)
        if (
            self._on_new_instance is None
            or known is None
            or self._told.get(name) == known.instance_id
        ):
            return
        since = _EPOCH + timedelta(microseconds=known.instance_since_us)
        await self._on_new_instance(name, since)
        self._told[name] = known.instance_id

    async def _register(self, name: str, heartbeat: Heartbeat) -> None:
        current = self._directory.has_instance(name, heartbeat)
        now_us = self._clock.monotonic_us()
        written_us = self._written_us.get(name)
        if current and written_us is not None:
            if now_us - written_us < self._heartbeat_s * _US_PER_S:
                self._directory.note_alive(name, heartbeat.load)
                return
        elif self._directory.get(name) is None and len(self._directory) >= MAX_WORKERS:
            raise NexusError(
                ErrorCode.OVERLOADED,
                f"There are {MAX_WORKERS} workers already; DELETE /v1/workers/NAME forgets one",
            )
        self._written_us[name] = now_us
        try:
            await self._store(name, heartbeat)
        except Exception as error:
            self._written_us.pop(name, None)
            away = isinstance(error, NexusError) and error.code is ErrorCode.DATABASE_UNAVAILABLE
            if away and self._directory.has_instance(name, heartbeat):
                self._directory.note_alive(name, heartbeat.load)
            raise

    async def _store(self, name: str, heartbeat: Heartbeat) -> None:
        write = WorkerWrite(
            name=name,
            instance_id=_instance(heartbeat.instance_id),
            url=heartbeat.url,
            data_address=heartbeat.data_address,
            backends=[backend.value for backend in heartbeat.backends],
            tiers=[tier.value for tier in heartbeat.tiers],
            load=msgspec.structs.asdict(heartbeat.load),
        )
        async with self._database.write() as session:
            since = await worker_claim(session, write, self._clock.now(), silence=self._silence)
        if since is None:
            raise NexusError(
                ErrorCode.WORKER_NAME_TAKEN,
                f"A live worker at another address, or a later start of this one, is {name};"
                " choose another --node, or wait until it is silent",
            )
        self._directory.note_stored(name, heartbeat, since)

    async def _accepted(self, name: str, events: tuple[SinkEvent, ...]) -> tuple[str, ...]:
        accepted: list[str] = []
        if self._on_sink_event is None:
            return ()
        try:
            async with asyncio.timeout(_EVENTS_S):
                for event in events:
                    try:
                        await self._on_sink_event(name, event)
                    except NexusError as error:
                        log.info("sink_event_later", worker=name, cause=error.code.value)
                    except Exception:
                        # One that cannot be taken must not hold up those behind it.
                        log.exception("sink_event_not_taken", worker=name, event_id=event.event_id)
                    else:
                        accepted.append(event.event_id)
        except TimeoutError:
            log.warning("sink_events_delayed", worker=name, left=len(events) - len(accepted))
        return tuple(accepted)


def _instance(text: str) -> UUID:
    """Only the usual spelling: instances are compared as text, too."""
    try:
        found = UUID(text)
    except ValueError:
        found = None
    if found is None or str(found) != text:
        finding = FieldError("/instance_id", ErrorCode.INVALID_FIELD, "must be a lower-case uuid")
        raise NexusError(
            ErrorCode.INVALID_FIELD, f"{finding.pointer} {finding.detail}", errors=[finding]
        )
    return found
