"""The writing side of the history in one process: its spool, and what copies it to Postgres."""

import asyncio
import shutil
import tempfile
from enum import StrEnum
from pathlib import Path
from typing import Final

from app.clock import Clock, IdSource
from app.db.session import Database
from app.decisions.copier.child import CopierChild
from app.decisions.copier.copying import Copier
from app.decisions.spool.lock import REPLICA, DirectoryLock
from app.decisions.spool.writer import Spool, SpoolLimits
from app.settings import Settings

_UNWELL_US: Final = 10_000_000
_LEFT_POLL_S: Final = 0.05


class CopierPlace(StrEnum):
    """Where what this process spools is copied to Postgres."""

    CHILD = "child"  # by a process of this one
    HERE = "here"  # by a task of this one, as tests and programs that embed the service want it
    ELSEWHERE = "elsewhere"  # by that of another process with the same spool directory


class Recording:
    """`spool` takes rows from `start` on."""

    def __init__(self, settings: Settings, database: Database, clock: Clock, ids: IdSource) -> None:
        self._settings = settings
        self._database = database
        self._clock = clock
        self._ids = ids
        self._place = CopierPlace(settings.copier)
        self._own_directory: Path | None = None
        self._lock: DirectoryLock | None = None
        self._child: CopierChild | None = None
        self._copier: Copier | None = None
        self._task: asyncio.Task[None] | None = None
        self._started_us = 0
        self.spool = Spool(
            ids.uuid7(),
            clock,
            SpoolLimits(max_bytes=settings.spool_bytes, sync_interval_s=settings.spool_sync_s),
        )

    @property
    def alive(self) -> bool:
        """Whether rows are copied, or Postgres has not been away for long."""
        well_us = max(self.spool.well_at_us, self._started_us)
        return self._clock.now_us() - well_us < _UNWELL_US

    @property
    def copier_restarts(self) -> int:
        return 0 if self._child is None else self._child.restarts

    def start(self) -> None:
        """Raises SpoolInUseError, OSError."""
        settings = self._settings
        directory = settings.spool_dir
        if directory is None:
            directory = self._own_directory = Path(tempfile.mkdtemp(prefix="nexuskv-spool-"))
        if self._place is not CopierPlace.ELSEWHERE:
            self._lock = DirectoryLock(directory, REPLICA)
        self._started_us = self._clock.now_us()
        self.spool.open(directory)
        if self._place is CopierPlace.CHILD:
            self._child = CopierChild(
                directory,
                settings.database_url,
                self._clock,
                drain_s=settings.drain_s,
                statement_timeout_s=settings.statement_timeout_s,
                log_level=settings.log_level,
            )
            self._child.start()
        elif self._place is CopierPlace.HERE:
            self._copier = Copier(self._database, directory, self._clock, self._ids)
            self._task = asyncio.create_task(self._copier.run(), name="copier")

    async def stop(self) -> int:
        """Take no more rows, and let the copier store what is there, as long as that is given;
        returns how many are not known to be stored. They stay in the spool, if it is to stay.
        """
        drain_s = self._settings.drain_s
        self.spool.close()
        if self._child is not None:
            await self._child.stop()
        if self._copier is not None and self._task is not None:
            self._copier.drain()
            await asyncio.wait((self._task,), timeout=drain_s)
            self._task.cancel()
            # What keeps it from storing is in its log; the rows are counted as left.
            await asyncio.gather(self._task, return_exceptions=True)
            self._copier.close()
        left = await self._left(drain_s if self._place is CopierPlace.ELSEWHERE else 0.0)
        if self._lock is not None:
            self._lock.release()
        if self._own_directory is not None:
            shutil.rmtree(self._own_directory, ignore_errors=True)
        return left

    async def _left(self, wait_s: float) -> int:
        """How many rows are left, once there are none or the copier had that long for them."""
        for _ in range(round(wait_s / _LEFT_POLL_S)):
            if not self.spool.left():
                return 0
            await asyncio.sleep(_LEFT_POLL_S)
        return self.spool.left()
