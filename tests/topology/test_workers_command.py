"""`nexuskv workers`, and the settings of workers as commands read them."""

import json
import re

import pytest
from typer.testing import CliRunner

from app.cli import cli
from app.cli.worker_env import worker_settings
from app.control.keys import Scope
from app.settings import DEFAULT_WORKER_HOSTS
from tests.fixtures.wire import heartbeat_body

SECRETS = ("a" * 32, "b" * 40)


@pytest.fixture
def run(service):
    def run_with(*options: str, key: str | None = None):
        wanted = ["workers", "--url", service.url, "--key", key or service.admin_key, *options]
        return CliRunner().invoke(cli, wanted, env={"COLUMNS": "200"})

    with service.client() as client:
        client.put("/v1/workers/of-command", json=heartbeat_body()).raise_for_status()
    return run_with


def test_a_table_for_people(run):
    shown = run()
    assert shown.exit_code == 0, shown.output
    lines = [re.split("[│┃]", line)[1:-1] for line in shown.stdout.splitlines()]
    [names] = [line for line in lines if any("Worker" in cell for cell in line)]
    [cells] = [line for line in lines if any("of-command" in cell for cell in line)]
    row = {name.strip(): cell.strip() for name, cell in zip(names, cells, strict=True)}
    assert row.pop("Heard").endswith(" s ago")
    assert row == {
        "Worker": "of-command", "Memory": "7 B of 7 B", "Payloads": "7", "Sinks": "7",
        "Moving": "7", "URL": "http://127.0.0.1:7000",
    }  # fmt: skip


def test_json_for_programs(run):
    shown = run("--json")
    names = [worker["name"] for worker in json.loads(shown.stdout)["items"]]
    assert "of-command" in names


def test_a_refusal_is_one_line_with_the_services_words(run, service):
    shown = run(key=service.key(Scope.BRIDGE))
    assert shown.exit_code == 1
    assert "workers:read" in shown.output
    assert "Traceback" not in shown.output


def test_nobody_there():
    shown = CliRunner().invoke(cli, ["workers", "--url", "http://127.0.0.1:1"])
    assert shown.exit_code == 1
    assert "no answer from http://127.0.0.1:1" in shown.output.replace("\n", " ")


@pytest.mark.parametrize("url", ["ftp://127.0.0.1", "127.0.0.1:9099", "http://[x"])
def test_what_is_no_url(url):
    shown = CliRunner().invoke(cli, ["workers", "--url", url])
    assert shown.exit_code in {1, 2}
    assert "Error" in shown.output


def test_settings_of_the_environment(tmp_path):
    found = worker_settings({})
    assert found["worker_secrets"] == ()
    assert found["worker_hosts"] == DEFAULT_WORKER_HOSTS
    assert (found["worker_silence_s"], found["worker_lost_s"]) == (5.0, 3_600.0)
    file = tmp_path / "secret"
    file.write_text(", ".join(SECRETS) + "\n")
    file.chmod(0o600)
    found = worker_settings(
        {
            "NEXUSKV_WORKER_SECRET_FILE": str(file),
            "NEXUSKV_WORKER_HOSTS": "worker-a, 10.0.0.0/8",
            "NEXUSKV_WORKER_SILENCE_S": "2.5",
        }
    )
    assert found["worker_secrets"] == SECRETS
    assert found["worker_hosts"] == ("worker-a", "10.0.0.0/8")
    assert (found["worker_silence_s"], found["worker_lost_s"]) == (2.5, 3_600.0)
    seldom = worker_settings({"NEXUSKV_WORKER_SILENCE_S": "3600", "NEXUSKV_WORKER_HOSTS": ""})
    assert seldom["worker_lost_s"] == 7_200.0


@pytest.mark.parametrize(
    ("variable", "value"),
    [
        ("NEXUSKV_WORKER_SECRET", "short"),
        ("NEXUSKV_WORKER_SECRET", ",".join("c" * 40 for _ in range(3))),
        ("NEXUSKV_WORKER_HOSTS", "10.0.0.1/8"),
        ("NEXUSKV_WORKER_HOSTS", "http://a"),
        ("NEXUSKV_WORKER_SILENCE_S", "soon"),
        ("NEXUSKV_WORKER_SILENCE_S", "0.1"),
        ("NEXUSKV_WORKER_SILENCE_S", "nan"),
        ("NEXUSKV_WORKER_LOST_S", "9.9"),
        ("NEXUSKV_WORKER_LOST_S", "3000000"),
    ],
)
def test_settings_that_cannot_be_used_name_their_variable(variable, value):
    with pytest.raises(ValueError, match=variable):
        worker_settings({variable: value})
