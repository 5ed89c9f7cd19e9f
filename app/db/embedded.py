"""A Postgres of our own: found, initialised, started with us, stopped with us.

`EmbeddedPostgres(data_dir).start()` returns a URL. One supervisor at a time holds a cluster (a
lock on a file); a server whose supervisor was killed is stopped and started again, so that it is
always our child and dies with us. Access is by peer authentication on a Unix socket in a 0700
directory: the kernel says who calls, so there is no password to keep, and no other user gets in.
"""

import asyncio
import atexit
import fcntl
import os
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import TracebackType
from typing import Self

import asyncpg
import structlog

from app.clock import Clock, SystemClock
from app.db.postgres_account import PostgresStartError
from app.db.postgres_binaries import find_binaries, inspect_binaries, reachable_binaries
from app.db.postgres_cluster import PORT, ROLE, SUPERUSER, Cluster, make_data_dir, settle
from app.db.postgres_process import ServerProcess, ServerRecord, end_leftover, fingerprint_of

__all__ = ["EmbeddedPostgres", "PostgresStartError", "default_data_dir", "make_data_dir"]

ROOT_DATA_DIR = Path("/var/lib/nexuskv")
DATABASE = "nexuskv"

_STOP_TIMEOUT_S = 30.0
_PROBE_TIMEOUT_S = 5.0
_POLL_S = 0.02
_US_PER_S = 1_000_000
_LOG_TAIL_BYTES = 4096
_LOG_ROTATE_BYTES = 8 * 1024 * 1024
# Memory of a server killed a moment ago goes away with its last child, shortly after.
_TRANSIENT = "shared memory block"
log = structlog.get_logger()


def default_data_dir() -> Path:
    """Where `nexuskv up` keeps its data unless told: /var/lib/nexuskv as root, else below HOME."""
    if os.geteuid() == 0:
        return ROOT_DATA_DIR
    configured = Path(os.environ.get("XDG_DATA_HOME", ""))
    root = configured if configured.is_absolute() else Path.home() / ".local" / "share"
    return root / "nexuskv"


class EmbeddedPostgres:
    """Supervises one cluster. Synchronous; start it before the event loop.

    `data_dir`: None means `default_data_dir()`. `durable=False` switches fsync off, for tests.
    `bin_dir` forces the binaries. `shared_dir` is where root keeps what `data_dir` cannot hold: a
    cluster whose user cannot reach `data_dir`, and copies of binaries that user cannot reach.
    """

    def __init__(
        self,
        data_dir: Path | None = None,
        *,
        durable: bool = True,
        start_timeout_s: float = 60,
        bin_dir: Path | None = None,
        shared_dir: Path = ROOT_DATA_DIR,
        clock: Clock | None = None,
    ) -> None:
        self.data_dir = (data_dir or default_data_dir()).absolute()
        self._durable = durable
        self._start_timeout_s = start_timeout_s
        self._bin_dir = bin_dir
        self._shared_dir = shared_dir
        self._clock = clock or SystemClock()
        self._cluster: Cluster | None = None
        self._lock_fd: int | None = None
        self._server: ServerProcess | None = None
        self._socket_dir: Path | None = None
        self._program = ""
        self._owner_pid = os.getpid()

    @property
    def cluster(self) -> Cluster:
        """Where the cluster lives and whose it is. Raises RuntimeError before the first start."""
        if self._cluster is None:
            raise RuntimeError("the embedded Postgres has not been started")
        return self._cluster

    @property
    def log_path(self) -> Path:
        """The server's log."""
        return self.cluster.home / "postgres.log"

    @property
    def pid(self) -> int | None:
        """The server's process id; None while it does not run."""
        return self._server.pid if self._server is not None and self._server.running else None

    @property
    def url(self) -> str:
        """Where to connect. Raises RuntimeError while not started."""
        if self._socket_dir is None:
            raise RuntimeError("the embedded Postgres has not been started")
        return f"postgresql://{ROLE}@/{DATABASE}?host={self._socket_dir}&port={PORT}"

    def start(self) -> str:
        """Start the server, creating the cluster and the database if absent; returns the URL.

        Raises PostgresStartError, which says what to do and ends with the server's own words.
        """
        if self._server is not None:
            raise RuntimeError("the embedded Postgres has been started already")
        deadline_us = self._clock.monotonic_us() + round(self._start_timeout_s * _US_PER_S)
        found = inspect_binaries(self._bin_dir) if self._bin_dir else find_binaries()
        try:
            cluster = self._cluster = settle(self.data_dir, self._shared_dir)
            binaries = reachable_binaries(found, cluster.account, self._shared_dir)
            self._lock()
            self._end_leftover()
            cluster.initialise(binaries, durable=self._durable)
            cluster.write_access_files()
            self._program = binaries.program("postgres")
            self._socket_dir = cluster.make_socket_dir()
            self._launch(self._socket_dir, deadline_us)
        except OSError as error:
            self.stop()
            raise PostgresStartError(f"The embedded Postgres cannot start: {error}") from error
        except BaseException:
            self.stop()
            raise
        atexit.register(self.stop)
        log.info("embedded_postgres_started", version=binaries.version, home=str(cluster.home))
        return self.url

    def revive(self) -> bool:
        """Start a server that has died again, on the same URL and data; False while it runs.

        Raises PostgresStartError when it does not come back; it may be tried again.
        """
        if self._server is None or self._server.running or self._socket_dir is None:
            return False
        log.error("embedded_postgres_died", log=str(self.log_path))
        self.cluster.clear_leftovers()
        deadline_us = self._clock.monotonic_us() + round(self._start_timeout_s * _US_PER_S)
        self._launch(self._socket_dir, deadline_us)
        log.warning("embedded_postgres_revived")
        return True

    def stop(self) -> None:
        """Stop the server and let the cluster go. Safe to call twice, and from a forked child."""
        if self._owner_pid != os.getpid():
            return
        atexit.unregister(self.stop)
        try:
            if self._server is not None:
                self._server.stop(self._clock, timeout_s=_STOP_TIMEOUT_S)
                self._record_path.unlink(missing_ok=True)
            if self._socket_dir is not None:
                self.cluster.discard_socket_dir(self._socket_dir)
        finally:
            self._server = None
            self._socket_dir = None
            if self._lock_fd is not None:
                os.close(self._lock_fd)
                self._lock_fd = None

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.stop()

    @property
    def _record_path(self) -> Path:
        return self.cluster.home / "postgres.json"

    def _lock(self) -> None:
        path = self.cluster.home / "postgres.lock"
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            holder = os.pread(fd, 32, 0).decode(errors="replace") or "unknown"
            os.close(fd)
            raise PostgresStartError(
                f"Another NexusKV (pid {holder}) uses the cluster in {self.cluster.home}."
                " Stop it, or give this one another --data-dir."
            ) from None
        os.ftruncate(fd, 0)
        os.pwrite(fd, str(os.getpid()).encode(), 0)
        self._lock_fd = fd

    def _end_leftover(self) -> None:
        record = ServerRecord.read(self._record_path)
        if record is not None:
            if record.alive:
                log.info("stopping_leftover_postgres", pid=record.pid)
                end_leftover(record, self._clock, timeout_s=_STOP_TIMEOUT_S)
            self.cluster.discard_socket_dir(Path(record.socket_dir))
            self._record_path.unlink()
        self.cluster.clear_leftovers()

    def _launch(self, socket_dir: Path, deadline_us: int) -> None:
        settings = self.cluster.settings(socket_dir, durable=self._durable)
        options = [part for item in settings.items() for part in ("-c", "=".join(item))]
        command = [self._program, "-D", str(self.cluster.data_dir), *options]
        if self.log_path.exists() and self.log_path.stat().st_size > _LOG_ROTATE_BYTES:
            self.log_path.replace(self.log_path.with_name("postgres.log.1"))
        pause = threading.Event()
        while True:
            log_start = self.log_path.stat().st_size if self.log_path.exists() else 0
            self._server = ServerProcess(command, self.cluster.account, self.log_path)
            fingerprint = fingerprint_of(self._server.pid)
            if fingerprint is not None:
                ServerRecord(self._server.pid, fingerprint, str(socket_dir)).write(
                    self._record_path
                )
            failure = self._await_ready(deadline_us)
            if failure is None:
                return
            tail = self._log_since(log_start)
            if _TRANSIENT not in tail or self._clock.monotonic_us() >= deadline_us:
                raise PostgresStartError(f"{failure} The end of {self.log_path}:\n{tail}")
            pause.wait(_POLL_S)

    def _await_ready(self, deadline_us: int) -> str | None:
        """None once the database answers, else what went wrong."""
        assert self._server is not None
        pause = threading.Event()
        with ThreadPoolExecutor(1) as elsewhere:
            while self._server.running:
                # A thread, because the caller may stand inside a running event loop.
                failure = elsewhere.submit(asyncio.run, self._probe()).result()
                if failure is None:
                    return None
                if isinstance(failure, asyncpg.InvalidAuthorizationSpecificationError):
                    return f"Postgres does not let us in: {failure}."
                if self._clock.monotonic_us() >= deadline_us:
                    return f"Postgres was not ready in {self._start_timeout_s:g} s: {failure}."
                pause.wait(_POLL_S)
        return "Postgres ended while starting."

    async def _probe(self) -> Exception | None:
        """Connect, and make the role and the database; the error when that is not possible yet."""
        try:
            connection = await asyncpg.connect(
                host=str(self._socket_dir),
                port=PORT,
                user=SUPERUSER,
                database="postgres",
                timeout=_PROBE_TIMEOUT_S,
            )
        except (OSError, asyncpg.PostgresError, asyncpg.InterfaceError) as error:
            return error
        try:
            if not await connection.fetchval("SELECT 1 FROM pg_roles WHERE rolname = $1", ROLE):
                await connection.execute(f"CREATE ROLE {ROLE} LOGIN CREATEDB")
            exists = "SELECT 1 FROM pg_database WHERE datname = $1"
            if not await connection.fetchval(exists, DATABASE):
                await connection.execute(f"CREATE DATABASE {DATABASE} OWNER {ROLE}")
        finally:
            await connection.close()
        return None

    def _log_since(self, start: int) -> str:
        with self.log_path.open("rb") as stream:
            stream.seek(max(start, self.log_path.stat().st_size - _LOG_TAIL_BYTES))
            return stream.read().decode(errors="replace").strip()
