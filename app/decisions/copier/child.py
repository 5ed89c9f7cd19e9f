"""Runs the copier as a child process, and starts it again when it dies."""

import asyncio
import os
import sys
from asyncio.subprocess import PIPE, Process
from contextlib import suppress
from pathlib import Path
from typing import Final

import msgspec
import structlog

from app.clock import Clock
from app.decisions.copier.main import URL_VARIABLE, CopierOrder

_ENTRY: Final = "from app.decisions.copier.main import main; main()"
_PAUSE_LEAST_S: Final = 0.1
_PAUSE_MOST_S: Final = 5.0
_LASTED_US: Final = 10_000_000
_SLACK_S: Final = 5.0
log = structlog.get_logger("nexuskv.copier")


class CopierChild:
    """The copier of a spool directory. `pid` is None while it does not run."""

    def __init__(
        self,
        directory: Path,
        database_url: str,
        clock: Clock,
        *,
        drain_s: float,
        statement_timeout_s: float,
        log_level: str,
    ) -> None:
        self.restarts = 0
        self._order = CopierOrder(str(directory), log_level, drain_s, statement_timeout_s)
        self._env = os.environ | {URL_VARIABLE: database_url}
        self._clock = clock
        self._process: Process | None = None
        self._task: asyncio.Task[None] | None = None

    @property
    def pid(self) -> int | None:
        process = self._process
        return process.pid if process is not None and process.returncode is None else None

    def start(self) -> None:
        self._task = asyncio.create_task(self._keep(), name="copier")

    async def stop(self) -> None:
        """Let it store what is there, and end; it is killed where it does not.

        Between two tries one is started for it.
        """
        if self._task is not None:
            self._task.cancel()
            with suppress(asyncio.CancelledError):
                await self._task
        process = self._process
        if process is None or process.returncode is not None:
            process = await self._started()
        if process.stdin is not None:
            process.stdin.close()
        try:
            async with asyncio.timeout(self._order.drain_s + _SLACK_S):
                await process.wait()
        except TimeoutError:
            log.error("copier_killed", pid=process.pid)  # noqa: TRY400 - nothing of ours failed
            process.kill()
            await process.wait()

    async def _keep(self) -> None:
        pause_s = _PAUSE_LEAST_S
        while True:
            started_us = self._clock.monotonic_us()
            process = await self._started()
            code = await process.wait()
            self.restarts += 1
            log.error("copier_ended", exit_code=code, restarts=self.restarts)
            if self._clock.monotonic_us() - started_us >= _LASTED_US:
                pause_s = _PAUSE_LEAST_S
            await asyncio.sleep(pause_s)
            pause_s = min(2 * pause_s, _PAUSE_MOST_S)

    async def _started(self) -> Process:
        self._process = await asyncio.create_subprocess_exec(
            sys.executable, "-c", _ENTRY, msgspec.json.encode(self._order).decode(),
            stdin=PIPE,
            env=self._env,
            # A Ctrl-C at the terminal is for the service, which then ends all in order.
            start_new_session=True,
        )  # fmt: skip
        return self._process
