"""The copier as a process of its own: started with its order as JSON, ended by the end of stdin.

Its parent holds the other end of stdin: when that one goes, however it does, what was spooled is
stored, as far as that is possible within the time it was given, and the rest stays for the next.
"""

import asyncio
import gc
import os
import signal
import sys
from contextlib import suppress
from pathlib import Path
from typing import Final

import msgspec
import structlog
import uvloop

from app.clock import SystemClock, SystemIds
from app.db.session import Database
from app.decisions.copier.copying import Copier
from app.decisions.spool.lock import COPIER, DirectoryLock, SpoolInUseError
from app.logging import configure_logging

URL_VARIABLE: Final = "NEXUSKV_DATABASE_URL"
_LOCK_RETRY_S: Final = 0.1
_CONNECTIONS: Final = 2
# Rows are many and short-lived, and hold no cycles.
_GC_THRESHOLDS: Final = (100_000, 20, 20)
log = structlog.get_logger("nexuskv.copier")


class CopierOrder(msgspec.Struct, frozen=True):
    """What a copier is to do; `drain_s` is how long it goes on when its parent is gone."""

    directory: str
    log_level: str
    drain_s: float
    statement_timeout_s: float


async def _ended(ended: asyncio.Event) -> None:
    """Until stdin ends."""
    reader = asyncio.StreamReader()
    loop = asyncio.get_running_loop()
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
    await reader.read()
    ended.set()


async def _locked(directory: Path, ended: asyncio.Event) -> DirectoryLock | None:
    """The copier's lock, once one that was there before has ended; None when we have to end: then
    that one stores what is there.
    """
    while True:
        with suppress(SpoolInUseError):
            return DirectoryLock(directory, COPIER)
        if ended.is_set():
            return None
        with suppress(TimeoutError):
            async with asyncio.timeout(_LOCK_RETRY_S):
                await ended.wait()


async def _run(order: CopierOrder) -> None:
    ended = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, ended.set)
    lifeline = asyncio.create_task(_ended(ended))
    lock = await _locked(Path(order.directory), ended)
    if lock is not None:
        async with Database(
            os.environ[URL_VARIABLE],
            pool_connections=_CONNECTIONS,
            statement_timeout_s=order.statement_timeout_s,
            application_name="nexuskv-copier",
        ) as database:
            copier = Copier(database, Path(order.directory), SystemClock(), SystemIds())
            copying = asyncio.create_task(copier.run())
            ending = asyncio.create_task(ended.wait())
            await asyncio.wait((copying, ending), return_when=asyncio.FIRST_COMPLETED)
            copier.drain()
            await asyncio.wait((copying,), timeout=order.drain_s)
            if not copying.done():
                log.warning("spool_left_for_later", directory=order.directory)
                copying.cancel()
            try:
                await copying
            except asyncio.CancelledError:
                pass
            except Exception as error:  # noqa: BLE001 - the rows stay, and the next one stores them
                log.warning(
                    "spool_left_for_later", directory=order.directory, error=type(error).__name__
                )
            copier.close()
            ending.cancel()
        lock.release()
    lifeline.cancel()


def main() -> None:
    """The entry of the process; its only argument is its order."""
    # Ctrl-C at the terminal is for the parent.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    order = msgspec.json.decode(sys.argv[1], type=CopierOrder)
    configure_logging(order.log_level)
    gc.freeze()
    gc.set_threshold(*_GC_THRESHOLDS)
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(_run(order))
