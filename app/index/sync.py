"""Keeps this process's index equal to Postgres: a full load, then polls for what changed.

Changes are followed by the writing transaction's id behind a fence: a poll reads every row written
at or after the oldest transaction that was still running at the poll before. A commit that comes
late is therefore never passed over; a row seen twice is applied once.
"""

import asyncio
from contextlib import suppress
from typing import Final
from uuid import UUID

import msgspec
import structlog

from app.clock import Clock
from app.db.session import Database
from app.errors import NexusError
from app.index.matcher import Freshness, StateIndex
from app.index.registry import stored_row
from app.index.repository import (
    StoredState,
    change_fence,
    states_by_id,
    states_changed_since,
    states_stream,
)

_LOAD_BATCH_ROWS: Final = 100
_POLL_BATCH_ROWS: Final = 50
_US_PER_S: Final = 1_000_000
log = structlog.get_logger(__name__)


class IndexSync:
    """One task per process. `freshness` says whether absence from the index means anything."""

    def __init__(
        self,
        database: Database,
        index: StateIndex,
        clock: Clock,
        *,
        interval_s: float,
        stale_s: float,
    ) -> None:
        self._database = database
        self._index = index
        self._clock = clock
        self._interval_s = interval_s
        self._stale_us = round(stale_s * _US_PER_S)
        self._fence: str | None = None
        self._applied: dict[UUID, str] = {}
        self._last_success_us = 0
        self._task: asyncio.Task[None] | None = None
        self._loaded = asyncio.Event()

    @property
    def loaded(self) -> bool:
        return self._fence is not None

    async def wait_loaded(self) -> None:
        """Returns once the first load has succeeded, however long that takes."""
        await self._loaded.wait()

    def freshness(self) -> Freshness:
        if self._fence is None:
            return Freshness.LOADING
        if self._clock.monotonic_us() - self._last_success_us > self._stale_us:
            return Freshness.BEHIND
        return Freshness.CURRENT

    def start(self) -> None:
        self._task = asyncio.create_task(self._run(), name="index-sync")

    async def stop(self) -> None:
        if self._task is not None:
            self._task.cancel()
            with suppress(asyncio.CancelledError):
                await self._task

    async def poll(self) -> int:
        """Loads everything the first time, then what changed; how many rows were applied."""
        applied = await (self._load() if self._fence is None else self._follow(self._fence))
        self._last_success_us = self._clock.monotonic_us()
        return applied

    async def _load(self) -> int:
        count = 0
        async with self._database.read() as session:
            fence = await change_fence(session)
            # What a load before this one left here may have been deleted before this fence.
            self._index.clear()
            async for states in states_stream(session, _LOAD_BATCH_ROWS):
                count += self._apply(states)
                # Loading must not keep health checks waiting.
                await asyncio.sleep(0)
        self._fence = fence
        self._loaded.set()
        log.info("index_loaded", states=count)
        return count

    async def _follow(self, since: str) -> int:
        count = 0
        async with self._database.read() as session:
            fence = await change_fence(session)
            if int(fence) < int(since):
                # Transaction ids went backwards: this is another cluster, or a restored one.
                log.warning("index_reload", fence=fence, before=since)
                self._fence, self._applied = None, {}
                return 0
            changed = await states_changed_since(session, since)
            wanted = [state for state, xid in changed.items() if self._applied.get(state) != xid]
            for state_ids in _batches(wanted):
                count += self._apply(await states_by_id(session, state_ids))
        self._fence, self._applied = fence, changed
        return count

    def _apply(self, states: list[StoredState]) -> int:
        for stored in states:
            try:
                self._apply_one(stored)
            except (ValueError, MemoryError, msgspec.MsgspecError):
                # One unreadable row must not keep a replica from serving the others.
                log.exception("state_not_indexed", state_id=str(stored.state_id))
                # What it superseded can no longer be used: no match is better than a dead one.
                self._index.remove(stored.tenant, stored.entry_id, stored.generation - 1)
        return len(states)

    def _apply_one(self, stored: StoredState) -> None:
        if stored.deleted_at is None:
            self._index.upsert(stored_row(stored))
        else:
            self._index.remove(stored.tenant, stored.entry_id, stored.generation)

    async def _run(self) -> None:
        failing = False
        while True:
            try:
                await self.poll()
            except NexusError as error:
                if not failing:
                    log.warning("index_sync_failed", code=error.code.value, cause=error.internal)
                failing = True
            except Exception:
                if not failing:
                    log.exception("index_sync_failed")
                failing = True
            else:
                if failing:
                    log.info("index_sync_recovered")
                failing = False
            await asyncio.sleep(self._interval_s)


def _batches(state_ids: list[UUID]) -> list[list[UUID]]:
    return [
        state_ids[start : start + _POLL_BATCH_ROWS]
        for start in range(0, len(state_ids), _POLL_BATCH_ROWS)
    ]
