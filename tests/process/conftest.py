"""Commands and directories of one test, and nothing left of them afterwards."""

import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.fixtures.database import fast_directory
from tests.fixtures.service import SECRET
from tests.process.command import Command

Start = Callable[..., Command]


@pytest.fixture
def place() -> Iterator[Path]:
    """A directory every user can pass through: as root, Postgres runs as another one."""
    path = Path(tempfile.mkdtemp(prefix="nexuskv-process-", dir=fast_directory()))
    if os.geteuid() == 0:
        path.chmod(0o711)
    yield path
    shutil.rmtree(path)


@pytest.fixture
def start(place: Path) -> Iterator[Start]:
    """`start("up", ...)`: a command with a ready file, listening on a free port."""
    started: list[Command] = []

    def run(name: str, *args: str, env: dict[str, str] | None = None, **options) -> Command:
        directory = place / f"command-{len(started)}"
        directory.mkdir()
        # The command may run as another user, and writes its ready file here.
        directory.chmod(0o777)
        listen = () if "--listen" in args else ("--listen", "127.0.0.1:0")
        ready = ("--ready-file", str(directory / "ready.json"))
        command = Command(directory, name, *listen, *ready, *args, env=env or {}, **options)
        started.append(command)
        return command

    yield run
    for command in started:
        command.discard()


@pytest.fixture
def serve(start: Start, database_url: str) -> Start:
    """`nexuskv serve` on this test's database."""

    def run(*args: str, env: dict[str, str] | None = None, **options) -> Command:
        given = {"NEXUSKV_DATABASE_URL": database_url, "NEXUSKV_HANDLE_SECRET": SECRET}
        return start("serve", *args, env=given | (env or {}), **options)

    return run
