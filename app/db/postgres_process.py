"""The server as a process: spawned so that it dies with us, recognised when it did not."""

import json
import os
import queue
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from app.clock import Clock
from app.db.postgres_account import Account, PostgresStartError

_EXEC = Path(__file__).with_name("postgres_exec.py")
_PROC = Path("/proc")
_POLL_S = 0.02
_US_PER_S = 1_000_000


@dataclass(frozen=True, slots=True)
class ServerRecord:
    """What a supervisor writes down about its server, to recognise it after its own death.

    `fingerprint` identifies the process beyond its pid, which the system hands out again.
    """

    pid: int
    fingerprint: str
    socket_dir: str

    def write(self, path: Path) -> None:
        """Replace `path` in one step."""
        unfinished = path.with_suffix(".tmp")
        unfinished.write_text(
            json.dumps(
                {"pid": self.pid, "fingerprint": self.fingerprint, "socket_dir": self.socket_dir}
            )
        )
        unfinished.replace(path)

    @staticmethod
    def read(path: Path) -> "ServerRecord | None":
        """None when there is none, or it is not readable as one."""
        try:
            found = json.loads(path.read_text())
            return ServerRecord(
                int(found["pid"]), str(found["fingerprint"]), str(found["socket_dir"])
            )
        except (OSError, ValueError, KeyError, TypeError):
            return None

    @property
    def alive(self) -> bool:
        return fingerprint_of(self.pid) == self.fingerprint


class ServerProcess:
    """A running server, child of a thread that lives as long as it does.

    Linux sends the parent-death signal when the *thread* that spawned the child ends, so the child
    is spawned, and reaped, by a thread that does nothing else.
    """

    def __init__(self, command: list[str], account: Account, log_path: Path) -> None:
        self._reply: queue.SimpleQueue[subprocess.Popen[bytes] | OSError] = queue.SimpleQueue()
        shim = [sys.executable, "-I", "-S", str(_EXEC), str(os.getpid())]
        self._thread = threading.Thread(
            target=self._spawn_and_reap,
            args=([*shim, str(account.uid), str(account.gid), *command], log_path),
            name="embedded-postgres",
            daemon=True,
        )
        self._thread.start()
        answer = self._reply.get()
        if isinstance(answer, OSError):
            raise PostgresStartError(f"Postgres cannot be started: {answer}") from answer
        self._process = answer
        self.pid = answer.pid

    @property
    def running(self) -> bool:
        return self._thread.is_alive()

    def stop(self, clock: Clock, *, timeout_s: float) -> None:
        """Fast shutdown, and after `timeout_s` an immediate one. Returns when it is gone."""
        end_process(self.pid, self._gone, clock, timeout_s=timeout_s)
        self._thread.join()

    def _gone(self, wait_s: float) -> bool:
        self._thread.join(wait_s)
        return not self._thread.is_alive()

    def _spawn_and_reap(self, command: list[str], log_path: Path) -> None:
        try:
            fd = os.open(log_path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
            with os.fdopen(fd, "ab") as output:
                process = subprocess.Popen(
                    command,
                    stdin=subprocess.DEVNULL,
                    stdout=output,
                    stderr=output,
                    cwd="/",
                    env=server_environment(),
                    # A Ctrl-C at the terminal is for the service, which then stops us in order.
                    start_new_session=True,
                )
        except OSError as error:
            self._reply.put(error)
            return
        self._reply.put(process)
        process.wait()


def server_environment() -> Mapping[str, str]:
    """What the server and initdb see of our environment: no secrets, no PG* settings."""
    kept = {name: os.environ[name] for name in ("LD_LIBRARY_PATH", "PATH") if name in os.environ}
    return {"PATH": "/usr/bin:/bin", **kept, "LC_ALL": "C.UTF-8", "TZ": "UTC"}


def end_process(pid: int, gone: Callable[[float], bool], clock: Clock, *, timeout_s: float) -> None:
    """SIGINT, then after `timeout_s` SIGQUIT, then SIGKILL; PostgresStartError if none ends it.

    A frozen server handles no signal but the last; its write-ahead log makes that safe.

    `gone(wait_s)` waits at most that long and says whether the process has ended.
    """
    steps = ((signal.SIGINT, timeout_s), (signal.SIGQUIT, 10.0), (signal.SIGKILL, 10.0))
    for number, limit_s in steps:
        try:
            os.kill(pid, number)
        except ProcessLookupError:
            return
        deadline_us = clock.monotonic_us() + round(limit_s * _US_PER_S)
        while clock.monotonic_us() < deadline_us:
            if gone(_POLL_S):
                return
    raise PostgresStartError(f"Postgres (pid {pid}) does not stop. End it by hand, then try again.")


def end_leftover(record: ServerRecord, clock: Clock, *, timeout_s: float) -> None:
    """Stop the server a dead supervisor left; a no-op when the record's process is gone."""
    pause = threading.Event()

    def gone(wait_s: float) -> bool:
        pause.wait(wait_s)
        return not record.alive

    if record.alive:
        end_process(record.pid, gone, clock, timeout_s=timeout_s)


def fingerprint_of(pid: int) -> str | None:
    """A string that differs for another process under the same pid; None when there is none.

    On Linux the boot and the start tick, elsewhere the start time `ps` prints.
    """
    if not _PROC.joinpath("self", "stat").exists():
        listed = subprocess.run(
            ["ps", "-o", "lstart=", "-p", str(pid)], capture_output=True, check=False, text=True
        )
        return listed.stdout.strip() or None
    try:
        # The name in parentheses may hold anything; the state follows it, the start tick is the
        # 20th field after it.
        fields = (_PROC / str(pid) / "stat").read_text().rpartition(")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return None
    if fields[0] in {"Z", "X"}:
        return None
    boot = (_PROC / "sys/kernel/random/boot_id").read_text().strip()
    return f"{boot}:{fields[19]}"


def serves_directory(pid: int, data_dir: Path) -> bool:
    """Whether `pid` is a process at work in `data_dir`, as a Postgres of that cluster is.

    Where the system does not tell (no /proc), any live process counts as one.
    """
    if fingerprint_of(pid) is None:
        return False
    try:
        return (_PROC / str(pid) / "cwd").readlink() == data_dir.resolve()
    except FileNotFoundError:
        return not _PROC.joinpath("self").exists()
    except PermissionError:
        # Another user's process; the cluster's own run as its owner, whom we may inspect.
        return False
