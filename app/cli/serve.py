"""`nexuskv serve`: the API on a Postgres that is there. Callers need keys."""

import os
import socket
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import msgspec
import typer
from rich.console import Console

from app.cli.engine_env import engine_settings
from app.cli.history_env import history_settings
from app.cli.inputs import check_policy, clear_ready_file, read_fixtures
from app.cli.options import (
    LISTEN_DEFAULT,
    POLICY_DEFAULT,
    DatabaseUrl,
    Fixtures,
    Listen,
    LogLevel,
    PolicyFile,
    ReadyFile,
    failure,
    required_url,
)
from app.cli.secret_files import given_handle_secret
from app.cli.serve_pool import MAX_READERS, Asked, PoolError, ProcessFacts, run_pool
from app.cli.server import Listening, ServerRun, base_url, bind, write_ready_file
from app.cli.spool_env import check_spool, spool_of_address, spool_settings
from app.cli.worker_env import worker_settings
from app.errors import NexusError
from app.logging import configure_logging
from app.settings import Settings


class _Serve(ServerRun):
    def announce(self, listening: Listening) -> None:
        Console(stderr=True).print(f"NexusKV answers on {listening.base_url}", highlight=False)


Workers = Annotated[
    int,
    typer.Option(
        "--workers",
        metavar="N",
        min=1,
        max=MAX_READERS,
        help="Processes that answer requests. From 2 on, one more writes the index of engines' "
        "blocks, which they read in shared memory.",
    ),
]
ReaderListen = Annotated[
    str | None,
    typer.Option(
        "--reader-listen",
        metavar="HOST:PORT",
        help="With --workers: reader K answers at PORT + K, too, alone; metrics are per process. "
        "Port 0 takes free ones.",
    ),
]


def serve_command(
    *,
    listen: Listen = LISTEN_DEFAULT,
    workers: Workers = 1,
    reader_listen: ReaderListen = None,
    fixture: Fixtures = None,
    ready_file: ReadyFile = None,
    policy: PolicyFile = POLICY_DEFAULT,
    log_level: LogLevel = "info",
    database_url: DatabaseUrl = None,
) -> None:
    """Serve the API on an existing Postgres. Every caller needs an API key.

    Handles are signed with NEXUSKV_HANDLE_SECRET, or the content of the file that
    NEXUSKV_HANDLE_SECRET_FILE names; replicas share it. Two secrets, separated by a comma, allow a
    rotation: the first signs, both verify.
    """
    url = required_url(database_url)
    try:
        configure_logging(log_level)
        secret = given_handle_secret(os.environ)
        if secret is None:
            raise failure(
                "no handle secret: set NEXUSKV_HANDLE_SECRET (`openssl rand -hex 32` makes one), "
                "or NEXUSKV_HANDLE_SECRET_FILE",
                exit_code=2,
            )
        settings = Settings(
            database_url=url,
            handle_secret=secret,
            policy_file=policy,
            **worker_settings(os.environ),
            **engine_settings(os.environ),
            **history_settings(os.environ),
        )
        if reader_listen is not None and workers == 1:
            raise failure("--reader-listen is for readers: give --workers 2 or more", exit_code=2)
        check_policy(policy)
        states = read_fixtures(fixture or ())
        if ready_file is not None:
            clear_ready_file(ready_file)
        with bind(listen) as bound:
            host, port = bound.getsockname()[:2]
            spool = spool_settings(os.environ, spool_of_address(host, port))
            check_spool(spool["spool_dir"])
            settings = replace(settings, **spool, copier="child", log_level=log_level)
            if workers == 1:
                _Serve(settings, bound, fixtures=states, ready_file=ready_file).run()
                return
            with _bound_each(reader_listen, workers) as own:
                asked = Asked(settings, bound, own, workers, tuple(fixture or ()), log_level)
                run_pool(asked, _Announcement(bound, ready_file))
    except (NexusError, OSError, ValueError, PoolError) as error:
        raise failure(error.message if isinstance(error, NexusError) else str(error)) from None


class _Announcement:
    """Says once that it answers; the ready file always names the processes of now."""

    def __init__(self, bound: socket.socket, ready_file: Path | None) -> None:
        self._listening = Listening(base_url(bound), None)
        self._ready_file = ready_file
        self._said = False

    def __call__(self, processes: list[ProcessFacts]) -> None:
        if not self._said:
            self._said = True
            url = self._listening.base_url
            Console(stderr=True).print(f"NexusKV answers on {url}", highlight=False)
        if self._ready_file is not None:
            write_ready_file(self._ready_file, self._listening, msgspec.to_builtins(processes))


@contextmanager
def _bound_each(listen: str | None, readers: int) -> Iterator[list[socket.socket]]:
    """A socket for each reader; none where they are not asked for. Raises ListenError."""
    with ExitStack() as stack:
        made: list[socket.socket] = []
        if listen is not None:
            host, _, port = listen.rpartition(":")
            for number in range(1, readers + 1):
                given = port if port == "0" or not port.isdigit() else str(int(port) + number)
                made.append(stack.enter_context(bind(f"{host}:{given}", "--reader-listen")))
        yield made
