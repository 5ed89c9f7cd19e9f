"""A `nexuskv serve` with its copier in hand: paused, killed, started again."""

import json
import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from prometheus_client.parser import text_string_to_metric_families

from tests.faults.checker import writers_left
from tests.faults.load import Acknowledged, Load
from tests.fixtures.service import ServiceProcess
from tests.fixtures.wire import new_tenant, register, registration
from tests.process.waiting import until

ROUNDS = max(1, int(os.environ.get("FAULT_ROUNDS", "2")))
# `serve` with a drain that a test can wait for; everything else is as it is.
SHORT_DRAIN_S = 1.0
SHORT_DRAIN = f"""
import functools, sys
from app.cli import cli, serve
serve.Settings = functools.partial(serve.Settings, drain_s={SHORT_DRAIN_S})
cli(sys.argv[1:])
"""
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

    def load(self, url: str | None = None, **options) -> Load:
        """Wherever the service is, or at an address of its own that stays."""
        return Load(
            lambda: url or self.url,
            self.admin_key,
            self.tenant,
            acknowledged=self.acknowledged,
            **options,
        )

    def readers(self) -> dict[int, str]:
        """The processes that answer now, and where each does alone, by the ready file."""
        found = json.loads((self.directory / "ready.json").read_text())
        return {one["pid"]: one["url"] for one in found["processes"] if one["role"] == "reader"}

    def metric(self, name: str, **labels: str) -> float:
        with self.client("") as client:
            text = client.get("/metrics").raise_for_status().text
        (value,) = [
            sample.value
            for family in text_string_to_metric_families(text)
            for sample in family.samples
            if (sample.name, sample.labels) == (name, labels)
        ]
        return float(value)

    def settle(self) -> None:
        """Returns once all that was recorded is stored, and what dead writers left is gone."""
        until(
            lambda: (
                self.metric("nexuskv_decisions_queued") == 0 and len(writers_left(self.spool)) == 1
            ),
            "all is stored",
            within_s=60,
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
