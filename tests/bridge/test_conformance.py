"""The fixture both repositories run, against a separate process started with it."""

import json
from pathlib import Path
from typing import Any

import pytest

from tests.fixtures.service import ServiceProcess

FIXTURE = (
    Path(__file__).resolve().parents[3] / "shared" / "contract" / "locus_bridge.v1.conformance.json"
)
pytestmark = pytest.mark.skipif(
    not FIXTURE.exists(), reason=f"the published conformance fixture is not at {FIXTURE}"
)


def resolved(body: dict[str, Any], answers: dict[str, Any]) -> dict[str, Any]:
    """`$lookup.a.b` stands for a value of an earlier answer."""

    def value(item: Any) -> Any:
        if not (isinstance(item, str) and item.startswith("$")):
            return item
        found: Any = answers
        for part in item[1:].split("."):
            found = found[part]
        return found

    return {name: value(item) for name, item in body.items()}


def test_conformance(database_url, tmp_path):
    fixture = json.loads(FIXTURE.read_text())
    running = ServiceProcess(database_url, tmp_path, "--fixture", str(FIXTURE)).start()
    answers: dict[str, Any] = {}
    with running.client() as client:
        for operation in ("lookup", "estimate", "materialize"):
            body = resolved(fixture["requests"][operation], answers)
            answer = client.post(f"/locus/v1/{operation}", json=body)
            assert answer.status_code == 200, answer.text
            answers[operation] = answer.json()
        health = client.get("/healthz")
    expected = fixture["expectations"]
    match = answers["lookup"]["match_result"]
    done = answers["materialize"]
    assert match["entry"]["identity"]["entry_id"] == expected["matched_state"]
    assert match["entry"] == fixture["entries"][0]["entry"]
    assert answers["estimate"]["locality"] == expected["locality"]
    assert done["receipt"]["namespace"] == expected["receipt_namespace"]
    assert done["bytes_transferred"] == expected["bytes_transferred"]
    assert done["evidence"]["level"] == expected["evidence_level"]
    assert done["evidence"]["physical_transfer_verified"] is expected["physical_transfer_verified"]
    assert health.json() == {"status": "ok", "schema_version": "locus.nexuskv-bridge.v1"}
    assert set(running.ready) == {"schema_version", "base_url", "evidence_level"}
    assert running.stop() == 0
