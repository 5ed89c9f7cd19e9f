"""Lookup as a Locus client sees it."""

from app.policy.document import load_policy
from app.settings import DEFAULT_POLICY_FILE
from tests.fixtures.service import decisions_of
from tests.fixtures.wire import (
    INPUT_IDENTITY,
    MODEL_IDENTITY,
    TOKENS,
    error_code,
    lookup,
    matched,
    new_tenant,
    register,
    registration,
)

PARTIAL = ["full", "partial", "fallback_recompute"]


def test_exact_match_echoes_what_was_registered(service):
    tenant = new_tenant()
    with service.client() as client:
        sent = registration(tenant)
        register(client, sent)
        result = matched(client, tenant)
    assert result["classification"] == "exact"
    assert result["matched_extent"] == {"units": len(TOKENS), "granularity": "token"}
    assert result["entry"] == sent["entry"]
    assert result["compatibility"] == {
        "reusable": True,
        "fallback_to_recompute": False,
        "reason": "compatible",
    }
    handle = result["validation"].pop("source_handle")
    assert handle
    assert result["validation"] == {
        "model_identity": MODEL_IDENTITY,
        "input_semantic_identity": INPUT_IDENTITY,
    }


def test_a_longer_query_is_a_prefix_match_and_needs_no_equal_fingerprint(service):
    tenant = new_tenant()
    with service.client() as client:
        register(client, registration(tenant))
        result = matched(client, tenant, tokens=[*TOKENS, 1, 2, 3], fingerprint="another input")
    assert result["classification"] == "prefix"
    assert result["matched_extent"]["units"] == len(TOKENS)


def test_a_partial_match_needs_the_capability_and_reveals_only_matched_tokens(service):
    tenant = new_tenant()
    diverging = [*TOKENS[:21], 9, 9, 9]
    with service.client() as client:
        register(client, registration(tenant, "whole"))
        assert matched(client, tenant, tokens=diverging) is None
        register(client, registration(tenant, "sliceable", capabilities=PARTIAL))
        result = matched(client, tenant, tokens=diverging)
    assert result["classification"] == "partial"
    assert result["matched_extent"]["units"] == 21
    assert result["entry"]["identity"]["key"]["tokens"] == TOKENS[:21]


def test_units_are_tokens_floored_to_the_granularity(service):
    tenant = new_tenant()
    state = registration(
        tenant, granularity="block", block_tokens=16, capabilities=PARTIAL, tokens=list(range(64))
    )
    with service.client() as client:
        register(client, state)
        result = matched(client, tenant, tokens=[*range(50), 7, 7])
    assert result["matched_extent"] == {"units": 48, "granularity": "block"}


def test_a_checkpoint_matches_only_whole(service):
    tenant = new_tenant()
    state = registration(tenant, semantic_type="kda_checkpoint", capabilities=PARTIAL)
    with service.client() as client:
        register(client, state)
        kind = {"semantic_type": "kda_checkpoint"}
        assert matched(client, tenant, tokens=TOKENS[:30], fingerprint="x", **kind) is None
        longer = matched(client, tenant, tokens=[*TOKENS, 5], fingerprint="x", **kind)
    assert (longer["classification"], longer["matched_extent"]["units"]) == ("prefix", len(TOKENS))


def test_nothing_matches_is_null_and_so_is_an_empty_query(service):
    tenant = new_tenant()
    with service.client() as client:
        assert matched(client, tenant) is None
        register(client, registration(tenant))
        assert matched(client, tenant, tokens=[]) is None


def test_scopes_do_not_mix(service):
    tenant = new_tenant()
    with service.client() as client:
        register(client, registration(tenant))
        assert matched(client, new_tenant()) is None
        for change in (
            {"namespace": "other"},
            {"model": "other"},
            {"engine_family": "vllm"},
            {"semantic_type": "gqa_kv"},
        ):
            assert matched(client, tenant, **change) is None, change


def test_differing_evidence_is_a_conflict_only_when_every_candidate_differs(service):
    tenant = new_tenant()
    other = {**MODEL_IDENTITY, "model_revision": "rev-2"}
    with service.client() as client:
        register(client, registration(tenant, "old"))
        assert error_code(lookup(client, tenant, model_identity=other)) == (
            409,
            "validation_evidence_mismatch",
        )
        register(client, registration(tenant, "new", model_identity=other))
        result = matched(client, tenant, model_identity=other)
        assert result["entry"]["identity"]["entry_id"] == "new"
        history = decisions_of(client, 2, tenant=tenant)
    hit = next(item for item in history if item["outcome"] == "hit")
    refused = next(item for item in history if item["outcome"] == "excluded")
    assert refused["fallback_reason"] == "evidence_mismatch"
    assert refused["excluded"][0]["field"] == "model_identity.model_revision"
    version = load_policy(DEFAULT_POLICY_FILE.read_bytes()).version
    assert hit["policy_version"] == f"file:{version}"
    assert refused["match"] == {"candidates": 1, "truncated": 0, "excluded": 1}
    excluded = {item["entry_id"] for item in hit["excluded"]}
    assert excluded <= {"old"}


def test_an_exact_match_needs_the_registered_fingerprint(service):
    tenant = new_tenant()
    with service.client() as client:
        register(client, registration(tenant))
        answer = lookup(client, tenant, fingerprint="another input")
    assert error_code(answer) == (409, "validation_evidence_mismatch")
    assert "input_fingerprint" in answer.json()["error"]["message"]


def test_a_state_without_evidence_is_never_reused(service):
    tenant = new_tenant()
    with service.client() as client:
        register(client, registration(tenant, without_evidence=True))
        assert error_code(lookup(client, tenant)) == (409, "validation_evidence_missing")


def test_states_that_may_not_be_reused_are_a_miss(service):
    tenant = new_tenant()
    extras = [
        {"reusable": False},
        {"extra": {"position_convention": "invented"}},
        {"extra": {"layer_scope": "some of them"}},
        {"extra": {"parallel": {"tp": {"rank": 0, "size": 2}}}},
        {"extra": {"model_revision": "rev-other"}},
    ]
    with service.client() as client:
        for number, change in enumerate(extras):
            result = register(client, registration(tenant, f"unsafe-{number}", **change))
            assert result[0]["status"] == 201, result
        assert matched(client, tenant) is None
        register(client, registration(tenant, "safe", extra={"model_revision": "rev-1"}))
        assert matched(client, tenant)["entry"]["identity"]["entry_id"] == "safe"


def test_among_equal_extents_the_faster_tier_answers(service):
    tenant = new_tenant()
    with service.client() as client:
        for tier in ("object_store", "host_dram", "local_ssd"):
            register(client, registration(tenant, f"on-{tier}", tier=tier))
        assert matched(client, tenant)["entry"]["location"]["tier"] == "host_dram"


def test_unknown_identities_are_unsupported(service):
    tenant = new_tenant()
    with service.client() as client:
        for change in ({"engine_family": "tgi"}, {"semantic_type": "mamba_state"}):
            assert error_code(lookup(client, tenant, **change)) == (422, "unsupported_identity")


def test_decision_and_trace_travel_in_headers(service):
    tenant = new_tenant()
    traceparent = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"
    with service.client() as client:
        client.headers["traceparent"] = traceparent
        answer = lookup(client, tenant)
        decision = decisions_of(client, 1, tenant=tenant)[0]
    assert decision["decision_id"] == answer.headers["x-nexuskv-decision-id"]
    assert decision["trace_id"] == "4bf92f3577b34da6a3ce929d0e0e4736"
    assert answer.headers["traceparent"].startswith("00-4bf92f3577b34da6a3ce929d0e0e4736-")
