"""`nexuskv worker`: what it refuses, what it writes, how it ends."""

import json
import signal

import httpx
import pytest
from typer.testing import CliRunner

from app.cli import cli
from tests.process.command import Command
from tests.process.waiting import until
from tests.worker.evil import relay, whole
from tests.worker.rig import MIB, SECRET, some_bytes


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (("--node", "a/b"), "--node has 1 to 128 letters"),
        (("--dram-bytes", "1000"), "--dram-bytes is at least 1048576"),
        (("--listen", "9000"), "--listen must be HOST:PORT"),
        (("--data-listen", "9000"), "--data-listen must be HOST:PORT"),
        (("--api-url", "api:9099"), "--api-url must be http://HOST:PORT"),
        (("--api-url", "http://h:1", "--listen", "0.0.0.0:0"), "give --advertise-url"),
        (("--advertise-data", "http://h:1"), "--advertise-data must be HOST:PORT"),
        (("--secret-file", "/no/such/file"), "--secret-file: there is no file /no/such/file"),
    ],
)
def test_bad_options(options, says):
    given = {"--node": "a", "--dram-bytes": str(MIB), "--listen": "127.0.0.1:0"}
    given |= dict(zip(options[::2], options[1::2], strict=True))
    arguments = [part for pair in given.items() for part in pair]
    done = CliRunner().invoke(cli, ["worker", *arguments], env={"NEXUSKV_WORKER_SECRET": SECRET})
    assert done.exit_code == 1
    assert says in " ".join(done.stderr.split())


def test_more_memory_than_there_is(tmp_path):
    command = Command(
        tmp_path,
        *("worker", "--node", "a", "--dram-bytes", str(2**60)),
        env={"NEXUSKV_WORKER_SECRET": SECRET},
    )
    assert command.wait() == 1
    assert f"cannot take {2**60} bytes of memory" in command.stderr


@pytest.mark.parametrize(("secret", "says"), [(None, "no worker secret"), ("short", "at least 32")])
def test_bad_secrets(secret, says):
    arguments = ["worker", "--node", "a", "--dram-bytes", str(MIB)]
    done = CliRunner().invoke(cli, arguments, env={"NEXUSKV_WORKER_SECRET": secret})
    assert done.exit_code == 1
    assert says in " ".join(done.stderr.split())


def test_a_secret_file_and_a_rotation(tmp_path):
    secret = tmp_path / "secret"
    secret.write_text(f"{'n' * 40},{SECRET}\n")
    secret.chmod(0o600)
    ready = tmp_path / "ready.json"
    command = Command(
        tmp_path,
        *("worker", "--node", "a", "--dram-bytes", str(MIB), "--secret-file", str(secret)),
        *("--ready-file", str(ready), "--advertise-url", "http://a.example:1"),
        env={},
    )
    try:
        found = command.ready()
        assert found["schema_version"] == "nexuskv.worker.v1"
        assert found["url"] == "http://a.example:1"
        assert found["node"] == "a"
        assert set(json.loads(ready.read_text())) == {
            *("schema_version", "url", "data_address", "node", "instance_id")
        }
        assert command.end() == 0
    finally:
        command.discard()
    assert "n" * 40 not in command.stderr


def test_a_signal_lets_transfers_end_then_the_process(start_worker, evil):
    worker = start_worker("node")
    data = some_bytes(2 * MIB)

    def wait(connection):
        connection.sendall(whole(data)[:MIB])
        evil.reached.set()
        assert evil.go_on.wait(20)
        connection.sendall(whole(data)[MIB:])
        assert connection.recv(1) == b"\x06"
        evil.reached.clear()

    evil.script = wait
    sink = worker.new_sink(len(data))
    worker.transfer(evil.address, "p", "s", target_sink_id=sink, wait_s=0)
    assert evil.reached.wait(20)
    worker.command.process.send_signal(signal.SIGTERM)
    evil.go_on.set()
    until(lambda: not evil.reached.is_set(), "the destination confirmed every byte")
    assert worker.command.wait() == 0


def test_a_signal_lets_others_fetch_to_the_end(workers, start_worker, evil):
    _, target = workers
    source = start_worker("node", tenant=target.tenant)
    data = some_bytes(24 * MIB)
    source.put("p", data)
    evil.script = relay(evil, source, "p", MIB)
    sink = target.new_sink(len(data))
    target.transfer(evil.address, "p", "s", target_sink_id=sink, wait_s=0)
    assert evil.reached.wait(20)
    source.command.process.send_signal(signal.SIGTERM)
    until(lambda: not answers(source), "the control port is closed")
    evil.go_on.set()
    assert target.transfer(evil.address, "p", "s", target_sink_id=sink)["status"] == "completed"
    assert target.content(sink).content == data
    assert source.command.wait() == 0


def answers(worker):
    try:
        return httpx.get(worker.url + "/livez").status_code == 200
    except httpx.TransportError:
        return False


def test_a_signal_cancels_what_does_not_end(start_worker, evil):
    worker = start_worker("node", "--drain-s", "1")

    def trickle(connection):
        evil.reached.set()
        connection.sendall(whole(bytes(MIB))[:1000])
        while not evil.go_on.wait(0.1):
            connection.sendall(b"x")

    evil.script = trickle
    sink = worker.new_sink(MIB)
    worker.transfer(evil.address, "p", "s", target_sink_id=sink, wait_s=0, deadline_s=600)
    assert evil.reached.wait(20)
    assert httpx.get(worker.url + "/readyz").status_code == 200
    assert worker.command.end() == 0
    assert '"failure":"cancelled"' in worker.command.stderr, worker.command.stderr
