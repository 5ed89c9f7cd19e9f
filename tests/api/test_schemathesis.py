"""schemathesis against the whole API: coverage, fuzzing and stateful phases, every check."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.fixtures.service import ServiceProcess, decisions_of
from tests.fixtures.wire import (
    FORGETTABLE,
    FORGETTABLE_RANKS,
    KNOWN_ENGINE,
    KNOWN_STATE,
    KNOWN_TRANSFER,
    KNOWN_WORKER,
    heartbeat_body,
    lookup,
    register,
    registration,
)

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
DEADLINE_S = 150
CHECKED_CASES_AT_LEAST = 500


@pytest.mark.timeout(DEADLINE_S + 30)
def test_the_whole_api(own_service: ServiceProcess, tmp_path: Path) -> None:
    """On a service of its own: it activates policies that nobody else should meet."""
    made = make_what_is_known(own_service)
    report_path = tmp_path / "report.json"
    run = subprocess.run(
        [
            str(Path(sys.executable).with_name("schemathesis")),
            "--config-file",
            str(HERE / "schemathesis.toml"),
            "run",
            f"{own_service.url}/openapi.json",
            "--report-json-path",
            str(report_path),
        ],
        env=os.environ
        | {
            "NEXUSKV_TEST_KEY": own_service.admin_key,
            "NEXUSKV_TEST_LOOKUP": made["lookup"],
            "NEXUSKV_TEST_PLAN": made["plan"],
            "SCHEMATHESIS_HOOKS": "tests.api.schemathesis_hooks",
            "PYTHONPATH": str(ROOT),
        },
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
        check=False,
    )
    assert run.returncode == 0, run.stdout + run.stderr
    report: dict[str, Any] = json.loads(report_path.read_text())
    assert report["complete"]
    assert report["test_cases"]["generated"] >= CHECKED_CASES_AT_LEAST
    assert_every_operation_was_reached(own_service, report)
    assert "unhandled_error" not in own_service.log()


def make_what_is_known(service: ServiceProcess) -> dict[str, str]:
    """What operations need; the ids of a decision of each of these kinds."""
    transfer = KNOWN_STATE | {
        "transfer_id": KNOWN_TRANSFER,
        "action": "store",
        "target_worker": KNOWN_WORKER,
    }
    with service.client() as client:
        client.put(f"/v1/workers/{KNOWN_WORKER}", json=heartbeat_body()).raise_for_status()
        register(client, registration(**KNOWN_STATE))
        client.post("/v1/transfers", json=transfer).raise_for_status()
        client.post("/v1/engines", json=KNOWN_ENGINE).raise_for_status()
        for rank in range(FORGETTABLE_RANKS):
            engine = KNOWN_ENGINE | {"instance_id": FORGETTABLE, "dp_rank": rank}
            client.post("/v1/engines", json=engine).raise_for_status()
        lookup(client, KNOWN_STATE["tenant"]).raise_for_status()
        query = {"tenant": KNOWN_STATE["tenant"], "model": "known-model", "tokens": [1, 2, 3]}
        plan = {"query": query, "targets": [{"engine_id": "known-engine"}]}
        client.post("/v1/plans", json=plan).raise_for_status()
        return {
            kind: decisions_of(client, 1, kind=kind)[0]["decision_id"]
            for kind in ("lookup", "plan")
        }


def assert_every_operation_was_reached(service: ServiceProcess, report: dict[str, Any]) -> None:
    """A run in which every request was refused would have found nothing, too."""
    operations = report["operations"]
    assert operations["tested"] == operations["total"] == operations_in_document(service)
    # Handles are signed, so a made-up one is a conflict: the handlers below are tested elsewhere.
    signed = {"POST /locus/v1/estimate", "POST /locus/v1/materialize"}
    rates = report["valid_rates"]
    assert set(rates) >= signed
    for operation, phases in rates.items():
        reached = "conflicts" if operation in signed else "accepted"
        assert sum(phase[reached] for phase in phases.values()), operation


def operations_in_document(service: ServiceProcess) -> int:
    with service.client() as client:
        paths = client.get("/openapi.json").raise_for_status().json()["paths"]
    return sum(len(item) for item in paths.values())
