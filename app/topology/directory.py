"""Every worker in this process's memory, and which of them can be asked for their states.

The table is polled; a heartbeat that this process took itself is known at once. Silence is time in
which this process *could have* heard of a heartbeat and did not: it advances with polls that
succeed, by at most a second each. While Postgres is away nobody falls silent, and when it is back
the workers have as long as ever to be heard.
"""

import asyncio
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any, Final, Literal

import structlog

from app.clock import Clock
from app.contract.enums import TierKind, TransferBackend
from app.db.session import Database
from app.errors import NexusError
from app.topology.repository import StoredWorker, workers_changed_since
from app.transfer.wire import GonePayload, Heartbeat, WorkerLoad

WorkerStatus = Literal["unknown", "available", "unavailable"]

MAX_GONE_PAYLOADS: Final = 10_000
_US_PER_S: Final = 1_000_000
# What a gap between two polls counts as silence, at most.
_MAX_STEP_US: Final = _US_PER_S
# Tombstones live for a day; whoever could not poll for an hour reads everything again.
_RELOAD_AFTER_US: Final = 3_600 * _US_PER_S
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_LOAD_FIELDS: Final = WorkerLoad.__struct_fields__
log = structlog.get_logger("nexuskv.workers")


@dataclass(frozen=True, slots=True)
class Worker:
    """A worker as last heard of. Times in microseconds; `instance_since_us` is wall time."""

    name: str
    instance_id: str
    url: str
    data_address: str
    backends: tuple[TransferBackend, ...]
    tiers: tuple[TierKind, ...]
    load: WorkerLoad
    instance_since_us: int
    available: bool
    heartbeat_age_us: int


@dataclass(slots=True)
class _Known:
    """`seen_us` is on the directory's own watch, `heard_us` on the monotonic clock."""

    instance_id: str
    url: str
    data_address: str
    backends: tuple[TransferBackend, ...]
    tiers: tuple[TierKind, ...]
    load: WorkerLoad
    instance_since_us: int
    seen_us: int
    heard_us: int
    heartbeat_us: int = -1
    available: bool = True
    # Tenant and payload id -> wall time at which it was reported gone, oldest first.
    gone: dict[tuple[str, str], int] = field(default_factory=dict)


class WorkerDirectory:
    """The workers one replica knows. One task per process; every question is answered at once."""

    def __init__(
        self, database: Database, clock: Clock, *, interval_s: float = 0.25, silence_s: float = 5.0
    ) -> None:
        self._database = database
        self._clock = clock
        self._interval_s = interval_s
        self._silence_us = round(silence_s * _US_PER_S)
        self._known: dict[str, _Known] = {}
        self._watch_us = 0
        self._polled_us: int | None = None
        self._fence = 0
        self._polling = asyncio.Lock()
        self._noted: set[str] = set()
        self._task: asyncio.Task[None] | None = None
        self._loaded = asyncio.Event()

    def __len__(self) -> int:
        return len(self._known)

    @property
    def loaded(self) -> bool:
        return self._loaded.is_set()

    async def wait_loaded(self) -> None:
        """Returns once the first poll has succeeded, however long that takes."""
        await self._loaded.wait()

    def status(self, name: str, registered_us: int, tenant: str, payload_id: str) -> WorkerStatus:
        """What became of a tenant's state in the memory of worker `name`, registered at that wall
        time.

        `unknown`: no worker has ever had the name here. `unavailable`: it is silent, or this
        process of it began after the state was registered, or it has since reported this tenant's
        payload gone. Costs a few dict look-ups and reads no clock.
        """
        known = self._known.get(name)
        if known is None:
            return "unknown"
        if not known.available or registered_us < known.instance_since_us:
            return "unavailable"
        if known.gone:
            gone_us = known.gone.get((tenant, payload_id))
            if gone_us is not None and registered_us <= gone_us:
                return "unavailable"
        return "available"

    def available(self, name: str) -> bool:
        """Whether the worker is known and not silent."""
        known = self._known.get(name)
        return known is not None and known.available

    def get(self, name: str) -> Worker | None:
        """The worker, silent or not; None when it is not known."""
        known = self._known.get(name)
        return None if known is None else self._shown(name, known)

    def workers(self) -> list[Worker]:
        """All of them, by name."""
        return [self._shown(name, self._known[name]) for name in sorted(self._known)]

    def counts(self) -> dict[str, int]:
        """How many are `available` and how many `unavailable`."""
        available = sum(known.available for known in self._known.values())
        return {"available": available, "unavailable": len(self._known) - available}

    def has_instance(self, name: str, heartbeat: Heartbeat) -> bool:
        """Whether exactly this process, at these addresses, is who is known under the name."""
        known = self._known.get(name)
        return (
            known is not None
            and known.instance_id == heartbeat.instance_id
            and known.url == heartbeat.url
            and known.data_address == heartbeat.data_address
            and known.backends == heartbeat.backends
            and known.tiers == heartbeat.tiers
        )

    def note_stored(self, name: str, heartbeat: Heartbeat, instance_since: datetime) -> None:
        """A heartbeat that this process has stored."""
        before = self._known.get(name)
        known = _Known(
            instance_id=heartbeat.instance_id,
            url=heartbeat.url,
            data_address=heartbeat.data_address,
            backends=heartbeat.backends,
            tiers=heartbeat.tiers,
            load=heartbeat.load,
            instance_since_us=_wall_us(instance_since),
            seen_us=self._watch_us,
            heard_us=self._clock.monotonic_us(),
        )
        if before is not None and before.instance_id == known.instance_id:
            known.gone, known.heartbeat_us = before.gone, before.heartbeat_us
        self._known[name] = known
        # A poll that is under way may have read the row before.
        self._noted.add(name)

    def note_alive(self, name: str, load: WorkerLoad) -> None:
        """A heartbeat of the process that is known, not stored: too soon, or Postgres is away."""
        known = self._known[name]
        known.load = load
        known.seen_us, known.heard_us = self._watch_us, self._clock.monotonic_us()
        known.available = True

    def note_gone(self, name: str, payloads: Iterable[GonePayload]) -> None:
        """Payloads that the worker no longer holds; of very many the oldest are forgotten."""
        known = self._known.get(name)
        if known is None:
            return
        now_us = self._clock.now_us()
        for payload in payloads:
            key = (payload.tenant, payload.payload_id)
            known.gone.pop(key, None)
            known.gone[key] = now_us
        while len(known.gone) > MAX_GONE_PAYLOADS:
            del known.gone[next(iter(known.gone))]

    def forget(self, name: str) -> None:
        """The name was given up: from now on it is unknown."""
        self._known.pop(name, None)
        self._noted.add(name)

    def start(self) -> None:
        self._task = asyncio.create_task(self._run(), name="workers")

    async def stop(self) -> None:
        if self._task is not None:
            self._task.cancel()
            with suppress(asyncio.CancelledError):
                await self._task

    async def poll(self) -> None:
        """Apply what changed since the last poll. Raises DATABASE_UNAVAILABLE."""
        async with self._polling:
            now_us = self._clock.monotonic_us()
            gap_us = 0 if self._polled_us is None else now_us - self._polled_us
            fence = 0 if gap_us > _RELOAD_AFTER_US else self._fence
            self._noted.clear()
            async with self._database.read() as session:
                changes = await workers_changed_since(session, fence)
                if changes.xmin < fence:
                    # Transaction ids went backwards: another cluster, or a restored one.
                    fence = 0
                    changes = await workers_changed_since(session, fence)
            self._watch_us += min(gap_us, _MAX_STEP_US)
            self._polled_us = now_us
            if fence == 0:
                names = {stored.name for stored in changes.workers} | self._noted
                self._known = {n: known for n, known in self._known.items() if n in names}
            passed_over = self._apply(changes.workers)
            # What was passed over is read again.
            self._fence = fence if passed_over else changes.xmin
            self._judge()
            self._loaded.set()

    def _apply(self, workers: Iterable[StoredWorker]) -> bool:
        """Whether some were passed over, because this process learnt more since they were read."""
        passed_over = False
        for stored in workers:
            if stored.name in self._noted:
                passed_over = True
            elif stored.forgotten:
                self._known.pop(stored.name, None)
            else:
                self._apply_one(stored)
        return passed_over

    def _apply_one(self, stored: StoredWorker) -> None:
        before = self._known.get(stored.name)
        instance_id = str(stored.instance_id)
        same = before is not None and before.instance_id == instance_id
        if before is not None and same and before.heartbeat_us == stored.heartbeat_us:
            return
        age_us = max(0, stored.age_us)
        known = _Known(
            instance_id=instance_id,
            url=stored.url,
            data_address=stored.data_address,
            backends=_members(TransferBackend, stored.backends),
            tiers=_members(TierKind, stored.tiers),
            load=_load(stored.load),
            instance_since_us=_wall_us(stored.instance_since),
            seen_us=self._watch_us - age_us,
            heard_us=self._clock.monotonic_us() - age_us,
            heartbeat_us=stored.heartbeat_us,
        )
        if before is not None and same:
            known.gone = before.gone
            known.seen_us = max(known.seen_us, before.seen_us)
            known.heard_us = max(known.heard_us, before.heard_us)
            known.available = before.available
        self._known[stored.name] = known

    def _judge(self) -> None:
        oldest_us = self._watch_us - self._silence_us
        for name, known in self._known.items():
            available = known.seen_us >= oldest_us
            if available != known.available:
                known.available = available
                log.info("worker_heard_again" if available else "worker_silent", worker=name)

    def _shown(self, name: str, known: _Known) -> Worker:
        return Worker(
            name=name,
            instance_id=known.instance_id,
            url=known.url,
            data_address=known.data_address,
            backends=known.backends,
            tiers=known.tiers,
            load=known.load,
            instance_since_us=known.instance_since_us,
            available=known.available,
            heartbeat_age_us=max(0, self._clock.monotonic_us() - known.heard_us),
        )

    async def _run(self) -> None:
        failing = False
        while True:
            try:
                await self.poll()
            # An absent schema or a bug: a watch that ended would keep dead workers available.
            except Exception as error:  # noqa: BLE001
                if not failing:
                    log.warning("workers_not_polled", cause=_cause(error))
                failing = True
            else:
                if failing:
                    log.info("workers_polled_again", known=len(self))
                failing = False
            await asyncio.sleep(self._interval_s)


def _wall_us(moment: datetime) -> int:
    return (moment - _EPOCH) // timedelta(microseconds=1)


def _members(kind: Any, values: Iterable[str]) -> tuple[Any, ...]:
    """The values that this version knows: a newer replica may have stored others."""
    known = {member.value: member for member in kind}
    return tuple(known[value] for value in values if value in known)


def _load(stored: dict[str, Any]) -> WorkerLoad:
    return WorkerLoad(**{name: int(stored.get(name, 0)) for name in _LOAD_FIELDS})


def _cause(error: Exception) -> str:
    return error.internal or error.message if isinstance(error, NexusError) else repr(error)
