"""Verdicts are kept by class of state; a class must hold all that a verdict depends on."""

import pytest

from tests.fixtures.service import decisions_of
from tests.fixtures.wire import (
    TOKENS,
    error_code,
    lookup,
    matched,
    new_tenant,
    register,
    registration,
)


@pytest.mark.parametrize("bad_first", [True, False])
@pytest.mark.parametrize(
    "bad",
    [{"lineage": "unknown"}, {"reusable": False}, {"extra": {"layer_scope": "some"}}],
    ids=["lineage", "hint", "layers"],
)
def test_an_unfit_state_lends_its_verdict_to_no_other(service, bad, bad_first):
    tenant = new_tenant()
    # Evidence of its own keeps this test's classes apart from those of others.
    model = {"model_revision": tenant, "adapter_revision": None, "execution_profile": "std"}
    tokens = {"bad": [1, 2, 3], "good": [4, 5, 6]}
    with service.client() as client:
        register(
            client,
            registration(tenant, "bad", model_identity=model, tokens=tokens["bad"], **bad),
            registration(tenant, "good", model_identity=model, tokens=tokens["good"]),
        )
        answers = {
            name: matched(client, tenant, tokens=tokens[name], model_identity=model)
            for name in (("bad", "good") if bad_first else ("good", "bad"))
        }
    assert answers["bad"] is None
    assert answers["good"]["entry"]["identity"]["entry_id"] == "good"


def test_the_best_compatible_candidate_is_answered_and_the_better_ones_are_recorded(service):
    tenant = new_tenant()
    with service.client() as client:
        register(
            client,
            registration(tenant, "no-evidence", without_evidence=True, tier="device"),
            registration(tenant, "other-input", fingerprint="other", tier="device"),
            registration(tenant, "held", tokens=TOKENS[:20]),
        )
        found = matched(client, tenant)
        [decision] = decisions_of(client, 1, tenant=tenant)
        detail = client.get(f"/v1/decisions/{decision['decision_id']}").json()
    assert found["entry"]["identity"]["entry_id"] == "held"
    assert found["matched_extent"]["units"] == 20
    reasons = {item["entry_id"]: item["reason"] for item in detail["excluded"]}
    assert reasons == {"no-evidence": "evidence_missing", "other-input": "fingerprint_mismatch"}
    assert detail["match"]["candidates"] == 3


def test_a_usable_state_behind_many_unusable_ones_is_found(service):
    tenant = new_tenant()
    useless = [
        registration(tenant, f"useless-{n}", fingerprint=f"f-{n}", tier="device")
        for n in range(700)
    ]
    with service.client() as client:
        register(client, *useless)
        assert error_code(lookup(client, tenant)) == (409, "validation_evidence_mismatch")
        register(client, registration(tenant, "useful", tier="object_store"))
        found = matched(client, tenant)
    assert found["entry"]["identity"]["entry_id"] == "useful"
