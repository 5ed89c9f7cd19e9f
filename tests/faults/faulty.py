"""A `nexuskv serve` with its copier in hand: paused, killed, started again."""

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from tests.faults.load import Acknowledged, Load
from tests.fixtures.service import ServiceProcess
from tests.fixtures.wire import new_tenant, register, registration
from tests.process.waiting import until

ROUNDS = max(1, int(os.environ.get("FAULT_ROUNDS", "3")))
COPIER = b"app.decisions.copier.main"


class FaultyService(ServiceProcess):
    """Answers are collected in `acknowledged` over all its lives."""

    def __init__(self, database_url: str, directory: Path, *options: str, **env: str) -> None:
        super().__init__(database_url, directory, *options, **env)
        self.spool = Path(self.env["NEXUSKV_SPOOL_DIR"])
        self.tenant = new_tenant()
        self.acknowledged = Acknowledged()
        self._copiers: set[int] = set()

    def register(self) -> None:
        """Let lookups of the tenant hit."""
        with self.client() as client:
            register(client, registration(self.tenant))

    def load(self, **options) -> Load:
        return Load(
            lambda: self.url,
            self.admin_key,
            self.tenant,
            acknowledged=self.acknowledged,
            **options,
        )

    def copier(self) -> int:
        """The copier's process id, once it runs: of this service, or of one of its readers."""

        def find() -> int | None:
            assert self.process is not None
            for pid in descendants(self.process.pid):
                if COPIER in command_line(pid):
                    self._copiers.add(pid)
                    return pid
            return None

        return until(find, "the copier runs")

    @contextmanager
    def copier_paused(self) -> Iterator[int]:
        """Its copier gets no time meanwhile; it may be killed."""
        pid = self.copier()
        os.kill(pid, signal.SIGSTOP)
        yield pid
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGCONT)

    def kill_copier(self) -> None:
        """Returns when it is gone."""
        kill(self.copier())

    def discard(self) -> None:
        if self.process is not None and self.process.poll() is None:
            self.kill()
        for pid in self._copiers:
            if COPIER in command_line(pid):
                kill(pid)


def kill(pid: int) -> None:
    """SIGKILL; returns when it is gone."""
    with suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)
    until(lambda: not command_line(pid), f"{pid} is gone")


def command_line(pid: int) -> bytes:
    """b"" of a process that has ended."""
    with suppress(OSError):
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    return b""


def descendants(pid: int) -> list[int]:
    """Its children, theirs, and so on."""
    found = []
    with suppress(OSError):
        for task in Path(f"/proc/{pid}/task").iterdir():
            for child in (task / "children").read_text().split():
                found += [int(child), *descendants(int(child))]
    return found
