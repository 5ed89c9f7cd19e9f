"""`nexuskv plan`, as a person types it, against a running service."""

import json
import re
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from app.cli.plan import plan_app
from app.control.keys import Scope
from tests.fixtures.service import ServiceProcess
from tests.plans.fleet import PlanFleet, stored
from tests.policies.documents import document

Run = Callable[..., Result]
NOWHERE = "http://127.0.0.1:9"


def invoke(*arguments: str, env: dict[str, str] | None = None, stdin: str | None = None) -> Result:
    clean = {"NEXUSKV_URL": "", "NEXUSKV_KEY": "", "NEXUSKV_API_KEY": "", "NEXUSKV_API_URL": ""}
    terminal = {"COLUMNS": "200", "TERM": "dumb"}
    return CliRunner().invoke(
        plan_app, list(arguments), env=clean | terminal | (env or {}), input=stdin
    )


@pytest.fixture
def plan(service: ServiceProcess) -> Run:
    def run(*arguments: str, **options: Any) -> Result:
        env = {"NEXUSKV_URL": service.url, "NEXUSKV_KEY": service.admin_key}
        return invoke(*arguments, env=env | options.pop("env", {}), **options)

    return run


@pytest.fixture
def write(tmp_path: Path) -> Callable[[Any], str]:
    def make(body: Any) -> str:
        path = tmp_path / f"request-{len(list(tmp_path.iterdir()))}.json"
        path.write_text(body if isinstance(body, str) else json.dumps(body))
        return str(path)

    return make


def said(result: Result) -> str:
    """What is printed, however its lines are broken."""
    return " ".join(result.stdout.split())


def test_made_and_explained_it_reads_the_same(
    plan: Run, fleet: PlanFleet, write: Callable[[Any], str]
) -> None:
    busy = fleet.target(fleet.warm, queue_depth=4, running_prefill_tokens=400_000)
    body = fleet.body(fleet.target(fleet.cold), busy, fleet.target("elsewhere", free_blocks=5))
    made = plan("make", write(body))
    assert made.exit_code == 0, made.output
    text = said(made)
    assert made.stdout.startswith("Transfer\n")
    assert (
        f"Run it at {fleet.cold}: bring 400 MiB from {fleet.warm} (device of {fleet.warm}) by"
        " baseline transport, and compute 800 tokens."
    ) in text
    assert "The first token is expected after 4.3 ms." in text
    assert "Computing all 4,000 tokens there would take 20.1 ms: that saves 15.8 ms." in text
    assert "The gain is 15.8 ms, give or take 8 ms (one standard deviation)." in text
    assert re.search(r"The next best alternative takes \d+\.\d ms longer\.", text)
    assert re.search(rf"chosen: transfer from {fleet.warm} \(device\) to {fleet.cold}", text)
    for term in ("queue", "transfer", "restore", "schedule", "recompute", "interference"):
        assert f"█ {term}" in text
    assert "slower" in text
    assert "Another alternative was ready sooner." in text
    assert "note: elsewhere: engine not registered: nothing is known of its cache" in text
    assert "topology none" in text
    assert "engines hit" in text
    as_json = json.loads(plan("make", write(body), "--json").stdout)
    stored(fleet.client, as_json["decision_id"])
    explained = plan("explain", as_json["decision_id"])
    assert explained.exit_code == 0, explained.output
    assert explained.stdout == made.stdout
    again = json.loads(plan("explain", as_json["decision_id"], "--json").stdout)
    assert again["chosen"] == as_json["chosen"]


def test_full_lists_every_alternative(
    plan: Run, fleet: PlanFleet, write: Callable[[Any], str]
) -> None:
    file = write(fleet.body(fleet.target(fleet.cold), fleet.target(fleet.warm)))
    full = plan("make", file, "--full")
    assert full.exit_code == 0, full.output
    table = full.stdout[full.stdout.index("Target ") :]
    assert table.count("computing") == 2
    assert table.count("chosen") == 1
    assert "not longer" in table
    brief = json.loads(plan("make", file, "--json").stdout)
    assert brief["considered"] is None
    stored(fleet.client, brief["decision_id"])
    listed = json.loads(plan("explain", brief["decision_id"], "--full", "--json").stdout)
    assert len(listed["considered"]) == 4


def test_a_dry_run_under_another_policy(
    plan: Run, fleet: PlanFleet, write: Callable[[Any], str]
) -> None:
    bounds = {"min_gain_us": 1_000_000_000}
    whole = document(schema_version="nexuskv.execution_policy.v2", cost_bounds=bounds)
    number = fleet.client.post("/v1/policies", json=whole).raise_for_status().json()["number"]
    file = write(fleet.body(fleet.target(fleet.cold)))
    dry = plan("make", file, "--policy", str(number))
    assert dry.stdout.startswith("Recompute\n")
    assert f"Run it at {fleet.cold}, and compute all of it." in said(dry)
    assert f"policy {number}:sha256:" in said(dry)
    as_json = json.loads(plan("make", file, f"--policy={number}", "--json").stdout)
    assert (as_json["decision_id"], as_json["margin_us"]) == (None, None)
    unknown = plan("make", file, "--policy", "999999")
    assert unknown.exit_code == 1
    assert "404 not_found" in unknown.stderr


def test_a_rank_is_named(plan: Run, fleet: PlanFleet, write: Callable[[Any], str]) -> None:
    made = plan("make", write(fleet.body(fleet.target(fleet.cold, dp_rank=3))))
    assert f"Run it at {fleet.cold}/3" in said(made)


def test_a_narrow_terminal_cuts_nothing_off(
    plan: Run, fleet: PlanFleet, write: Callable[[Any], str]
) -> None:
    file = write(fleet.body(fleet.target(fleet.cold), fleet.target(fleet.warm)))
    wide, narrow = (plan("make", file, "--full", env={"COLUMNS": n}) for n in ("200", "60"))
    assert narrow.exit_code == 0, narrow.output
    assert max(map(len, narrow.stdout.splitlines())) <= 60
    # Lines are broken elsewhere; every letter and every figure is there.
    assert Counter(filter(str.isalnum, narrow.stdout)) == Counter(filter(str.isalnum, wide.stdout))


def test_no_such_plan(plan: Run, fleet: PlanFleet, service: ServiceProcess) -> None:
    unknown = plan("explain", "0197a000-0000-7000-8000-000000000000")
    assert unknown.exit_code == 1
    assert "there is no such plan, or it is not stored yet" in unknown.stderr
    for text in ("17", "plan", "0197a000-0000-7000-8000-00000000000", ""):
        assert "must be the id of a decision" in said_wrong(plan("explain", text))
    made = fleet.plan(fleet.target(fleet.cold))
    stored(fleet.client, made["decision_id"])
    stranger = service.key(Scope.DECISIONS_READ, tenants=("another",))
    hidden = plan("explain", made["decision_id"], env={"NEXUSKV_KEY": stranger})
    assert "there is no such plan" in hidden.stderr
    without = plan("explain", made["decision_id"], env={"NEXUSKV_KEY": ""})
    assert (without.exit_code, "401" in without.stderr) == (1, True)


def said_wrong(result: Result) -> str:
    assert result.exit_code == 2
    return " ".join(result.stderr.replace("│", " ").split())


def test_nobody_listening() -> None:
    for arguments in (("explain", "0197a000-0000-7000-8000-000000000000"), ("make", "-")):
        result = invoke(*arguments, "--url", NOWHERE, stdin="{}")
        assert result.exit_code == 1
        assert NOWHERE in result.stderr
        assert "Traceback" not in result.output


def test_files_that_are_none(plan: Run, write: Callable[[Any], str], tmp_path: Path) -> None:
    away = tmp_path / "nowhere.json"
    big = tmp_path / "big.json"
    big.write_bytes(b" " * (8 * 1024 * 1024 + 1))
    for file, hint in (
        (str(away), "No such file"),
        (str(tmp_path), "Is a directory"),
        (write("{"), "is not JSON"),
        (write("[1]"), "is not a JSON object"),
        (write('{"deadline_us": NaN}'), "is not JSON"),
        (str(big), "has more than 8388608 bytes"),
    ):
        result = plan("make", file)
        assert (result.exit_code, result.stdout) == (1, "")
        assert hint in " ".join(result.stderr.split())


def test_refusals_are_explained(plan: Run) -> None:
    refused = plan("make", "-", stdin='{"query": {}, "targets": []}')
    assert refused.exit_code == 1
    assert "/targets" in refused.stderr
    assert "/query/tenant" in refused.stderr
    assert "400" in refused.stderr
