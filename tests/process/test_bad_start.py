"""A start that cannot work: one line that helps, an exit code, no traceback, no secret."""

import json
import socket
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from app.cli import cli
from tests.control.logs import captured_logs
from tests.fixtures.service import SECRET
from tests.fixtures.wire import registration

URL = "postgresql://nexus:hunter2@127.0.0.1:9/none"
GIVEN = {"NEXUSKV_DATABASE_URL": URL, "NEXUSKV_HANDLE_SECRET": SECRET}
Invoke = Callable[..., Result]


@pytest.fixture
def invoke() -> Iterator[Invoke]:
    """The command line in this process: each of these ends before it could serve."""

    def run(*args: str, env: dict[str, str | None] | None = None) -> Result:
        clean = {"NEXUSKV_HANDLE_SECRET_FILE": None, "NEXUSKV_LOG_LEVEL": None, "TERM": "dumb"}
        return CliRunner().invoke(cli, list(args), env=clean | GIVEN | (env or {}))

    with captured_logs():
        yield run


def refusal(result: Result) -> str:
    """The message of a refused start."""
    assert result.exit_code != 0
    assert isinstance(result.exception, SystemExit), result.exception
    assert result.stdout == ""
    assert "Traceback" not in result.stderr
    assert "hunter2" not in result.stderr
    assert SECRET not in result.stderr
    assert result.stderr.startswith("Error: ")
    return result.stderr


@pytest.mark.parametrize(
    ("env", "says"),
    [
        ({"NEXUSKV_DATABASE_URL": None}, "NEXUSKV_DATABASE_URL"),
        ({"NEXUSKV_DATABASE_URL": "mysql://nexus:hunter2@host/db"}, "postgresql://"),
        ({"NEXUSKV_DATABASE_URL": "hunter2"}, "postgresql://USER@HOST/DB"),
        ({"NEXUSKV_HANDLE_SECRET": None}, "openssl rand -hex 32"),
        ({"NEXUSKV_HANDLE_SECRET": "hunter2"}, "at least 32 characters"),
        ({"NEXUSKV_HANDLE_SECRET": f"{SECRET},hunter2"}, "at least 32 characters"),
        ({"NEXUSKV_HANDLE_SECRET": ",".join([SECRET, SECRET + "x", SECRET + "y"])}, "one or two"),
        ({"NEXUSKV_LOG_LEVEL": "loud"}, "warning, error"),
    ],
)
def test_serve_without_what_it_needs(invoke: Invoke, env, says) -> None:
    message = refusal(invoke("serve", "--listen", "127.0.0.1:0", env=env))
    assert says in message
    assert message.count("\n") == 1


@pytest.mark.parametrize("command", ["serve", "up"])
@pytest.mark.parametrize(
    ("listen", "says"),
    [
        ("nonsense", "HOST:PORT"),
        ("9099", "HOST:PORT"),
        (":9099", "HOST:PORT"),
        ("127.0.0.1:", "HOST:PORT"),
        ("127.0.0.1:http", "HOST:PORT"),
        ("127.0.0.1:65536", "HOST:PORT"),
        ("127.0.0.1:-1", "HOST:PORT"),
        ("192.0.2.1:0", "cannot listen on 192.0.2.1:0"),
        ("no-such-host.invalid:0", "cannot listen on no-such-host.invalid:0"),
    ],
)
def test_an_address_that_cannot_be_used(invoke: Invoke, command, listen, says) -> None:
    assert says in refusal(invoke(command, "--listen", listen))


@pytest.mark.parametrize(
    ("args", "says"),
    [
        (["--reader-listen", "127.0.0.1:0"], "--workers 2 or more"),
        (["--workers", "2", "--reader-listen", "nonsense"], "--reader-listen must be HOST:PORT"),
        (["--workers", "2", "--reader-listen", "127.0.0.1:65535"], "--reader-listen must be"),
    ],
)
def test_addresses_of_readers_that_cannot_be_used(invoke: Invoke, args, says) -> None:
    assert says in refusal(invoke("serve", "--listen", "127.0.0.1:0", *args))


@pytest.mark.parametrize("command", ["serve", "up"])
def test_a_taken_port(invoke: Invoke, command) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        listen = f"127.0.0.1:{other.getsockname()[1]}"
        message = refusal(invoke(command, "--listen", listen))
    assert f"cannot listen on {listen}: Address already in use" in message


@pytest.mark.parametrize("command", ["serve", "up"])
@pytest.mark.parametrize(
    ("content", "says"),
    [
        (None, "No such file"),
        ("{", "neither YAML nor JSON"),
        ("[]", "policy"),
        ("schema_version: nexuskv.execution_policy.v1\nsurprise: 1\n", "/surprise"),
        ("schema_version: nexuskv.execution_policy.v3\n", "schema_version"),
    ],
)
def test_a_bad_policy(invoke: Invoke, tmp_path: Path, command, content, says) -> None:
    path = tmp_path / "policy.yaml"
    if content is not None:
        path.write_text(content, encoding="utf-8")
    message = refusal(invoke(command, "--listen", "127.0.0.1:0", "--policy", str(path)))
    assert "--policy" in message
    assert str(path) in message.replace("\n", "")
    assert says in message


def fixture_file(*entries: object, **changes: object) -> str:
    document = {"schema_version": "locus.nexuskv-bridge.fixture.v1", "entries": list(entries)}
    return json.dumps(document | changes)


@pytest.mark.parametrize("command", ["serve", "up"])
@pytest.mark.parametrize(
    ("content", "says"),
    [
        (None, "No such file"),
        ("{", "not valid JSON"),
        ("[]", "schema_version"),
        (fixture_file(schema_version="other"), "schema_version"),
        (fixture_file(entries={}), "entries must be a list"),
        (fixture_file(registration("t"), {}), "/entries/1"),
        (fixture_file(registration("t", tokens=[-1])), "/entries/0"),
        (fixture_file(1), "/entries/0"),
    ],
)
def test_a_bad_fixture(invoke: Invoke, tmp_path: Path, command, content, says) -> None:
    path = tmp_path / "fixture.json"
    if content is not None:
        path.write_text(content, encoding="utf-8")
    message = refusal(invoke(command, "--listen", "127.0.0.1:0", "--fixture", str(path)))
    assert "--fixture" in message
    assert says in message


@pytest.mark.parametrize("command", ["serve", "up"])
def test_a_ready_file_that_cannot_be_written(invoke: Invoke, tmp_path: Path, command) -> None:
    path = tmp_path / "absent" / "ready.json"
    message = refusal(invoke(command, "--listen", "127.0.0.1:0", "--ready-file", str(path)))
    assert f"--ready-file: there is no directory {path.parent}" in message


@pytest.mark.parametrize("mode", [0o644, 0o640, 0o604])
def test_a_secret_file_that_others_may_read(invoke: Invoke, tmp_path: Path, mode) -> None:
    path = tmp_path / "handle.secret"
    path.write_text(SECRET, encoding="utf-8")
    path.chmod(mode)
    env = {"NEXUSKV_HANDLE_SECRET": None, "NEXUSKV_HANDLE_SECRET_FILE": str(path)}
    message = refusal(invoke("serve", "--listen", "127.0.0.1:0", env=env))
    assert f"chmod 600 {path}" in message


def test_a_secret_file_that_is_not_there(invoke: Invoke, tmp_path: Path) -> None:
    path = tmp_path / "absent"
    env = {"NEXUSKV_HANDLE_SECRET": None, "NEXUSKV_HANDLE_SECRET_FILE": str(path)}
    message = refusal(invoke("serve", "--listen", "127.0.0.1:0", env=env))
    assert str(path) in message


@pytest.mark.parametrize(
    "args",
    [
        ["serve", "--no-such-option"],
        ["no-such-command"],
        ["serve", "--fixture"],
    ],
)
def test_usage_errors(invoke: Invoke, args) -> None:
    result = invoke(*args)
    assert result.exit_code == 2
    assert "Traceback" not in result.output


def test_up_without_the_memory_for_its_worker(invoke: Invoke, tmp_path: Path) -> None:
    message = refusal(
        invoke(
            *("up", "--listen", "127.0.0.1:0", "--data-dir", str(tmp_path / "home")),
            *("--worker-dram-bytes", "9999999999999"),
        )
    )
    assert "--worker-dram-bytes: cannot take 9999999999999 bytes" in message
    assert not (tmp_path / "home").exists()


@pytest.mark.parametrize("command", ["up", "migrate"])
def test_a_database_that_is_out_of_reach(invoke: Invoke, tmp_path: Path, command) -> None:
    places = ["--listen", "127.0.0.1:0", "--data-dir", str(tmp_path / "home")]
    message = refusal(invoke(command, *(places if command == "up" else [])))
    assert "127.0.0.1:9" in message
    assert "NEXUSKV_DATABASE_URL" in message
    assert "--database-url" in message
    assert "refused" in message or "Connect call failed" in message


def test_up_with_secret_files_that_others_may_read(
    invoke: Invoke, tmp_path: Path, database_url
) -> None:
    for name in ("admin.key", "handle.secret"):
        home = tmp_path / name.replace(".", "-")
        home.mkdir()
        path = home / name
        path.write_text("nkv_0_0\n", encoding="utf-8")
        path.chmod(0o644)
        message = refusal(
            invoke(
                "up", "--listen", "127.0.0.1:0", "--data-dir", str(home),
                env={"NEXUSKV_DATABASE_URL": database_url, "NEXUSKV_HANDLE_SECRET": None},
            )
        )  # fmt: skip
        assert f"chmod 600 {path}" in message
