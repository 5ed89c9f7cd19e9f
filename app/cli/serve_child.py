"""A child of `nexuskv serve --workers N`: the writer of the index, or one of its readers.

Started by `app.cli.serve_pool`, with what it is to do as JSON; secrets come in its environment.
It ends with its parent, whatever that one dies of.
"""

import asyncio
import os
import signal
import socket
import sys
from contextlib import suppress
from enum import StrEnum
from pathlib import Path

import msgspec
import structlog
import uvloop

from app.cli.engine_env import engine_settings
from app.cli.history_env import history_settings
from app.cli.inputs import read_fixtures
from app.cli.options import failure
from app.cli.server import ServerRun
from app.cli.spool_env import spool_settings
from app.cli.worker_env import worker_settings
from app.clock import SystemClock, SystemIds
from app.db.session import Database
from app.engines.parts import own_index
from app.engines.port_server import IndexPort
from app.errors import NexusError
from app.index.scopes import TenantHashing
from app.logging import configure_logging
from app.services import hash_secret
from app.settings import Settings

URL_VARIABLE = "NEXUSKV_DATABASE_URL"
HANDLE_VARIABLE = "NEXUSKV_HANDLE_SECRET"
log = structlog.get_logger("nexuskv.index")


class Role(StrEnum):
    """What a child is."""

    WRITER = "writer"
    READER = "reader"


class Order(msgspec.Struct, frozen=True):
    """What a child is to do. `sockets` are descriptors of listening sockets, the common one first;
    `ready_file` is made when it answers."""

    role: Role
    index_socket: str
    ready_file: str
    policy: str
    log_level: str
    pool_connections: int
    # The spool that all readers share, what of it is this one's, and whose copier copies it.
    spool_dir: str
    spool_bytes: int
    copier: str
    sockets: tuple[int, ...] = ()
    fixtures: tuple[str, ...] = ()


def run_child(order: Order) -> None:
    """Runs until SIGINT or SIGTERM. Raises OSError, ValueError, NexusError."""
    configure_logging(order.log_level)
    spool = spool_settings(os.environ, Path(order.spool_dir))
    spool |= {"spool_dir": Path(order.spool_dir), "spool_bytes": order.spool_bytes}
    settings = Settings(
        database_url=os.environ[URL_VARIABLE],
        handle_secret=os.environ[HANDLE_VARIABLE],
        policy_file=Path(order.policy),
        pool_connections=order.pool_connections,
        index_socket=Path(order.index_socket) if order.role is Role.READER else None,
        **worker_settings(os.environ),
        **engine_settings(os.environ),
        **history_settings(os.environ),
        **spool,
        copier=order.copier,
        log_level=order.log_level,
    )
    if order.role is Role.WRITER:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            runner.run(_write(settings, order))
        return
    common, *own = (socket.socket(fileno=number) for number in order.sockets)
    fixtures = read_fixtures(map(Path, order.fixtures))
    ServerRun(
        settings, common, own_sockets=own, fixtures=fixtures, ready_file=Path(order.ready_file)
    ).run()


async def _write(settings: Settings, order: Order) -> None:
    """The writer: the table of engines, their events, the index, and the socket of the readers."""
    ended = asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, ended.set)
    database = Database(
        settings.database_url,
        pool_connections=settings.pool_connections,
        statement_timeout_s=settings.statement_timeout_s,
    )
    ready_file = Path(order.ready_file)
    hashing = TenantHashing()
    index = own_index(settings, database, SystemClock(), SystemIds(), hashing, shared=True)
    port = IndexPort(Path(order.index_socket), index, SystemClock())

    async def begin() -> None:
        hashing.adopt(await hash_secret(database, SystemIds()))
        index.directory.start()
        await index.directory.wait_loaded()
        port.start()
        ready_file.touch()  # noqa: ASYNC240 - a file in memory or near it, once

    beginning = asyncio.create_task(begin())
    ending = asyncio.create_task(ended.wait())
    try:
        # One that cannot begin ends at once, and says why.
        await asyncio.wait((beginning, ending), return_when=asyncio.FIRST_COMPLETED)
        if beginning.done():
            await beginning
            await ending
    finally:
        beginning.cancel()
        ending.cancel()
        with suppress(asyncio.CancelledError):
            await asyncio.gather(beginning, ending, return_exceptions=True)
        await port.stop()
        await index.directory.stop()
        await database.close()


def main() -> None:
    """The entry of the process: what it is to do is its only argument. Ends with exit code 1."""
    try:
        run_child(msgspec.json.decode(sys.argv[1], type=Order))
    except (NexusError, OSError, ValueError) as error:
        message = error.message if isinstance(error, NexusError) else str(error)
        sys.exit(failure(message).exit_code)
