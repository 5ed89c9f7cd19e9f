"""Directories and child processes for the embedded server's tests."""

import os
import shutil
import subprocess
import sys
import tempfile
import textwrap
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import asyncpg
import pytest

from app.db.embedded import EmbeddedPostgres
from tests.fixtures.database import fast_directory, run_elsewhere

ROOT = Path(__file__).resolve().parents[2]
AS_ROOT = os.geteuid() == 0
DEADLINE_S = 30.0


@dataclass
class Place:
    """A directory of the test, enterable by every user, and what was started in it."""

    path: Path
    servers: list[EmbeddedPostgres] = field(default_factory=list)
    children: list["subprocess.Popen[str]"] = field(default_factory=list)

    @property
    def data_dir(self) -> Path:
        return self.path / "data"

    @property
    def shared_dir(self) -> Path:
        return self.path / "shared"

    def server(self, data_dir: Path | None = None, **options) -> EmbeddedPostgres:
        options.setdefault("durable", False)
        made = EmbeddedPostgres(data_dir or self.data_dir, shared_dir=self.shared_dir, **options)
        self.servers.append(made)
        return made

    def child(self, script: str, *, python: str = sys.executable, **options):
        """A Python process that runs `script` with this place's paths in its environment."""
        env = {
            "PATH": os.environ["PATH"],
            "PYTHONPATH": os.pathsep.join([str(ROOT), *filter(None, sys.path)]),
            "DATA_DIR": str(self.data_dir),
            "SHARED_DIR": str(self.shared_dir),
            **options.pop("env", {}),
        }
        process = subprocess.Popen(
            [python, "-c", textwrap.dedent(script)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            cwd="/",
            env=env,
            **options,
        )
        self.children.append(process)
        return process

    def close(self) -> None:
        for process in self.children:
            process.kill()
            process.communicate()
        for server in self.servers:
            server.stop()
        shutil.rmtree(self.path)


@pytest.fixture
def place() -> Iterator[Place]:
    made = Place(Path(tempfile.mkdtemp(prefix="nexuskv-test-", dir=fast_directory())))
    made.path.chmod(0o755)
    yield made
    made.close()


def query(url: str, statement: str) -> object:
    """The first value of a statement's answer."""

    async def ask() -> object:
        connection = await asyncpg.connect(url)
        try:
            return await connection.fetchval(statement)
        finally:
            await connection.close()

    return run_elsewhere(ask())


def wait_for(condition: Callable[[], bool], what: str) -> None:
    pause = threading.Event()
    for _ in range(int(DEADLINE_S / 0.02)):
        if condition():
            return
        pause.wait(0.02)
    pytest.fail(f"not in {DEADLINE_S:g} s: {what}")


def said(child: "subprocess.Popen[str]", word: str) -> str:
    """What follows `word` on the first line a child begins with it; fails when there is none."""
    assert child.stdout is not None
    for line in child.stdout:
        if line.startswith(f"{word} "):
            return line.removeprefix(f"{word} ").strip()
    pytest.fail(f"the child ended with {child.wait()} and never said {word}")


def kill(child: "subprocess.Popen[str]") -> None:
    child.kill()
    child.communicate()
