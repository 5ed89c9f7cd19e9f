"""`nexuskv serve --workers N`: one process that writes the index, N that answer requests.

This one holds the listening sockets, starts the others again when they die, and ends them in order.
"""

import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import msgspec
import structlog

import app.db
from app.cli.serve_child import HANDLE_VARIABLE, URL_VARIABLE, Order, Role
from app.cli.server import base_url, handled, terminations
from app.clock import SystemClock
from app.settings import Settings

MAX_READERS: Final = 64
# Asks for a signal when the parent dies, also by SIGKILL; then becomes the child.
_SHIM: Final = Path(app.db.__file__).with_name("postgres_exec.py")
_ENTRY: Final = "from app.cli.serve_child import main; main()"
_TEND_S: Final = 0.05
# A child that dies is started again at once; one that dies again and again, less and less often.
_PAUSE_MOST_US: Final = 5_000_000
_PAUSE_LEAST_US: Final = 100_000
_LASTED_US: Final = 10_000_000
# Requests are given 10 s, what was decided 15 s to be stored.
_STOP_S: Final = 40.0
# A path of a Unix socket has 107 bytes at most.
_MAX_PATH_BYTES: Final = 107
_MIN_CONNECTIONS: Final = 4
log = structlog.get_logger("nexuskv.serve")


class PoolError(RuntimeError):
    """The processes could not be started; the message says what to do."""


class ProcessFacts(msgspec.Struct, frozen=True, omit_defaults=True):
    """One child, in the ready file. `url` is where this reader alone answers."""

    role: Role
    pid: int
    url: str | None = None


@dataclass(frozen=True, slots=True)
class Asked:
    """What the command was asked for; `own` are sockets of each reader alone, or none."""

    settings: Settings
    bound: socket.socket
    own: Sequence[socket.socket]
    readers: int
    fixtures: tuple[Path, ...]
    log_level: str


class _Child:
    """One process, started again as long as it is wanted. On the main thread: Linux ties it there.

    `failed` is the exit code of a process that gave up by itself before it was ever ready.
    """

    def __init__(self, name: str, order: Order, env: dict[str, str]) -> None:
        self.name = name
        self.failed: int | None = None
        self._order = order
        self._ready_file = Path(order.ready_file)
        self._env = env
        self._clock = SystemClock()
        self._process: subprocess.Popen[bytes] | None = None
        self._was_ready = False
        self._pause_us = 0
        self._started_us = 0
        self._again_at_us = 0

    @property
    def pid(self) -> int:
        return 0 if self._process is None else self._process.pid

    @property
    def ready(self) -> bool:
        return self._process is not None and self._ready_file.exists()

    def tend(self) -> bool:
        """Start it if it does not run and it is time. True where a process has begun."""
        now_us = self._clock.monotonic_us()
        if self._process is not None:
            self._was_ready |= self.ready
            code = self._process.poll()
            if code is None:
                return False
            self._process = None
            log.warning("process_ended", process=self.name, exit_code=code)
            if code > 0 and not self._was_ready:
                self.failed = code
                return False
            lasted = now_us - self._started_us >= _LASTED_US
            self._again_at_us = now_us + (0 if lasted else self._pause_us)
            longer_us = min(max(2 * self._pause_us, _PAUSE_LEAST_US), _PAUSE_MOST_US)
            self._pause_us = 0 if lasted else longer_us
        if now_us < self._again_at_us:
            return False
        self._start(now_us)
        return True

    def _start(self, now_us: int) -> None:
        order = self._order
        if self._was_ready:
            # Its states are registered, and perhaps deleted since.
            order = msgspec.structs.replace(order, fixtures=())
        # It spoke of the process before.
        self._ready_file.unlink(missing_ok=True)
        self._started_us = now_us
        self._process = subprocess.Popen(
            [
                sys.executable, "-I", "-S", str(_SHIM),
                str(os.getpid()), str(os.geteuid()), str(os.getegid()),
                sys.executable, "-c", _ENTRY, msgspec.json.encode(order).decode(),
            ],
            stdin=subprocess.DEVNULL,
            env=self._env,
            pass_fds=order.sockets,
            # A Ctrl-C at the terminal is for the command, which then ends all in order.
            start_new_session=True,
        )  # fmt: skip

    def terminate(self) -> None:
        if self._process is not None:
            self._process.terminate()

    def wait(self) -> bool:
        """Whether it ended by itself in time; it is killed where it did not."""
        if self._process is None:
            return True
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(_STOP_S)
            return True
        log.error("process_killed", process=self.name)
        self._process.kill()
        self._process.wait()
        return False


class Pool:
    """The processes of one run. `ready` is told of them when all answer and some are new."""

    def __init__(
        self, asked: Asked, directory: Path, ready: Callable[[list[ProcessFacts]], None]
    ) -> None:
        self._told: list[ProcessFacts] = []
        self._ready = ready
        self._ending = threading.Event()
        self._own = asked.own
        self._fixtures_pending = bool(asked.fixtures)
        self._writer = _Child("writer", _order(asked, directory, 0), _environment(asked.settings))
        self._readers = [
            _Child(f"reader {n}", _order(asked, directory, n), _environment(asked.settings))
            for n in range(1, asked.readers + 1)
        ]

    def run(self) -> None:
        """Until SIGINT or SIGTERM, or a child cannot begin, which raises PoolError."""
        children = [self._writer, *self._readers]
        try:
            with handled(lambda *_: self._ending.set(), [signal.SIGINT, *terminations()]):
                while not self._ending.is_set():
                    for child in children if self._registered() else children[:2]:
                        child.tend()
                    self._check(children)
                    self._tell(children)
                    self._ending.wait(_TEND_S)
        finally:
            self._end()

    def _registered(self) -> bool:
        """Whether the first reader has stored the fixtures: what others load has them then."""
        self._fixtures_pending = self._fixtures_pending and not self._readers[0].ready
        return not self._fixtures_pending

    def _check(self, children: Sequence[_Child]) -> None:
        for child in children:
            if child.failed is not None:
                raise PoolError(f"the {child.name} could not start; see above")

    def _tell(self, children: Sequence[_Child]) -> None:
        if not all(child.ready for child in children):
            return
        facts = [ProcessFacts(Role.WRITER, self._writer.pid)]
        for number, child in enumerate(self._readers):
            url = base_url(self._own[number]) if self._own else None
            facts.append(ProcessFacts(Role.READER, child.pid, url))
        if facts != self._told:
            self._told = facts
            self._ready(facts)

    def _end(self) -> None:
        """Readers first: what they were asked to write may still be written."""
        for children in (self._readers, [self._writer]):
            for child in children:
                child.terminate()
            for child in children:
                child.wait()


def run_pool(asked: Asked, ready: Callable[[list[ProcessFacts]], None]) -> None:
    """Serves until a signal. Raises PoolError, OSError."""
    with _private_directory() as directory:
        Pool(asked, directory, ready).run()


@contextmanager
def _private_directory() -> Iterator[Path]:
    directory = Path(tempfile.mkdtemp(prefix="nexuskv-"))
    try:
        if len(os.fsencode(_socket_in(directory))) > _MAX_PATH_BYTES:
            raise PoolError(f"the path of {directory} is too long for a socket: set TMPDIR")
        yield directory
    finally:
        shutil.rmtree(directory, ignore_errors=True)


def _socket_in(directory: Path) -> Path:
    return directory / "index.sock"


def _order(asked: Asked, directory: Path, number: int) -> Order:
    """Of the writer for 0, else of that reader."""
    settings = asked.settings
    sockets: tuple[int, ...] = ()
    if number:
        own = [asked.own[number - 1].fileno()] if asked.own else []
        sockets = (asked.bound.fileno(), *own)
    # A server of Postgres has a hundred connections, unless it is told otherwise.
    connections = max(_MIN_CONNECTIONS, 2 * settings.pool_connections // asked.readers)
    return Order(
        role=Role.READER if number else Role.WRITER,
        index_socket=str(_socket_in(directory)),
        ready_file=str(directory / f"ready-{number}"),
        policy=str(settings.policy_file),
        log_level=asked.log_level,
        pool_connections=min(connections, settings.pool_connections),
        spool_dir=str(settings.spool_dir),
        spool_bytes=settings.spool_bytes // asked.readers,
        copier="child" if number == 1 else "elsewhere",
        sockets=sockets,
        fixtures=tuple(map(str, asked.fixtures)) if number == 1 else (),
    )


def _environment(settings: Settings) -> dict[str, str]:
    """Secrets travel here, and in no command line."""
    kept = {k: v for k, v in os.environ.items() if not k.startswith(f"{HANDLE_VARIABLE}_FILE")}
    return kept | {
        URL_VARIABLE: settings.database_url,
        HANDLE_VARIABLE: settings.handle_secret,
    }
