"""Dashboards, rules and scrape configuration beside a real service and a real database."""

import json
import re
import shutil
import subprocess
from collections import defaultdict
from pathlib import Path

import asyncpg
import httpx
import pytest
import yaml
from prometheus_client.parser import text_string_to_metric_families
from sqlalchemy.engine import make_url

from app.contract.enums import FallbackReason
from app.db.postgres_cluster import SUPERUSER
from tests.deploy.observed import (
    DASHBOARDS,
    DEPLOY,
    ROOT,
    expressions,
    groupings,
    panels,
    rules,
    selectors,
    targets,
)
from tests.fixtures.database import TestServer, run_elsewhere
from tests.fixtures.service import ServiceProcess
from tests.fixtures.wire import (
    estimated,
    matched,
    materialize_body,
    new_tenant,
    register,
    registration,
)
from tests.process.waiting import until
from tests.worker.rig import SECRET, Worker

ADDED_BY_THE_SCRAPE = {"job", "instance"}
# Series of these come with the first request for a route.
OPEN_LABELS = {"route"}
MACROS = {
    "$__timeFilter(bucket)": "bucket BETWEEN now() - interval '1 day' AND now()",
}
# What has no series before it happened.
LATER = {
    ("nexuskv_executions_total", "result"): {"completed", "registered", *FallbackReason},
}
ROLE = "nexuskv_dashboards"
ROLE_SQL = DEPLOY / "postgres" / "dashboards_role.sql"


@pytest.fixture(scope="module")
def live(test_server: TestServer, tmp_path_factory: pytest.TempPathFactory):
    """Every series of a service with readers, and of a worker: name -> label -> values."""
    directory = tmp_path_factory.mktemp("observed")
    name, url = test_server.clone()
    service = ServiceProcess(url, directory, "--workers", "2", NEXUSKV_WORKER_SECRET=SECRET).start()
    worker = Worker(directory / "local", "local", "--api-url", service.url)
    series: dict[str, dict[str, set[str]]] = defaultdict(lambda: defaultdict(set))
    with service.client() as client:
        until(lambda: client.get("/v1/workers").json()["items"], "the worker is registered")
        # Before a first request a route has no series, nor has what is yet to be executed.
        tenant = new_tenant()
        register(client, registration(tenant))
        until(lambda: matched(client, tenant), "the state is known here, too")
        option = estimated(client, tenant)
        client.post("/locus/v1/materialize", json=materialize_body(option)).raise_for_status()
        httpx.get(f"{worker.url}/livez")
        texts = [client.get("/metrics").text, httpx.get(f"{worker.url}/metrics").text]
    for text in texts:
        for family in text_string_to_metric_families(text):
            for sample in family.samples:
                known = series[sample.name]
                for label, value in sample.labels.items():
                    known[label].add(value)
    worker.close()
    assert service.stop() == 0, service.log()
    test_server.drop(name)
    series["up"] = defaultdict(set)
    return series


@pytest.fixture(scope="module")
def recorded():
    """Recorded series, with the labels that they keep."""
    kept = {}
    for rule, asked in rules("record"):
        grouped = groupings(asked.text) - {"le"}
        aggregated = "sum(" in asked.text or grouped
        kept[rule["record"]] = grouped if aggregated else {"instance"}
    return kept


@pytest.mark.parametrize("asked", expressions(), ids=lambda asked: asked.where)
def test_every_metric_label_and_value_is_there(asked, live, recorded):
    labels = set(ADDED_BY_THE_SCRAPE)
    for selector in selectors(asked.text):
        if selector.metric in recorded:
            known = {label: set() for label in recorded[selector.metric]}
        else:
            assert selector.metric in live, f"no process has {selector.metric}"
            known = live[selector.metric]
        labels |= set(known)
        for label, operator, value in selector.matchers:
            if label in ADDED_BY_THE_SCRAPE:
                continue
            assert label in known, f"{selector.metric} has no label {label}"
            if label in OPEN_LABELS or selector.metric in recorded:
                continue
            options = value.split("|") if "~" in operator else [value]
            later = LATER.get((selector.metric, label), set())
            missing = set(options) - known[label] - later
            assert not missing, f"{selector.metric} has no series with {label} {missing}"
    assert groupings(asked.text) <= labels, f"grouped by {groupings(asked.text) - labels}"


def promtool(*args: str) -> None:
    command = shutil.which("promtool")
    if command is None:
        pytest.skip("no promtool here: the rules are only compared with what a service serves")
    done = subprocess.run([command, *args], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "FAILED" not in done.stdout


def test_prometheus_takes_its_configuration_and_rules():
    promtool("check", "config", str(DEPLOY / "prometheus" / "prometheus.yml"))


def test_alerts_fire_when_they_should():
    promtool("test", "rules", str(Path(__file__).with_name("alerts_test.yml")))


def test_prometheus_takes_what_dashboards_ask(tmp_path):
    checked = [
        {"record": f"asked:{number}", "expr": asked.text}
        for number, asked in enumerate(expressions())
    ]
    path = tmp_path / "asked.yml"
    path.write_text(yaml.safe_dump({"groups": [{"name": "asked", "rules": checked}]}))
    promtool("check", "rules", "--lint=none", str(path))


def test_every_alert_says_how_bad_it_is_and_what_to_do():
    listed = (ROOT / "docs" / "dashboards.md").read_text(encoding="utf-8")
    names = []
    for rule, _ in rules("alert"):
        names.append(rule["alert"])
        assert rule["labels"]["severity"] in ("page", "ticket")
        assert set(rule["annotations"]) == {"summary", "action"}
    assert names
    assert len(names) == len(set(names))
    assert re.findall(r"^\| `(NexusKV\w+)` \|", listed, re.MULTILINE) == names


def test_dashboards_are_as_grafana_provisions_them():
    provider = yaml.safe_load(
        (DEPLOY / "grafana" / "provisioning" / "dashboards" / "nexuskv.yml").read_text()
    )
    sources = yaml.safe_load(
        (DEPLOY / "grafana" / "provisioning" / "datasources" / "nexuskv.yml").read_text()
    )
    known = {(source["uid"], source["type"]) for source in sources["datasources"]}
    assert provider["providers"][0]["options"]["path"] == "/etc/grafana/dashboards"
    assert len(DASHBOARDS) == 4
    for path in DASHBOARDS:
        dashboard = json.loads(path.read_text())
        assert dashboard["uid"] == path.stem
        assert "nexuskv" in dashboard["tags"]
        placed = [panel for panel in panels(dashboard) if panel["type"] != "row"]
        ids = [panel["id"] for panel in panels(dashboard)]
        assert len(ids) == len(set(ids))
        for panel in placed:
            for target in panel["targets"]:
                source = target["datasource"]
                assert (source["uid"], source["type"]) in known, panel["title"]
        cells = [
            (x, y)
            for panel in panels(dashboard)
            for x in range(panel["gridPos"]["x"], panel["gridPos"]["x"] + panel["gridPos"]["w"])
            for y in range(panel["gridPos"]["y"], panel["gridPos"]["y"] + panel["gridPos"]["h"])
        ]
        assert len(cells) == len(set(cells)), "panels overlap"
        assert max(x for x, _ in cells) < 24


def test_every_process_of_the_compose_file_is_scraped_under_a_job_that_rules_know():
    config = yaml.safe_load((DEPLOY / "prometheus" / "prometheus.yml").read_text())
    services = yaml.safe_load((ROOT / "docker-compose.yml").read_text())["services"]
    jobs = {
        job["job_name"]: [
            target for static in job["static_configs"] for target in static["targets"]
        ]
        for job in config["scrape_configs"]
    }
    workers = [f"{name}:9100" for name in services if name.startswith("worker-")]
    assert jobs == {"nexuskv-api": ["api:9099"], "nexuskv-worker": workers}
    named = {
        value
        for asked in expressions()
        for selector in selectors(asked.text)
        for label, _, value in selector.matchers
        if label == "job"
    }
    assert named <= set(jobs)


@pytest.fixture(scope="module")
def as_dashboards(test_server: TestServer):
    """Runs a statement as the role of dashboards, in a migrated database; asyncpg's errors."""
    name, url = test_server.clone()
    plain = make_url(url.replace("postgresql+asyncpg://", "postgresql://", 1))
    # Who starts the embedded server is its superuser, too; elsewhere, whoever was given.
    maker = plain.set(username=SUPERUSER) if "host" in plain.query else plain
    maker_url = maker.render_as_string(hide_password=False)

    async def run(*statements: str) -> list[str]:
        connection = await asyncpg.connect(maker_url)
        try:
            for statement in statements[:-1]:
                await connection.execute(statement)
            prepared = await connection.prepare(statements[-1])
            await prepared.fetch()
            return [attribute.type.name for attribute in prepared.get_attributes()]
        finally:
            await connection.close()

    script = ROLE_SQL.read_text().replace(":'password'", "'only-for-tests'")
    try:
        # Twice: it can be run again at any time.
        run_elsewhere(run(script, script, "SELECT 1"))
    except asyncpg.InsufficientPrivilegeError:
        test_server.drop(name)
        pytest.skip("the given server's role may make no roles: the embedded one's may")
    yield lambda *statements: run_elsewhere(run(f"SET SESSION AUTHORIZATION {ROLE}", *statements))
    run_elsewhere(run(f"DROP OWNED BY {ROLE}", f"DROP ROLE {ROLE}"))
    test_server.drop(name)


@pytest.mark.parametrize("asked", list(targets("nexuskv-postgres")), ids=lambda asked: asked.where)
def test_the_history_answers_every_panel(asked, as_dashboards):
    statement = asked.text
    for macro, meaning in MACROS.items():
        statement = statement.replace(macro, meaning)
    assert "$" not in statement, "a macro nobody filled in"
    assert set(as_dashboards(statement)) <= {"timestamptz", "text", "float8", "numeric", "int8"}


@pytest.mark.parametrize(
    "statement",
    [
        "SELECT 1 FROM decision",
        "SELECT 1 FROM decision_rollup",
        "SELECT 1 FROM history.decisions",
        "SELECT 1 FROM api_key",
        "SELECT 1 FROM deployment_secret",
        "CREATE TABLE mine (id int)",
        "DELETE FROM history.decisions_hourly",
        "ALTER ROLE nexuskv_dashboards CREATEROLE",
    ],
)
def test_the_role_of_dashboards_does_nothing_else(statement, as_dashboards):
    with pytest.raises(asyncpg.InsufficientPrivilegeError):
        as_dashboards(statement)
