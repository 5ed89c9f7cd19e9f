"""The other commands as they are typed: migrate, openapi, help."""

import os
import subprocess
from collections.abc import Iterator
from importlib.metadata import version
from itertools import pairwise, takewhile
from pathlib import Path
from typing import cast

import click
import pytest
import typer
from typer.testing import CliRunner, Result

from app.cli import cli
from app.control.keys import Scope
from tests.control.logs import captured_logs
from tests.process.command import COMMAND

OPENAPI = Path(__file__).resolve().parents[2] / "openapi"


def invoke(*args: str, url: str | None = None, columns: int = 200) -> Result:
    env = {"NEXUSKV_DATABASE_URL": url, "COLUMNS": str(columns), "TERM": "dumb", "NO_COLOR": "1"}
    with captured_logs():
        return CliRunner().invoke(cli, list(args), env=env)


@pytest.mark.parametrize(
    ("command", "mentions"),
    [
        ([], ["up", "serve", "migrate", "keys", "replay", "trace", "openapi"]),
        (["up"], ["--listen", "--fixture", "--ready-file", "--data-dir", "--require-key"]),
        (["serve"], ["--listen", "--fixture", "--ready-file", "NEXUSKV_HANDLE_SECRET"]),
        (["migrate"], ["--database-url", "NEXUSKV_DATABASE_URL"]),
        (["keys"], ["create", "list", "revoke"]),
        (["keys", "create"], ["--name", "--tenant", "--scope"]),
        (["replay"], ["--url", "--key", "--limit", "--block-tokens", "--concurrency", "--json"]),
        (["trace"], ["generate"]),
        (["openapi"], ["--out"]),
    ],
)
def test_help(command, mentions) -> None:
    result = invoke(*command, "--help")
    assert result.exit_code == 0, result.output
    for name in mentions:
        assert name in result.stdout, name


def commands(group: click.Group, *path: str) -> Iterator[tuple[tuple[str, ...], click.Command]]:
    for name, command in group.commands.items():
        yield (*path, name), command
        # Not every version of typer makes its groups from click's own class.
        if hasattr(command, "commands"):
            yield from commands(cast(click.Group, command), *path, name)


EVERY = dict(commands(cast(click.Group, typer.main.get_command(cli))))
ASKING = [path for path, one in EVERY.items() if "--url" in {o for p in one.params for o in p.opts}]


@pytest.mark.parametrize("path", EVERY, ids=" ".join)
def test_help_at_eighty_columns(path) -> None:
    """Whole words, and paragraphs that fill their lines."""
    result = invoke(*path, "--help", columns=80)
    lines = result.stdout.splitlines()
    assert max(map(len, lines)) <= 80
    assert "…" not in result.stdout
    paragraph = [line.strip() for line in lines[3 : lines.index("", 3) if "" in lines[3:] else 20]]
    for line, following in pairwise(takewhile(lambda line: not line.startswith("╭"), paragraph)):
        if line and following:
            assert len(line) + 1 + len(following.split()[0]) > 76, (line, following)


def test_names_of_scopes_are_whole_at_eighty_columns() -> None:
    shown = invoke("keys", "create", "--help", columns=80).stdout
    words = {word.strip(",.") for word in shown.split()}
    assert {scope.value for scope in Scope} <= words


@pytest.mark.parametrize("path", ASKING, ids=" ".join)
def test_every_command_that_asks_the_service_takes_the_same_options(path) -> None:
    found = {parameter.opts[0]: parameter for parameter in EVERY[path].params}
    assert found["--url"].envvar == ["NEXUSKV_URL", "NEXUSKV_API_URL"]
    assert found["--key"].envvar == ["NEXUSKV_KEY", "NEXUSKV_API_KEY"]
    assert "--key-file" in found


def test_the_version() -> None:
    result = invoke("--version")
    assert result.exit_code == 0
    assert result.stdout == f"nexuskv {version('nexuskv')}\n"


def test_the_process_itself() -> None:
    """No arguments: the help, and the exit code of a usage error."""
    done = subprocess.run(
        COMMAND, capture_output=True, text=True, check=False, env=os.environ | {"TERM": "dumb"}
    )
    assert done.returncode == 2
    assert "Usage:" in done.stdout + done.stderr
    assert "Traceback" not in done.stderr


def test_openapi_writes_what_is_checked_in(tmp_path: Path) -> None:
    out = tmp_path / "new" / "folder"
    result = invoke("openapi", "--out", str(out))
    assert result.exit_code == 0, result.output
    written = {path.name: path.read_text(encoding="utf-8") for path in out.iterdir()}
    assert written == {path.name: path.read_text(encoding="utf-8") for path in OPENAPI.iterdir()}


def test_migrate_again_changes_nothing(empty_database_url) -> None:
    first, again = (invoke("migrate", url=empty_database_url) for _ in range(2))
    assert first.exit_code == again.exit_code == 0, first.output + again.output
    assert first.stdout == again.stdout
    assert first.stdout.endswith("(current)\n")


@pytest.mark.parametrize(
    ("url", "says"),
    [
        (None, "NEXUSKV_DATABASE_URL"),
        ("postgresql://nexus:hunter2@127.0.0.1:9/none", "database"),
        ("mysql://nexus:hunter2@host/db", "postgresql://"),
    ],
)
def test_migrate_without_a_database(url, says) -> None:
    result = invoke("migrate", url=url)
    assert result.exit_code != 0
    assert isinstance(result.exception, SystemExit)
    assert says in result.stderr
    assert "hunter2" not in result.output
    assert "Traceback" not in result.output
