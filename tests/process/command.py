"""`nexuskv` as a person or an orchestrator runs it: a process of its own, in a group of its own."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import httpx

from tests.process.waiting import until

START_DEADLINE_S = 60.0
END_DEADLINE_S = 30.0
COMMAND = (sys.executable, "-m", "app.cli")


class Command:
    """One `nexuskv ARGS` with its output in files, ended by the fixture that started it."""

    def __init__(
        self,
        directory: Path,
        *args: str,
        env: dict[str, str],
        program: tuple[str, ...] = COMMAND,
        **options: Any,
    ) -> None:
        self.ready_file = directory / "ready.json"
        self._out = directory / "stdout.log"
        self._err = directory / "stderr.log"
        inherited = {k: v for k, v in os.environ.items() if not k.startswith("NEXUSKV_")}
        with self._out.open("ab") as out, self._err.open("ab") as err:
            self.process = subprocess.Popen(
                [*program, *args],
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=err,
                env=inherited | env,
                start_new_session=True,
                **options,
            )

    @property
    def stdout(self) -> str:
        return self._out.read_text(encoding="utf-8")

    @property
    def stderr(self) -> str:
        return self._err.read_text(encoding="utf-8")

    def ready(self) -> dict[str, Any]:
        """What the ready file says, once it is there."""

        def look() -> bool:
            assert self.process.poll() is None, self.stdout + self.stderr
            return self.ready_file.exists()

        until(look, lambda: f"ready file; {self.stderr}", within_s=START_DEADLINE_S)
        found: dict[str, Any] = json.loads(self.ready_file.read_text(encoding="utf-8"))
        return found

    def client(self, key: str | None = None, **headers: str) -> httpx.Client:
        if key is not None:
            headers["authorization"] = f"Bearer {key}"
        return httpx.Client(base_url=self.ready()["base_url"], headers=headers, timeout=30)

    def end(self, number: signal.Signals = signal.SIGTERM) -> int:
        self.process.send_signal(number)
        return self.wait()

    def interrupt_the_group(self) -> None:
        """What a terminal does on Ctrl-C: everyone in the foreground gets it."""
        os.killpg(self.process.pid, signal.SIGINT)

    def wait(self) -> int:
        return self.process.wait(END_DEADLINE_S)

    def discard(self) -> None:
        if self.process.poll() is None:
            os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait(END_DEADLINE_S)


def processes_of(data_dir: Path) -> list[str]:
    """The processes that work in, or were started with, a directory: who is left of a cluster."""
    found = []
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit() or int(entry.name) == os.getpid():
            continue
        try:
            place = str((entry / "cwd").readlink())
            line = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
        except (FileNotFoundError, ProcessLookupError, PermissionError):
            continue
        if place.startswith(str(data_dir)) or str(data_dir) in line:
            found.append(f"{entry.name}: {line}")
    return found
