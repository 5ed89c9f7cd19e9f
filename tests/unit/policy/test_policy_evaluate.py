"""What a policy allows, against a naive reading of the contract; and what it costs to ask."""

import json
import time
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from app.contract.enums import (
    BufferKind,
    DeviceClass,
    Disposition,
    MaterializationCapability,
    TierKind,
    TransferBackend,
)
from app.policy.document import ExecutionPolicy, PolicyDeviceClass, load_policy
from app.policy.evaluate import (
    UNRANKED,
    DenialReason,
    FallbackCause,
    PolicyDenial,
    denial,
    fallback_disposition,
    may_degrade,
    priority,
)

LISTS: dict[str, type] = {
    "allowed_source_tiers": TierKind,
    "allowed_target_tiers": TierKind,
    "allowed_device_classes": PolicyDeviceClass,
    "allowed_buffer_kinds": BufferKind,
}
OVERLAY_LISTS = LISTS | {"allowed_materialization_capabilities": MaterializationCapability}
# What a question calls each dimension, and every value it can have.
QUESTION: dict[str, tuple[str, type]] = {
    "source_tier": ("allowed_source_tiers", TierKind),
    "target_tier": ("allowed_target_tiers", TierKind),
    "device_class": ("allowed_device_classes", DeviceClass),
    "buffer_kind": ("allowed_buffer_kinds", BufferKind),
    "capability": ("allowed_materialization_capabilities", MaterializationCapability),
}


def some(kind: type, least: int = 0) -> st.SearchStrategy[list[str]]:
    return st.lists(st.sampled_from([item.value for item in kind]), unique=True, min_size=least)


@st.composite
def overlays(draw: st.DrawFn) -> dict[str, Any]:
    fields: dict[str, st.SearchStrategy[Any]] = {
        "enabled": st.booleans(),
        "priority_override": st.integers(0, 5),
        "allow_degraded_selection": st.booleans(),
        **{field: some(kind) for field, kind in OVERLAY_LISTS.items()},
    }
    return draw(st.fixed_dictionaries({}, optional=fields))


@st.composite
def documents(draw: st.DrawFn) -> dict[str, Any]:
    enabled = draw(some(TransferBackend, least=1))
    names = st.sampled_from([*(item.value for item in TransferBackend), "nonsense"])
    flags = ("on_cache_miss", "on_backend_rejection", "on_capability_miss", "on_policy_denial")
    return {
        "schema_version": "nexuskv.execution_policy.v1",
        "enabled_transfer_backends": enabled,
        "backend_priority_order": draw(st.permutations(enabled)),
        **{field: draw(some(kind)) for field, kind in LISTS.items()},
        "default_fallback_behavior": draw(st.sampled_from(["degrade", "recompute", "skip"])),
        "recompute_fallback_policy": {flag: draw(st.booleans()) for flag in flags},
        "tenant_namespace_policy": {
            "mode": "disabled",
            "default_tenant": "",
            "default_namespace": "",
        },
        "quota_admission_policy": {"mode": "disabled", "max_payload_bytes": 0, "max_entries": 0},
        "backend_overlays": draw(st.dictionaries(names, overlays(), max_size=4)),
    }


def questions() -> st.SearchStrategy[dict[str, Any]]:
    return st.fixed_dictionaries(
        {name: st.none() | st.sampled_from(kind) for name, (_, kind) in QUESTION.items()}
    )


def naive_reasons(document: dict[str, Any], backend: str, question: dict[str, Any]) -> set[str]:
    """Every reason to refuse, read off the document each time."""
    if backend not in document["enabled_transfer_backends"]:
        return {"backend_not_enabled"}
    overlay = document["backend_overlays"].get(backend, {})
    if overlay.get("enabled") is False:
        return {"backend_disabled"}
    found = set()
    for name, (field, _) in QUESTION.items():
        value = question[name]
        if value is None:
            continue
        if name == "device_class" and value not in {"cpu", "cuda", "rocm", "tpu"}:
            value = "other"
        allowed = overlay[field] if field in overlay else document.get(field, [])
        if allowed != [] and value not in allowed:
            found.add(f"{name}_not_allowed")
    return found


@settings(deadline=None, max_examples=400)
@given(documents(), questions())
def test_denials_are_those_of_the_contract(
    document: dict[str, Any], question: dict[str, Any]
) -> None:
    policy = load_policy(json.dumps(document))
    for backend in TransferBackend:
        reasons = naive_reasons(document, backend, question)
        found = denial(policy, backend, **question)
        assert (found is None) == (not reasons)
        if found is not None:
            assert found.reason in reasons
            assert found.backend is backend
            assert_the_rule_is_there(document, found)


def assert_the_rule_is_there(document: dict[str, Any], found: PolicyDenial) -> None:
    rule: Any = document
    for step in found.pointer.strip("/").split("/"):
        rule = rule[step]
    if found.reason is DenialReason.BACKEND_DISABLED:
        assert rule is False
    else:
        assert found.value not in rule


@settings(deadline=None, max_examples=200)
@given(documents())
def test_order_degradation_and_fallback_are_those_of_the_contract(document: dict[str, Any]) -> None:
    policy = load_policy(json.dumps(document))
    order = document["backend_priority_order"]
    for backend in TransferBackend:
        overlay = document["backend_overlays"].get(backend.value, {})
        place = order.index(backend) if backend in order else UNRANKED
        assert priority(policy, backend) == overlay.get("priority_override", place)
        assert may_degrade(policy, backend) == (
            document["default_fallback_behavior"] == "degrade"
            and overlay.get("allow_degraded_selection") is not False
        )
    for cause in FallbackCause:
        recomputes = document["recompute_fallback_policy"][f"on_{cause.value}"]
        expected = Disposition.RECOMPUTE if recomputes else Disposition.SKIP
        assert fallback_disposition(policy, cause) is expected


def restricted() -> ExecutionPolicy:
    lists = {field: [kind("cpu") if field == "allowed_device_classes" else next(iter(kind))]
             for field, kind in LISTS.items()}  # fmt: skip
    return load_policy(
        json.dumps(
            {
                "schema_version": "nexuskv.execution_policy.v1",
                "enabled_transfer_backends": ["baseline_transport"],
                "backend_priority_order": ["baseline_transport"],
                **lists,
                "default_fallback_behavior": "recompute",
                "recompute_fallback_policy": {
                    "on_cache_miss": True,
                    "on_backend_rejection": True,
                    "on_capability_miss": True,
                    "on_policy_denial": True,
                },
                "tenant_namespace_policy": {
                    "mode": "disabled",
                    "default_tenant": "",
                    "default_namespace": "",
                },
                "quota_admission_policy": {
                    "mode": "disabled",
                    "max_payload_bytes": 0,
                    "max_entries": 0,
                },
            }
        )
    )


def test_questions_do_not_change_a_policy() -> None:
    asked, fresh = restricted(), restricted()
    assert denial(asked, TransferBackend.RDMA) is not None
    assert asked == fresh
    assert asked.content_sha256 == fresh.content_sha256


@pytest.mark.parametrize("source_tier", [TierKind.DEVICE, TierKind.OBJECT_STORE])
def test_a_question_costs_microseconds(source_tier: TierKind) -> None:
    policy = restricted()

    def ask() -> None:
        denial(
            policy,
            TransferBackend.BASELINE_TRANSPORT,
            source_tier=source_tier,
            target_tier=TierKind.DEVICE,
            device_class=DeviceClass.CPU,
            buffer_kind=BufferKind.DEVICE,
            capability=MaterializationCapability.FULL,
        )

    def cost_us() -> float:
        started = time.process_time_ns()
        for _ in range(2000):
            ask()
        return (time.process_time_ns() - started) / 2_000_000

    ask()
    assert min(cost_us() for _ in range(5)) < 5
