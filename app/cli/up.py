"""`nexuskv up`: everything on this machine, in the foreground: Postgres, the API, one worker."""

import asyncio
import os
import signal
import socket
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Final

import structlog
import typer
from rich.console import Console

from app.cli.engine_env import engine_settings
from app.cli.history_env import history_settings
from app.cli.inputs import check_policy, clear_ready_file, read_fixtures
from app.cli.options import (
    LISTEN_DEFAULT,
    POLICY_DEFAULT,
    Fixtures,
    Listen,
    LogLevel,
    PolicyFile,
    ReadyFile,
    database_failure,
    failure,
)
from app.cli.secret_files import given_handle_secret, read_secret, write_secret
from app.cli.server import (
    Listening,
    ServerRun,
    base_url,
    bind,
    handled,
    is_loopback,
    terminations,
)
from app.cli.spool_env import spool_settings
from app.cli.worker_child import WorkerChild
from app.cli.worker_env import WorkerSettings, worker_settings
from app.clock import SystemClock, SystemIds
from app.contract.registration import Registration
from app.control.issue import issue_key
from app.control.keys import ALL_TENANTS, Scope, digest
from app.control.repository import key_by_sha256
from app.db.embedded import EmbeddedPostgres, PostgresStartError, default_data_dir, make_data_dir
from app.db.migrate import SchemaAheadError, upgrade
from app.db.session import Database
from app.decisions.partitions import ensure_partitions
from app.errors import NexusError
from app.logging import configure_logging, mask_text
from app.services import Services
from app.settings import Settings
from app.topology.directory import WorkerDirectory
from app.worker.arena import ArenaError, check_memory

_ADMIN_KEY_FILE: Final = "admin.key"
_HANDLE_FILE: Final = "handle.secret"
_WORKER_FILE: Final = "worker.secret"
_SPOOL: Final = "spool"
_INDEX_FILE: Final = "block-index.copy"
_SECRET_BYTES: Final = 32
_WORKER_NODE: Final = "local"
_WORKER_DRAM_BYTES: Final = 256 * 1024 * 1024
_MIN_DRAM_BYTES: Final = 1024 * 1024
# How long the announcement waits for the worker: one that is slow is announced as such.
_WORKER_START_S: Final = 10.0
_LOOK_S: Final = 0.05
_TEND_INTERVAL_S: Final = 0.5
_FIRST_KEY_NAME: Final = "first admin key, made by nexuskv up"
log = structlog.get_logger("nexuskv.up")


class _Up(ServerRun):
    embedded: EmbeddedPostgres | None = None
    worker: WorkerChild | None = None

    async def tend(self) -> None:
        """What was started beside the API and dies is started again.

        Until Postgres is back, readiness says no; a worker registers as soon as it can.
        """
        while True:
            if self.worker is not None:
                try:
                    self.worker.ensure()
                except OSError as error:
                    log.error("worker_not_started", cause=str(error))  # noqa: TRY400
            await asyncio.sleep(_TEND_INTERVAL_S)
            if self.embedded is not None:
                try:
                    await asyncio.to_thread(self.embedded.revive)
                except PostgresStartError as error:
                    log.error("embedded_postgres_not_revived", cause=str(error))  # noqa: TRY400

    async def before_ready(self, services: Services) -> None:
        """Not ready before its worker is: what is registered there must be found at once."""
        with suppress(TimeoutError):
            async with asyncio.timeout(_WORKER_START_S):
                # A heartbeat wakes nobody.
                while self.worker and not self._is_heard(services.workers):  # noqa: ASYNC110
                    await asyncio.sleep(_LOOK_S)

    async def before_end(self) -> None:
        """The worker ends first: while the API still takes what it has to tell."""
        if self.worker is not None:
            await asyncio.to_thread(self.worker.stop)

    def _is_heard(self, workers: WorkerDirectory) -> bool:
        """Whether the process that was started, and no earlier one, is registered."""
        assert self.worker is not None
        known = workers.get(self.worker.node)
        ready = self.worker.ready()
        if known is None or ready is None or not known.available:
            return False
        return known.instance_id == ready.instance_id

    def announce(self, listening: Listening) -> None:
        say = Console(soft_wrap=True, highlight=False).print
        url, key_file = listening.base_url, listening.admin_key_file
        keyless = self.settings.keyless_loopback
        auth = "" if keyless else f' \\\n    -H "Authorization: Bearer $(cat {key_file})"'
        say(f"\n[bold]NexusKV is up:[/bold] {url}")
        say(f"  first admin key   {key_file}  (mode 0600)")
        say(f"  API documentation {url}/docs")
        say(f"  database          {mask_text(self.settings.database_url)}", markup=False)
        if self.worker is not None:
            place = _place(self.worker)
            say(
                f"  worker            {self.worker.node}  ({place}; GET {url}/v1/workers lists it)",
                markup=False,
            )
        if keyless:
            say("  from this machine no key is needed (start with --require-key to change that)")
        say("\nTry it in another terminal:")
        say(f"  curl -s {url}/v1/states{auth}", markup=False)
        say("\nCtrl-C stops everything.\n")


def _place(worker: WorkerChild) -> str:
    """Where it answers, or why it does not yet."""
    found = worker.ready()
    if found is not None:
        return found.url
    return "still starting" if worker.ended is None else f"does not start: {worker.ended}"


def _at_least_a_mebibyte(dram_bytes: int) -> int:
    if dram_bytes < _MIN_DRAM_BYTES:
        raise typer.BadParameter(f"must be at least {_MIN_DRAM_BYTES}, not {dram_bytes}")
    return dram_bytes


DataDir = Annotated[
    Path | None,
    typer.Option(
        "--data-dir",
        metavar="DIR",
        help="Secrets, and the cluster where it can be. [default: /var/lib/nexuskv as root, "
        "else ~/.local/share/nexuskv]",
    ),
]
WorkerDramBytes = Annotated[
    int,
    typer.Option(
        "--worker-dram-bytes",
        metavar="N",
        callback=_at_least_a_mebibyte,
        help="Memory of the worker, in bytes, at least 1 MiB.",
    ),
]
GivenDatabaseUrl = Annotated[
    str | None,
    typer.Option(
        "--database-url",
        metavar="URL",
        envvar="NEXUSKV_DATABASE_URL",
        show_default=False,
        help="A Postgres that is there, instead of its own.",
    ),
]


def _check_worker_memory(dram_bytes: int) -> None:
    """Raises ArenaError naming the option: the worker itself would end, and again and again."""
    try:
        check_memory(dram_bytes)
    except ArenaError as error:
        raise ArenaError(f"--worker-dram-bytes: {error}; --no-worker starts none") from None


def up_command(
    *,
    listen: Listen = LISTEN_DEFAULT,
    data_dir: DataDir = None,
    require_key: Annotated[
        bool, typer.Option("--require-key", help="Ask for a key also on a loopback address.")
    ] = False,
    worker: Annotated[
        bool, typer.Option("--worker/--no-worker", help="Start a worker beside the API.")
    ] = True,
    worker_dram_bytes: WorkerDramBytes = _WORKER_DRAM_BYTES,
    fixture: Fixtures = None,
    ready_file: ReadyFile = None,
    policy: PolicyFile = POLICY_DEFAULT,
    log_level: LogLevel = "warning",
    database_url: GivenDatabaseUrl = None,
) -> None:
    """Start everything on this machine, in the foreground; Ctrl-C stops it.

    Without --database-url it brings its own Postgres and keeps its data in --data-dir.
    """
    try:
        configure_logging(log_level)
        # Before anything slow or lasting: a taken port must not cost a database start.
        check_policy(policy)
        states = read_fixtures(fixture or ())
        if worker:
            _check_worker_memory(worker_dram_bytes)
        if ready_file is not None:
            clear_ready_file(ready_file)
        asked = _Asked(
            home=(data_dir or default_data_dir()).absolute(),
            database_url=database_url or None,
            require_key=require_key,
            worker_dram_bytes=worker_dram_bytes if worker else None,
            states=states,
            ready_file=ready_file,
            policy=policy,
            log_level=log_level,
        )
        # Until the server takes them over, these end it as Ctrl-C does: Postgres included. Raising
        # from here would do so in the middle of anything; asyncio knows how to take SIGINT.
        with _interrupts() as check, bind(listen) as bound:
            _serve(asked, bound, check)
    except NexusError as error:
        raise database_failure(error, database_url) from None
    except (PostgresStartError, SchemaAheadError, OSError, ValueError) as error:
        raise failure(str(error)) from None
    except KeyboardInterrupt:
        raise typer.Exit(130) from None


@dataclass(frozen=True, slots=True)
class _Asked:
    """What the command was asked for.

    `worker_dram_bytes` is None for no worker, `database_url` for a Postgres of its own.
    """

    home: Path
    database_url: str | None
    require_key: bool
    worker_dram_bytes: int | None
    states: Sequence[Sequence[Registration]]
    ready_file: Path | None
    policy: Path
    log_level: str


@contextmanager
def _interrupts() -> Iterator[Callable[[], None]]:
    """SIGTERM and SIGHUP act as SIGINT, and are remembered: what an import or a destructor swallows
    is raised again by whoever calls what this gives.
    """
    came = threading.Event()

    def take(*_: object) -> None:
        came.set()
        signal.raise_signal(signal.SIGINT)

    def check() -> None:
        if came.is_set():
            raise KeyboardInterrupt

    with handled(take, terminations()):
        yield check


def _serve(asked: _Asked, bound: socket.socket, check: Callable[[], None]) -> None:
    """Everything up, until a signal; then everything down."""
    home = asked.home
    engines = engine_settings(os.environ)
    history = history_settings(os.environ)
    make_data_dir(home)
    engines["block_index_file"] = engines["block_index_file"] or home / _INDEX_FILE
    with _postgres(home, asked.database_url) as (url, embedded):
        asyncio.run(_prepare(url))
        check()
        workers = _worker_settings(home)
        settings = Settings(
            database_url=url,
            handle_secret=_handle_secret(home),
            policy_file=asked.policy,
            keyless_loopback=is_loopback(bound) and not asked.require_key,
            **workers,
            **engines,
            **history,
            **spool_settings(os.environ, home / _SPOOL),
            copier="child",
            log_level=asked.log_level,
        )
        run = _Up(
            settings,
            bound,
            fixtures=asked.states,
            ready_file=asked.ready_file,
            admin_key_file=asyncio.run(_first_key(url, home)),
        )
        run.embedded = embedded
        if asked.worker_dram_bytes is not None:
            run.worker = WorkerChild(
                _WORKER_NODE,
                api_url=base_url(bound),
                secret=",".join(workers["worker_secrets"]),
                dram_bytes=asked.worker_dram_bytes,
                directory=home,
                ready_file=home / f"worker-{_WORKER_NODE}.json",
            )
        check()
        try:
            run.run()
        finally:
            if run.worker is not None:
                run.worker.stop()


@contextmanager
def _postgres(home: Path, given: str | None) -> Iterator[tuple[str, EmbeddedPostgres | None]]:
    if given is not None:
        yield given, None
        return
    with EmbeddedPostgres(home) as embedded:
        yield embedded.url, embedded


async def _prepare(url: str) -> None:
    await upgrade(url)
    database = Database(url, pool_connections=1)
    try:
        await ensure_partitions(database, SystemClock().now())
    finally:
        await database.close()


def _handle_secret(home: Path) -> str:
    return given_handle_secret(os.environ) or _kept_secret(home / _HANDLE_FILE)


def _worker_settings(home: Path) -> WorkerSettings:
    """Of the environment; without a secret in it, one of this machine's own."""
    found = worker_settings(os.environ)
    if not found["worker_secrets"]:
        found["worker_secrets"] = (_kept_secret(home / _WORKER_FILE),)
    return found


def _kept_secret(path: Path) -> str:
    """The secret in the file, made the first time."""
    secret = read_secret(path)
    if secret is None:
        secret = SystemIds().random_bytes(_SECRET_BYTES).hex()
        write_secret(path, secret)
    return secret


async def _first_key(url: str, home: Path) -> Path:
    """The file of an admin key that works, made if it is not there or the key does not."""
    path = home / _ADMIN_KEY_FILE
    text = read_secret(path)
    database = Database(url, pool_connections=1)
    try:
        if text is not None:
            async with database.read() as session:
                stored = await key_by_sha256(session, digest(text.encode()))
            if stored is not None and stored.revoked_at is None:
                return path
        new, _ = await issue_key(
            database,
            SystemClock(),
            SystemIds().random_bytes,
            name=_FIRST_KEY_NAME,
            scopes=[Scope.ADMIN],
            tenants=[ALL_TENANTS],
        )
        write_secret(path, new.text)
    finally:
        await database.close()
    return path
