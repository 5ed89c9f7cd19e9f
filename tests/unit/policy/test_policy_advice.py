"""What validation remarks on, and what the shipped policies are about."""

import json
from pathlib import Path
from typing import Any

import pytest

from app.contract.enums import Disposition, TierKind, TransferBackend
from app.errors import ErrorCode, NexusError
from app.policy.advice import WarningCode, warnings
from app.policy.consistency import MAX_VALUE_CHARS
from app.policy.document import ExecutionPolicy, QuotaMode, load_policy
from app.policy.evaluate import FallbackCause, denial, fallback_disposition, may_degrade, priority

POLICIES = Path(__file__).resolve().parents[3] / "policies"
SHIPPED = ("default", "shared-fleet", "latency-first")
OFFERED = (TransferBackend.BASELINE_TRANSPORT, TransferBackend.STAGED_COPY)
NONE = {"on_cache_miss": False, "on_backend_rejection": False, "on_capability_miss": False,
        "on_policy_denial": False}  # fmt: skip


def document(**changes: Any) -> dict[str, Any]:
    """A policy about which there is nothing to remark."""
    return {
        "schema_version": "nexuskv.execution_policy.v1",
        "enabled_transfer_backends": ["rdma", "zero_copy"],
        "backend_priority_order": ["rdma", "zero_copy"],
        "allowed_source_tiers": ["host_dram"],
        "allowed_target_tiers": ["device"],
        "allowed_device_classes": ["cuda"],
        "allowed_buffer_kinds": ["device"],
        "default_fallback_behavior": "recompute",
        "recompute_fallback_policy": dict.fromkeys(NONE, True),
        "tenant_namespace_policy": {
            "mode": "disabled",
            "default_tenant": "",
            "default_namespace": "",
        },
        "quota_admission_policy": {"mode": "enforced", "max_payload_bytes": 1, "max_entries": 1},
        **changes,
    }


def remarks(**changes: Any) -> list[tuple[str, str]]:
    policy = load_policy(json.dumps(document(**changes)))
    return [(remark.pointer, remark.code.value) for remark in warnings(policy)]


def quota(mode: str, payload_bytes: int = 0, entries: int = 0, **more: int) -> dict[str, Any]:
    limits = {"mode": mode, "max_payload_bytes": payload_bytes, "max_entries": entries, **more}
    return {"quota_admission_policy": limits}


def overlay(name: str, **fields: Any) -> dict[str, Any]:
    return {"backend_overlays": {name: fields}}


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({}, []),
        ({"allowed_source_tiers": []}, [("/allowed_source_tiers", "unrestricted")]),
        (
            overlay("rdma", allowed_materialization_capabilities=[]),
            [("/backend_overlays/rdma/allowed_materialization_capabilities", "unrestricted")],
        ),
        (
            overlay("rdma", enabled=False),
            [("/enabled_transfer_backends/0", "backend_without_effect")],
        ),
        (
            {"backend_overlays": {"rdma": {"enabled": False}, "zero_copy": {"enabled": False}}},
            [
                ("/enabled_transfer_backends/0", "backend_without_effect"),
                ("/enabled_transfer_backends/1", "backend_without_effect"),
                ("/enabled_transfer_backends", "no_backend_left"),
            ],
        ),
        (overlay("staged_copy", priority_override=0),
         [("/backend_overlays/staged_copy", "overlay_without_effect")]),
        (overlay("a/b", enabled=True), [("/backend_overlays/a~1b", "overlay_without_effect")]),
        (overlay("rdma"), [("/backend_overlays/rdma", "overlay_without_effect")]),
        (
            overlay("rdma", allow_degraded_selection=True),
            [("/backend_overlays/rdma/allow_degraded_selection", "overlay_without_effect")],
        ),
        (
            {"default_fallback_behavior": "degrade"} | overlay("rdma",
                                                               allow_degraded_selection=True),
            [],
        ),
        ({"recompute_fallback_policy": NONE}, [("/recompute_fallback_policy", "no_fallback_path")]),
        ({"recompute_fallback_policy": NONE, "default_fallback_behavior": "degrade"}, []),
        (
            {"recompute_fallback_policy": dict.fromkeys(NONE, True) | {"on_cache_miss": False}},
            [("/recompute_fallback_policy/on_cache_miss", "behavior_overruled")],
        ),
        (
            {"default_fallback_behavior": "skip",
             "recompute_fallback_policy": NONE | {"on_cache_miss": True}},
            [("/recompute_fallback_policy/on_cache_miss", "behavior_overruled")],
        ),
        (quota("enforced"), [("/quota_admission_policy/mode", "quota_without_limit")]),
        (quota("enforced", entries=3), []),
        (quota("disabled"), []),
        (quota("advisory"), []),
        (quota("disabled", max_concurrent_transfers=1),
         [("/quota_admission_policy/mode", "quota_without_effect")]),
        (quota("advisory", max_pinned_dram_bytes=1),
         [("/quota_admission_policy/max_pinned_dram_bytes", "quota_without_effect")]),
    ],
)  # fmt: skip
def test_remarks(changes: dict[str, Any], expected: list[tuple[str, str]]) -> None:
    assert remarks(**changes) == expected


def test_a_wrong_document_hears_of_everything_at_once() -> None:
    wrong = document(
        allowed_source_tiers=["device", "tape", "device"],
        backend_priority_order=["zero_copy"],
        default_fallback_behavior="x" * 1000,
        surprise={"a": 1},
    )
    del wrong["tenant_namespace_policy"]
    with pytest.raises(NexusError) as caught:
        load_policy(json.dumps(wrong))
    found = {finding.pointer: finding for finding in caught.value.errors}
    assert {pointer: finding.code for pointer, finding in found.items()} == {
        "/allowed_source_tiers/1": ErrorCode.INVALID_FIELD,
        "/allowed_source_tiers/2": ErrorCode.INVALID_FIELD,
        "/backend_priority_order": ErrorCode.INVALID_FIELD,
        "/default_fallback_behavior": ErrorCode.INVALID_FIELD,
        "/surprise": ErrorCode.UNKNOWN_FIELD,
        "/tenant_namespace_policy": ErrorCode.MISSING_FIELD,
    }
    tier = found["/allowed_source_tiers/1"]
    assert tier.value == '"tape"'
    assert set(tier.allowed) == {tier.value for tier in TierKind}
    assert found["/surprise"].value == '{"a": 1}'
    assert found["/tenant_namespace_policy"].value is None
    assert len(str(found["/default_fallback_behavior"].value)) == MAX_VALUE_CHARS


def test_findings_are_bounded() -> None:
    many = {f"field-{number}": number for number in range(500)}
    with pytest.raises(NexusError) as caught:
        load_policy(json.dumps(document(**many)))
    assert len(caught.value.errors) == 100


def shipped(name: str) -> ExecutionPolicy:
    return load_policy((POLICIES / f"{name}.yaml").read_bytes())


@pytest.mark.parametrize("name", SHIPPED)
def test_shipped_policies_say_nothing_they_do_not_mean(name: str) -> None:
    remarked = {remark.code for remark in warnings(shipped(name))}
    assert remarked <= {WarningCode.UNRESTRICTED}
    assert (POLICIES / f"{name}.yaml").read_text().startswith("# ")


def outcome(name: str, tier: TierKind) -> tuple[list[str], str]:
    """Which of the offered backends may move a state of this tier, best first; else what then."""
    policy = shipped(name)
    allowed = [
        backend
        for backend in OFFERED
        if denial(policy, backend, source_tier=tier, target_tier=TierKind.DEVICE) is None
    ]
    ranked = sorted(allowed, key=lambda backend: priority(policy, backend))
    return [backend.value for backend in ranked], fallback_disposition(
        policy, FallbackCause.POLICY_DENIAL
    ).value


def test_the_three_decide_differently() -> None:
    both = ["baseline_transport", "staged_copy"]
    assert outcome("default", TierKind.LOCAL_SSD) == (both, "recompute")
    assert outcome("shared-fleet", TierKind.LOCAL_SSD) == (["staged_copy"], "recompute")
    assert outcome("latency-first", TierKind.LOCAL_SSD) == ([], "skip")
    assert outcome("shared-fleet", TierKind.DEVICE) == ([], "recompute")
    assert outcome("latency-first", TierKind.DEVICE) == (both, "skip")
    modes = [shipped(name).quota_admission_policy.mode for name in SHIPPED]
    assert modes == [QuotaMode.DISABLED, QuotaMode.ENFORCED, QuotaMode.ADVISORY]


def test_latency_first_degrades_to_one_backend_only() -> None:
    policy = shipped("latency-first")
    assert min(TransferBackend, key=lambda one: priority(policy, one)) is TransferBackend.ZERO_COPY
    degradable = {backend for backend in TransferBackend if may_degrade(policy, backend)}
    assert TransferBackend.BASELINE_TRANSPORT in degradable
    assert TransferBackend.STAGED_COPY not in degradable
    assert not any(may_degrade(shipped("shared-fleet"), one) for one in TransferBackend)
    assert fallback_disposition(policy, FallbackCause.CACHE_MISS) is Disposition.RECOMPUTE
