"""Advisory tenancy records who strays from the policy's names, and denies nobody."""

import json

import pytest

from app.settings import DEFAULT_POLICY_FILE
from tests.fixtures.wire import registration
from tests.lifecycle.in_process import running

DISABLED = "mode: disabled\n  default_tenant: default\n  default_namespace: default\n"


@pytest.fixture
def advisory_policy(tmp_path):
    text = DEFAULT_POLICY_FILE.read_text(encoding="utf-8")
    assert DISABLED in text
    advisory = DISABLED.replace("disabled", "advisory").replace(": default", ": acme", 1)
    policy = tmp_path / "policy.yaml"
    policy.write_text(text.replace(DISABLED, advisory), encoding="utf-8")
    return policy


async def advised(process, tenant, namespace):
    """The mismatches in the record of a lookup that hits."""
    await process.register(tenant, f"{tenant}-{namespace}", namespace=namespace)
    answer = await process.lookup(tenant, namespace=namespace)
    assert answer.json()["match_result"] is not None
    detail = await _detail(process, answer.headers["x-nexuskv-decision-id"])
    return detail["inputs"]["advisory"]


async def _detail(process, decision_id):
    await process.decisions()
    return (await process.client.get(f"/v1/decisions/{decision_id}")).json()


async def test_other_names_are_recorded_and_served(database_url, advisory_policy):
    async with running(database_url, policy_file=advisory_policy) as process:
        assert await advised(process, "acme", "default") == []
        assert await advised(process, "acme", "space") == ["namespace"]
        assert await advised(process, "other", "default") == ["tenant"]
        assert await advised(process, "other", "space") == ["tenant", "namespace"]


async def test_a_stranger_goes_on_to_estimate_and_materialize(database_url, advisory_policy):
    async with running(database_url, policy_file=advisory_policy) as process:
        assert (await process.register("other"))["status"] == 201
        assert (await process.materialize(await process.option("other"))).status_code == 200


async def test_advisory_names_complete_what_a_registration_leaves_out(
    database_url, advisory_policy
):
    async with running(database_url, policy_file=advisory_policy) as process:
        entry = json.loads(json.dumps(registration("unnamed")))
        for key in (entry["reuse_key"]["identity"], entry["entry"]["identity"]["key"]):
            del key["tenant"]
        answer = await process.post("/v1/states", {"entries": [entry]})
        assert answer.json()["results"][0]["tenant"] == "acme"


async def test_the_default_policy_records_nothing(process):
    assert await advised(process, "other", "space") == []
