"""Faults that need no service: bad options, bad lines, nobody listening, a signal."""

import contextlib
import json
import os
import signal
import socket
import threading

import pytest
import typer
from typer.testing import CliRunner

from app.cli.replay import replay_command

runner = CliRunner()
replay_app = typer.Typer()
replay_app.command()(replay_command)


@pytest.fixture
def trace(tmp_path):
    path = tmp_path / "trace.jsonl"
    line = {"timestamp": 0, "input_length": 600, "output_length": 1, "hash_ids": [0, 1]}
    path.write_text(f"{json.dumps(line)}\n" * 3)
    return path


@pytest.fixture
def silent_url():
    """A port that is bound and never accepts: connecting to it is refused."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        yield f"http://127.0.0.1:{taken.getsockname()[1]}"


@pytest.mark.parametrize("url", ["127.0.0.1:9099", "ftp://host", "http://", "http://[::"])
def test_a_url_that_is_none_is_refused_before_the_trace_is_read(trace, url):
    result = runner.invoke(replay_app, [str(trace), f"--url={url}"])
    assert result.exit_code == 2
    assert "--url" in result.stderr


@pytest.mark.parametrize("option", ["--limit=0", "--concurrency=0", "--block-tokens=0"])
def test_zero_is_refused(trace, option):
    assert runner.invoke(replay_app, [str(trace), option]).exit_code == 2


def test_a_key_that_no_header_can_carry_is_refused(trace):
    result = runner.invoke(replay_app, [str(trace), "--key=nkv_é"])
    assert result.exit_code == 2
    assert "--key" in result.stderr


@pytest.mark.parametrize("variable", ["NEXUSKV_URL", "NEXUSKV_API_URL"])
def test_the_service_is_named_as_for_every_other_command(
    trace, tmp_path, silent_url, variable, monkeypatch
):
    monkeypatch.setattr("app.cli.replay_client.FIRST_BACKOFF_S", 0.001)
    result = runner.invoke(replay_app, [str(trace)], env={variable: silent_url})
    assert f"unreachable: no answer from {silent_url}" in result.stderr
    missing = runner.invoke(replay_app, [str(trace), f"--key-file={tmp_path}/none"])
    assert missing.exit_code == 2
    assert "there is no file" in missing.stderr


def test_a_trace_that_is_not_there_is_refused(tmp_path):
    assert runner.invoke(replay_app, [str(tmp_path / "none.jsonl")]).exit_code == 2


def test_nobody_listening_ends_the_run_after_one_request(trace, tmp_path, silent_url, monkeypatch):
    monkeypatch.setattr("app.cli.replay_client.FIRST_BACKOFF_S", 0.001)
    figures = tmp_path / "figures.json"
    result = runner.invoke(replay_app, [str(trace), f"--url={silent_url}", f"--json={figures}"])
    assert result.exit_code == 1
    assert f"unreachable: no answer from {silent_url}" in result.stderr
    written = json.loads(figures.read_bytes())
    assert written["requests"] == 1
    assert written["error_codes"] == {"unreachable": 1}
    assert written["decisions"] is None
    assert written["lookup_p50_ms"] is None


def test_a_bad_line_ends_the_run_with_its_number(trace, silent_url):
    trace.write_text("{}\n")
    result = runner.invoke(replay_app, [str(trace), f"--url={silent_url}"])
    assert result.exit_code == 1
    assert "line 1: " in result.stderr
    assert "missing required field" in result.stderr


@contextlib.contextmanager
def interrupting_server():
    """Interrupts this process when its first request arrives, then refuses the request."""
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def serve() -> None:
            connection, _ = listener.accept()
            with connection:
                connection.recv(65536)
                os.kill(os.getpid(), signal.SIGINT)
                connection.sendall(b"HTTP/1.1 409 No\r\ncontent-length: 0\r\n\r\n")

        thread = threading.Thread(target=serve)
        thread.start()
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"
        thread.join()


def test_an_interrupt_ends_with_the_table_of_what_was_done(trace, tmp_path):
    figures = tmp_path / "figures.json"
    with interrupting_server() as url:
        result = runner.invoke(replay_app, [str(trace), f"--url={url}", f"--json={figures}"])
    assert result.exit_code == 130
    assert "Replay (interrupted)" in result.stdout
    written = json.loads(figures.read_bytes())
    assert written["interrupted"] is True
    assert written["requests"] == 1
    assert written["error_codes"] == {"http_409": 1}
