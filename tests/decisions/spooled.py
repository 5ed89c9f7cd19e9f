"""A spool and its copier in the test's own loop, on a real database."""

import asyncio
import shutil
from contextlib import suppress
from pathlib import Path
from typing import Any
from uuid import UUID

from sqlalchemy import select

from app.clock import SystemClock, SystemIds
from app.db.session import Database
from app.decisions.copier.copying import Copier, CopierLimits
from app.decisions.models import DecisionGapRow, DecisionWriterRow
from app.decisions.spool.writer import Spool, SpoolLimits

WAIT_S = 30.0
SEGMENT_BYTES = 1 << 20
QUICK: dict[str, Any] = {
    "flush_interval_s": 30.0,
    "retry_first_s": 0.001,
    "retry_max_s": 0.005,
}


class Spooled:
    """`record` and `record_outcome` go to `spool`; the copier runs from `start` on."""

    def __init__(
        self, database: Database, directory: Path, *, max_bytes: int = 1 << 26, **limits: Any
    ) -> None:
        self.directory = directory
        self.spool = Spool(
            SystemIds().uuid7(),
            SystemClock(),
            SpoolLimits(max_bytes=max_bytes, segment_bytes=SEGMENT_BYTES),
        )
        self.spool.open(directory)
        self.copier = Copier(
            database,
            directory,
            SystemClock(),
            SystemIds(),
            limits=CopierLimits(**(QUICK | limits)),
        )
        self.task: asyncio.Task[None] | None = None

    @property
    def writer_id(self) -> UUID:
        return self.spool.writer_id

    def start(self) -> None:
        self.task = asyncio.create_task(self.copier.run())

    async def stored(self, wait_s: float = WAIT_S) -> bool:
        """Whether all that was recorded is committed in time."""
        return await self.spool.wait_committed(self.spool.recorded, wait_s=wait_s)

    async def drain(self) -> None:
        """Close the spool, and let the copier end by itself."""
        self.spool.close()
        if self.task is None:
            self.start()
        assert self.task is not None
        self.copier.drain()
        async with asyncio.timeout(WAIT_S):
            await self.task
        self.copier.close()

    async def kill(self) -> None:
        if self.task is not None:
            self.task.cancel()
            with suppress(asyncio.CancelledError, Exception):
                await self.task
            self.task = None
        self.copier.close()

    def left_behind(self, directory: Path) -> Path:
        """A copy of the writer's directory as a process that was killed now would leave it."""
        assert self.spool.directory is not None
        copy = directory / self.writer_id.hex
        # Without what is being made beside us, which has another name in a moment.
        shutil.copytree(self.spool.directory, copy, ignore=shutil.ignore_patterns("*.new"))
        return copy


async def gaps(database: Database) -> list[tuple[int, int, str]]:
    async with database.read() as session:
        statement = select(
            DecisionGapRow.first_seq, DecisionGapRow.last_seq, DecisionGapRow.reason
        ).order_by(DecisionGapRow.writer_id, DecisionGapRow.first_seq)
        return [tuple(row) for row in (await session.execute(statement)).all()]


async def committed(database: Database, writer_id: UUID) -> int:
    async with database.read() as session:
        statement = select(DecisionWriterRow.committed_seq).where(
            DecisionWriterRow.writer_id == writer_id
        )
        return int(await session.scalar(statement) or 0)
