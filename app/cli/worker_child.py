"""A worker as a child of a command: started beside the API, started again when it dies."""

import os
import socket
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from typing import Final

import msgspec
import structlog

import app.db
from app.logging import mask_text

# Asks for a signal when the parent dies, also by SIGKILL; then becomes the worker.
_SHIM: Final = Path(app.db.__file__).with_name("postgres_exec.py")
_LOOPBACK: Final = "127.0.0.1"
_STOP_S: Final = 15.0
_MAX_LOG_BYTES: Final = 16 * 1024 * 1024
# As much of the log's end as is looked at for the reason of an end, and as is told of it.
_TAIL_BYTES: Final = 8 * 1024
_MAX_REASON_CHARS: Final = 500
log = structlog.get_logger("nexuskv.up")


class Ready(msgspec.Struct, frozen=True):
    """What a worker writes once it answers."""

    instance_id: str
    url: str
    data_address: str


class WorkerChild:
    """One worker process on loopback. Call it from the main thread: Linux ties the child to it.

    A later process takes the ports of the one before, also of an earlier run that left its
    `ready_file`: at the same URL the API gives it the name at once, and not only when the old
    process has been silent for long enough.
    """

    def __init__(
        self,
        node: str,
        *,
        api_url: str,
        secret: str,
        dram_bytes: int,
        directory: Path,
        ready_file: Path | None = None,
    ) -> None:
        self.node = node
        self.log_path = directory / f"worker-{node}.log"
        self._secret = secret
        self._ready_file = ready_file
        self._known = self.ready()
        self._stopped = False
        self._log_start = 0
        # What the last process that ended by itself said last; None while none did.
        self.ended: str | None = None
        self._command = [
            sys.executable, "-m", "app.cli", "worker", "--node", node,
            "--dram-bytes", str(dram_bytes), "--api-url", api_url, "--log-level", "warning",
        ]  # fmt: skip
        if ready_file is not None:
            self._command += ["--ready-file", str(ready_file)]
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def pid(self) -> int | None:
        return None if self._process is None else self._process.pid

    def ready(self) -> Ready | None:
        """What the running process says of itself; None while it does not answer yet."""
        if self._ready_file is None:
            return None
        try:
            return msgspec.json.decode(self._ready_file.read_bytes(), type=Ready)
        except (OSError, msgspec.DecodeError):
            return None

    def ensure(self) -> None:
        """Start it if it does not run, and was not stopped."""
        if self._stopped:
            return
        self._known = self.ready() or self._known
        if self._process is not None:
            exit_code = self._process.poll()
            if exit_code is None:
                return
            self.ended = self._last_words() or f"exit code {exit_code}"
            log.warning(
                "worker_ended",
                node=self.node,
                exit_code=exit_code,
                reason=self.ended,
                log=str(self.log_path),
            )
        if self._ready_file is not None:
            # It spoke of the process before.
            self._ready_file.unlink(missing_ok=True)
        shim = [sys.executable, "-I", "-S", str(_SHIM), str(os.getpid())]
        account = [str(os.geteuid()), str(os.getegid())]
        fresh = not self.log_path.exists() or self.log_path.stat().st_size > _MAX_LOG_BYTES
        with self.log_path.open("wb" if fresh else "ab") as output:
            self._log_start = output.tell()
            self._process = subprocess.Popen(
                [*shim, *account, *self._command, *self._places()],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                env=os.environ | {"NEXUSKV_WORKER_SECRET": self._secret},
                # A Ctrl-C at the terminal is for the command, which then stops it in order.
                start_new_session=True,
            )

    def _last_words(self) -> str:
        """The last line that the process wrote, cut; empty when it wrote none."""
        try:
            with self.log_path.open("rb") as written:
                end = written.seek(0, os.SEEK_END)
                written.seek(max(self._log_start, end - _TAIL_BYTES))
                lines = written.read(_TAIL_BYTES).decode(errors="replace").split("\n")
        except OSError:
            return ""
        said = [line.strip() for line in lines if line.strip()]
        return mask_text(said[-1])[:_MAX_REASON_CHARS] if said else ""

    def _places(self) -> list[str]:
        """Where to listen: where it was before, if nobody else is there now."""
        known = self._known
        control = "" if known is None else known.url.removeprefix("http://")
        data = "" if known is None else known.data_address
        return ["--listen", _free(control), "--data-listen", _free(data)]

    def stop(self) -> None:
        """End it for good; one that does not end in time is killed."""
        self._stopped = True
        if self._process is None:
            return
        self._process.terminate()
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(_STOP_S)
        if self._process.poll() is None:
            self._process.kill()
            self._process.wait()


def _free(address: str) -> str:
    """The address if it can be listened on, else any port of loopback."""
    host, _, port = address.rpartition(":")
    if host == _LOOPBACK and port.isdecimal():
        with suppress(OSError, OverflowError), socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind((host, int(port)))
            return address
    return f"{_LOOPBACK}:0"
