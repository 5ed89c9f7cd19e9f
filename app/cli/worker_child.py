"""A worker as a child of a command: started beside the API, started again when it dies."""

import os
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from typing import Final

import structlog

import app.db

# Asks for a signal when the parent dies, also by SIGKILL; then becomes the worker.
_SHIM: Final = Path(app.db.__file__).with_name("postgres_exec.py")
_STOP_S: Final = 15.0
_MAX_LOG_BYTES: Final = 16 * 1024 * 1024
log = structlog.get_logger("nexuskv.up")


class WorkerChild:
    """One worker process on loopback. Call it from the main thread: Linux ties the child to it."""

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
        self._command = [
            sys.executable, "-m", "app.cli", "worker", "--node", node,
            "--listen", "127.0.0.1:0", "--data-listen", "127.0.0.1:0",
            "--dram-bytes", str(dram_bytes), "--api-url", api_url, "--log-level", "warning",
        ]  # fmt: skip
        if ready_file is not None:
            self._command += ["--ready-file", str(ready_file)]
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def pid(self) -> int | None:
        return None if self._process is None else self._process.pid

    def ensure(self) -> None:
        """Start it if it does not run."""
        if self._process is not None:
            exit_code = self._process.poll()
            if exit_code is None:
                return
            log.warning("worker_ended", node=self.node, exit_code=exit_code, log=str(self.log_path))
        shim = [sys.executable, "-I", "-S", str(_SHIM), str(os.getpid())]
        account = [str(os.geteuid()), str(os.getegid())]
        fresh = not self.log_path.exists() or self.log_path.stat().st_size > _MAX_LOG_BYTES
        with self.log_path.open("wb" if fresh else "ab") as output:
            self._process = subprocess.Popen(
                [*shim, *account, *self._command],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                env=os.environ | {"NEXUSKV_WORKER_SECRET": self._secret},
                # A Ctrl-C at the terminal is for the command, which then stops it in order.
                start_new_session=True,
            )

    def stop(self) -> None:
        """End it; one that does not end in time is killed."""
        if self._process is None:
            return
        self._process.terminate()
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(_STOP_S)
        if self._process.poll() is None:
            self._process.kill()
            self._process.wait()
