"""Every registered engine in this process's memory: its view, its socket, and how both stand.

The table is polled; a registration that this process took itself is known at once. Each replica
follows every engine by itself, so what they know of one may differ for a moment.
"""

import asyncio
from collections import Counter
from collections.abc import AsyncGenerator, Iterable, Iterator, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

import msgspec
import structlog

from app.clock import Clock
from app.db.session import Database
from app.engines.copies import Copies
from app.engines.registration import EngineKey, EngineSpec
from app.engines.repository import StoredEngine, engines_changed_since
from app.engines.source import EngineSource, SourceStatus
from app.engines.spaces import Spaces
from app.engines.totals import EngineTotals
from app.engines.transport import Transport
from app.engines.views import EngineView, ViewState, ViewStatus
from app.errors import NexusError
from nexuskv_core import BlockIndex

_US_PER_S: Final = 1_000_000
# Tombstones live for a day; whoever could not poll for an hour reads everything again.
_RELOAD_AFTER_US: Final = 3_600 * _US_PER_S
# Of what was closed, memory is given back by and by: so many blocks, then others have a turn.
_SWEEP_BLOCKS: Final = 4_096
_SWEEPS: Final = 64
log = structlog.get_logger("nexuskv.engines")


@dataclass(frozen=True, slots=True)
class Engine:
    """A registration and what follows it; `source` is None where events are pushed."""

    spec: EngineSpec
    view: EngineView
    source: EngineSource | None
    registered_at: datetime


@dataclass(frozen=True, slots=True)
class EngineStatus:
    """An engine at one moment. `state` is the view's, or STALE; `source` None where pushed."""

    spec: EngineSpec
    registered_at: datetime
    state: ViewState
    view: ViewStatus
    source: SourceStatus | None


class EngineDirectory:
    """The engines one replica knows, on the event loop's thread."""

    def __init__(
        self,
        database: Database,
        clock: Clock,
        core: BlockIndex,
        spaces: Spaces,
        *,
        interval_s: float = 0.25,
        stale_s: float = 30.0,
        copies: Copies | None = None,
    ) -> None:
        self._database = database
        self._clock = clock
        self._core = core
        self._spaces = spaces
        self._interval_s = interval_s
        self.stale_us = round(stale_s * _US_PER_S)
        self.transport = Transport()
        # Whoever changes the index holds it; nobody does while a copy is written.
        self.writing = asyncio.Lock()
        self._copies = copies
        # Dropped, and not yet out of the index.
        self._leaving: set[EngineView] = set()
        # Goes up whenever they are other ones.
        self.registrations = 0
        self._engines: dict[EngineKey, Engine] = {}
        self._by_model: dict[str, list[EngineView]] = {}
        self._retired = EngineTotals()
        self._fence = 0
        self._polled_us: int | None = None
        # Whoever reads or writes the table, and then applies it, holds it.
        self._changing = asyncio.Lock()
        self._ending: set[asyncio.Task[None]] = set()
        self._task: asyncio.Task[None] | None = None
        self._loaded = asyncio.Event()

    def __len__(self) -> int:
        return len(self._engines)

    @property
    def loaded(self) -> bool:
        return self._loaded.is_set()

    async def wait_loaded(self) -> None:
        """Returns once the first poll has succeeded, however long that takes."""
        await self._loaded.wait()

    # ---- what there is

    def views_of(self, model: str) -> Sequence[EngineView]:
        """The views of the engines that run a model, empty for none. Not to be changed."""
        return self._by_model.get(model, ())

    def views(self) -> Iterator[EngineView]:
        """Of every engine."""
        return (engine.view for engine in self._engines.values())

    def get(self, key: EngineKey) -> Engine | None:
        """None where nothing is registered under the key."""
        return self._engines.get(key)

    def engines(self) -> list[Engine]:
        """All of them, by key."""
        return [self._engines[key] for key in sorted(self._engines)]

    def status(self, engine: Engine) -> EngineStatus:
        """How it stands; it walks over the engine's places, and is for people."""
        return EngineStatus(
            engine.spec,
            engine.registered_at,
            engine.view.state_at(self._clock.now_us(), self.stale_us),
            engine.view.status(),
            None if engine.source is None else engine.source.status(),
        )

    def counts(self) -> dict[str, int]:
        """How many engines are in each state."""
        now_us = self._clock.now_us()
        found = Counter(view.state_at(now_us, self.stale_us) for view in self.views())
        return {state.value: found[state] for state in ViewState}

    def replays(self) -> dict[str, int]:
        """Replays that engines were asked for, by how they ended."""
        return dict(self.transport.results)

    def retired(self) -> EngineTotals:
        """What engines that are no more had counted; a copy."""
        return msgspec.structs.replace(self._retired, events=dict(self._retired.events))

    def totals(self) -> EngineTotals:
        """What was counted since the process began, of engines that are no more as well."""
        found = self.retired()
        for view in self.views():
            found.add(view.status())
        return found

    # ---- changes

    @asynccontextmanager
    async def changing(self) -> AsyncGenerator[None]:
        """Held while the table is written and `apply` is told; no poll runs meanwhile."""
        async with self._changing:
            yield

    def apply(self, spec: EngineSpec, registered_at: datetime) -> None:
        """A registration that is stored. The same one again leaves its view alone."""
        before = self._engines.get(spec.key)
        if before is not None:
            if before.spec == spec:
                return
            self.drop(spec.key)
        view = EngineView(spec, self._core, self._spaces)
        if self._copies is not None:
            self._copies.claim(view)
        source = None
        if spec.endpoint is not None:
            source = EngineSource(view, self.transport, self._clock, self.writing)
            source.start()
        self._engines[spec.key] = Engine(spec, view, source, registered_at)
        self._by_model.setdefault(spec.model, []).append(view)
        self.registrations += 1

    def drop(self, key: EngineKey) -> None:
        """It is registered no more: its blocks leave the index, its socket is closed."""
        engine = self._engines.pop(key, None)
        if engine is None:
            return
        self.registrations += 1
        left = [view for view in self._by_model[engine.spec.model] if view is not engine.view]
        if left:
            self._by_model[engine.spec.model] = left
        else:
            del self._by_model[engine.spec.model]
        if engine.source is None:
            self._retire(engine.view)
            return
        self._leaving.add(engine.view)
        task = asyncio.create_task(self._end(engine.view, engine.source), name="engine's end")
        self._ending.add(task)
        task.add_done_callback(self._ending.discard)

    async def _end(self, view: EngineView, source: EngineSource) -> None:
        # What it took last has to leave as well.
        await source.stop()
        async with self.writing:
            self._leaving.discard(view)
            self._retire(view)

    def _retire(self, view: EngineView) -> None:
        self._retired.add(view.status(), gone=True)
        view.close()

    # ---- the table

    def start(self) -> None:
        self._task = asyncio.create_task(self._run(), name="engines")
        if self._copies is not None:
            self._copies.start(self._save)

    async def _save(self) -> None:
        if self._copies is None or not self.loaded:
            return
        async with self._changing, self.writing:
            leaving = [stream for view in self._leaving for stream in view.streams]
            await self._copies.save(list(self.views()), leaving)

    async def stop(self) -> None:
        if self._task is not None:
            self._task.cancel()
            with suppress(asyncio.CancelledError):
                await self._task
        for engine in self._engines.values():
            if engine.source is not None:
                await engine.source.stop()
        for task in list(self._ending):
            await task
        if self._copies is not None:
            await self._copies.stop()
            await self._save()
        self.transport.close()

    async def poll(self) -> None:
        """Apply what changed since the last poll. Raises DATABASE_UNAVAILABLE."""
        async with self._changing:
            now_us = self._clock.monotonic_us()
            gap_us = 0 if self._polled_us is None else now_us - self._polled_us
            fence = 0 if gap_us > _RELOAD_AFTER_US else self._fence
            async with self._database.read() as session:
                changes = await engines_changed_since(session, fence)
                if changes.xmin < fence:
                    # Transaction ids went backwards: another cluster, or a restored one.
                    fence = 0
                    changes = await engines_changed_since(session, fence)
            self._polled_us = now_us
            if fence == 0:
                stored = {one.key for one in changes.engines}
                for key in [key for key in self._engines if key not in stored]:
                    self.drop(key)
            self._apply_all(changes.engines)
            self._fence = changes.xmin
            if self._copies is not None:
                self._copies.abandon()
            self._loaded.set()

    def _apply_all(self, engines: Iterable[StoredEngine]) -> None:
        for stored in engines:
            if stored.forgotten:
                self.drop(stored.key)
                continue
            spec = decoded(stored.spec)
            if spec is None:
                # Stored by a newer version, in words that this one cannot follow.
                log.warning("engine_not_understood", instance_id=stored.key.instance_id)
                self.drop(stored.key)
            else:
                self.apply(spec, stored.registered_at)

    async def _run(self) -> None:
        failing = False
        while True:
            try:
                await self.poll()
            # An absent schema or a bug: a watch that ended would miss every registration.
            except Exception as error:  # noqa: BLE001
                if not failing:
                    log.warning("engines_not_polled", cause=_cause(error))
                failing = True
            else:
                if failing:
                    log.info("engines_polled_again", known=len(self))
                failing = False
            await self._sweep()
            await asyncio.sleep(self._interval_s)

    async def _sweep(self) -> None:
        for _ in range(_SWEEPS):
            async with self.writing:
                if self._core.sweep(_SWEEP_BLOCKS):
                    return
            await asyncio.sleep(0)


def encoded(spec: EngineSpec) -> dict[str, Any]:
    """As it is stored."""
    found: dict[str, Any] = msgspec.to_builtins(spec)
    return found


def decoded(stored: dict[str, Any]) -> EngineSpec | None:
    """None for what this version does not understand."""
    try:
        return msgspec.convert(stored, EngineSpec)
    except msgspec.ValidationError:
        return None


def _cause(error: Exception) -> str:
    return error.internal or error.message if isinstance(error, NexusError) else repr(error)
