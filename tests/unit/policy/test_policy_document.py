"""The execution policy: structure, consistency, identity, and tenant defaults."""

import copy
import json
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from app.errors import ErrorCode, NexusError
from app.policy.document import (
    ExecutionPolicy,
    advisory_mismatches,
    canonical_bytes,
    load_policy,
    resolve_namespace,
    resolve_tenant,
)

ROOT = Path(__file__).resolve().parents[3]
DEFAULT = ROOT / "policies" / "default.yaml"
PUBLISHED = ROOT.parent / "shared" / "contract" / "execution_policy.v1.schema.json"


def published_validator() -> jsonschema.Draft202012Validator:
    if not PUBLISHED.exists():
        pytest.skip("the published execution policy schema is not at hand")
    return jsonschema.Draft202012Validator(json.loads(PUBLISHED.read_text()))


def document(**changes: Any) -> dict[str, Any]:
    """A policy that uses every field."""
    return {
        "schema_version": "nexuskv.execution_policy.v1",
        "enabled_transfer_backends": ["rdma", "baseline_transport"],
        "backend_priority_order": ["rdma", "baseline_transport"],
        "allowed_source_tiers": ["host_dram", "local_ssd"],
        "allowed_target_tiers": ["device"],
        "allowed_device_classes": ["cuda", "other"],
        "allowed_buffer_kinds": [],
        "default_fallback_behavior": "recompute",
        "recompute_fallback_policy": {
            "on_cache_miss": True,
            "on_backend_rejection": True,
            "on_capability_miss": False,
            "on_policy_denial": True,
        },
        "tenant_namespace_policy": {
            "mode": "advisory",
            "default_tenant": "acme",
            "default_namespace": "chat",
        },
        "quota_admission_policy": {
            "mode": "enforced",
            "max_payload_bytes": 2**40,
            "max_entries": 10,
            "max_concurrent_transfers": 4,
            "max_pinned_dram_bytes": 2**30,
        },
        "backend_overlays": {
            "rdma": {
                "enabled": True,
                "priority_override": 0,
                "allowed_source_tiers": ["host_dram"],
                "allowed_target_tiers": [],
                "allowed_device_classes": ["cuda"],
                "allowed_buffer_kinds": ["host_pinned"],
                "allowed_materialization_capabilities": ["full"],
                "allow_degraded_selection": False,
            }
        },
        **changes,
    }


def load(value: Any) -> ExecutionPolicy:
    return load_policy(json.dumps(value))


def findings(value: Any) -> dict[str, ErrorCode]:
    with pytest.raises(NexusError) as caught:
        load(value)
    return {finding.pointer: finding.code for finding in caught.value.errors}


def test_the_default_policy_is_valid_and_never_denies() -> None:
    policy = load_policy(DEFAULT.read_bytes())
    assert set(policy.backend_priority_order) == set(policy.enabled_transfer_backends)
    assert policy.quota_admission_policy.mode == "disabled"
    assert not policy.allowed_source_tiers


def test_the_published_schema_accepts_our_policies() -> None:
    published_validator().validate(document())
    published_validator().validate(yaml.safe_load(DEFAULT.read_text()))


def test_a_whole_policy_round_trips() -> None:
    policy = load(document())
    assert json.loads(canonical_bytes(policy)) == document()
    assert load_policy(canonical_bytes(policy)) == policy


def test_equal_content_has_an_equal_version_however_written() -> None:
    reordered = dict(reversed(list(document().items())))
    texts = [
        json.dumps(document()),
        json.dumps(reordered, indent=2),
        yaml.safe_dump(document()),
        "# a comment\n" + yaml.safe_dump(document(), default_flow_style=True),
        "\ufeff" + json.dumps(document()),
    ]
    versions = {load_policy(text).version for text in texts}
    assert len(versions) == 1
    (version,) = versions
    assert version.startswith("sha256:")
    assert load(document()).content_sha256.startswith(version.removeprefix("sha256:"))


def test_another_order_of_backends_is_another_version() -> None:
    other = document(backend_priority_order=["baseline_transport", "rdma"])
    assert load(other).version != load(document()).version


def places(value: Any, at: str = "") -> list[tuple[str, Any]]:
    found = [(at, value)] if at else []
    if isinstance(value, dict):
        for key, item in value.items():
            found += places(item, f"{at}/{key}")
    return found


def changed(at: str, value: Any, *, drop: bool = False) -> dict[str, Any]:
    whole = copy.deepcopy(document())
    holder: Any = whole
    *steps, last = at.strip("/").split("/")
    for step in steps:
        holder = holder[step]
    if drop:
        del holder[last]
    else:
        holder[last] = value
    return whole


PLACES = places(document())
OPTIONAL = ("max_concurrent_transfers", "max_pinned_dram_bytes", "backend_overlays")


@pytest.mark.parametrize("at", [at for at, _ in PLACES])
def test_a_dropped_field_is_named(at: str) -> None:
    if "/backend_overlays" in at or at.endswith(OPTIONAL):
        assert load(changed(at, None, drop=True)).version != load(document()).version
    else:
        assert findings(changed(at, None, drop=True)) == {at: ErrorCode.MISSING_FIELD}


WRONG: list[Any] = [None, "nonsense", 1.5, -1, {"nonsense": 1}, [["x"]]]
FREE_TEXT = ("/default_tenant", "/default_namespace")


@pytest.mark.parametrize("wrong", WRONG, ids=repr)
def test_a_wrong_value_is_named(wrong: Any) -> None:
    for at, _ in PLACES:
        if isinstance(wrong, str) and at.endswith(FREE_TEXT):
            assert load(changed(at, wrong))
        else:
            found = findings(changed(at, wrong))
            assert found
            assert all(pointer.startswith(at) for pointer in found)


def test_the_published_schema_accepts_and_refuses_the_same() -> None:
    validator = published_validator()
    for at, _ in PLACES:
        for wrong in WRONG:
            accepted = isinstance(wrong, str) and at.endswith(FREE_TEXT)
            assert validator.is_valid(changed(at, wrong)) == accepted
        dropped = changed(at, None, drop=True)
        optional = "/backend_overlays" in at or at.endswith(OPTIONAL)
        assert validator.is_valid(dropped) == optional


def test_an_unknown_field_is_named_in_every_object() -> None:
    for at, value in [*PLACES, ("", document())]:
        if isinstance(value, dict) and at != "/backend_overlays":
            whole = changed(f"{at}/surprise", 1)
            assert findings(whole) == {f"{at}/surprise": ErrorCode.UNKNOWN_FIELD}


def test_repeated_values_are_named() -> None:
    whole = document(allowed_source_tiers=["device", "host_dram", "device"])
    whole["backend_overlays"]["rdma"]["allowed_buffer_kinds"] = ["device", "device"]
    assert set(findings(whole)) == {
        "/allowed_source_tiers/2",
        "/backend_overlays/rdma/allowed_buffer_kinds/1",
    }


@pytest.mark.parametrize(
    ("enabled", "order", "pointer"),
    [
        (["rdma"], ["rdma", "zero_copy"], "/backend_priority_order/1"),
        (["rdma", "zero_copy"], ["rdma"], "/backend_priority_order"),
        ([], ["rdma"], "/enabled_transfer_backends"),
        (["rdma"], [], "/backend_priority_order"),
        (["rdma"], ["rdma", "rdma"], "/backend_priority_order/1"),
    ],
)
def test_the_order_holds_exactly_the_enabled_backends(
    enabled: list[str], order: list[str], pointer: str
) -> None:
    whole = document(enabled_transfer_backends=enabled, backend_priority_order=order)
    assert pointer in findings(whole)


@pytest.mark.parametrize(
    ("enabled", "order", "expected"),
    [
        # What is no backend hides nothing that follows from those that are.
        (["rdma", "pigeon"], ["zero_copy", "rdma"], {"enabled/1", "order/0"}),
        (["rdma", "zero_copy"], ["rdma", "pigeon"], {"order/1", "order"}),
        (["rdma", "pigeon"], ["rdma", "pigeon"], {"enabled/1", "order/1"}),
        (["rdma", "rdma"], ["zero_copy"], {"enabled/1", "order/0", "order"}),
        (["rdma", 7, None], ["rdma", ["x"], "zero_copy"],
         {"enabled/1", "enabled/2", "order/1", "order/2"}),
        # Without a single backend nothing follows.
        (["pigeon"], ["rdma"], {"enabled/0"}),
        ("rdma", ["rdma", "rdma"], {"enabled", "order/1"}),
        (["rdma"], {"rdma": 1}, {"order"}),
    ],
)  # fmt: skip
def test_what_is_malformed_hides_no_inconsistency(
    enabled: Any, order: Any, expected: set[str]
) -> None:
    names = {"enabled": "enabled_transfer_backends", "order": "backend_priority_order"}
    whole = document(enabled_transfer_backends=enabled, backend_priority_order=order)
    pointers = {pointer.strip("/") for pointer in findings(whole)}
    assert pointers == {
        "/".join([names[found.partition("/")[0]], *found.split("/")[1:]]) for found in expected
    }


LISTS = ("enabled_transfer_backends", "backend_priority_order", "allowed_source_tiers",
         "allowed_target_tiers", "allowed_device_classes", "allowed_buffer_kinds")  # fmt: skip
OVERLAY_LISTS = (*LISTS[2:], "allowed_materialization_capabilities")
SCALARS = [at for at, value in PLACES if not isinstance(value, dict | list)]
PLACES_OF_LISTS = [f"/{name}" for name in LISTS] + [
    f"/backend_overlays/rdma/{name}" for name in OVERLAY_LISTS
]
NOT_ENABLED, NOT_ORDERED = "staged_copy", "zero_copy"


def at_place(whole: dict[str, Any], at: str) -> tuple[Any, str]:
    holder: Any = whole
    *steps, last = at.strip("/").split("/")
    for step in steps:
        holder = holder[step]
    return holder, last


def plant(whole: dict[str, Any], error: tuple[str, str]) -> str:
    """Puts one error in; the pointer that has to be reported for it."""
    kind, at = error
    holder, last = at_place(whole, at)
    if kind == "surprise":
        holder[last]["surprise"] = 1
        return f"{at}/surprise"
    if kind == "wrong":
        holder[last] = 1.5
    elif kind == "not_ordered":
        holder[last].append(NOT_ORDERED)
        return "/backend_priority_order"
    else:
        item = {"unknown": "pigeon", "foreign": 7, "not_enabled": NOT_ENABLED}
        holder[last].append(item[kind] if kind in item else holder[last][0])
        return f"{at}/{len(holder[last]) - 1}"
    return at


ERRORS = st.sampled_from(
    [(kind, at) for at in PLACES_OF_LISTS for kind in ("unknown", "foreign", "repeated")]
    + [("wrong", at) for at in SCALARS]
    + [("surprise", at) for at in ("/recompute_fallback_policy", "/tenant_namespace_policy",
                                   "/quota_admission_policy", "/backend_overlays/rdma")]
    + [("not_enabled", "/backend_priority_order"), ("not_ordered", "/enabled_transfer_backends")]
)  # fmt: skip


@settings(deadline=None, max_examples=200)
@given(st.lists(ERRORS, min_size=1, max_size=30, unique=True))
def test_every_one_of_many_errors_is_reported(errors: list[tuple[str, str]]) -> None:
    """However many there are, in whatever order they were made: each pointer, and no other."""
    whole = document(
        enabled_transfer_backends=["rdma", "baseline_transport"],
        backend_priority_order=["baseline_transport", "rdma"],
        allowed_buffer_kinds=["device"],
    )
    whole["backend_overlays"]["rdma"]["allowed_target_tiers"] = ["device"]
    planted = {plant(whole, error) for error in errors}
    assert set(findings(whole)) == planted


def tenancy(mode: str, tenant: str, namespace: str) -> ExecutionPolicy:
    policy = {"mode": mode, "default_tenant": tenant, "default_namespace": namespace}
    return load(document(tenant_namespace_policy=policy))


@pytest.mark.parametrize("mode", ["disabled", "advisory"])
def test_defaults_apply_where_a_call_names_none(mode: str) -> None:
    policy = tenancy(mode, "acme", "chat")
    assert (resolve_tenant(policy, None), resolve_namespace(policy, None)) == ("acme", "chat")
    assert (resolve_tenant(policy, "b"), resolve_namespace(policy, "c")) == ("b", "c")
    none = tenancy(mode, "", "")
    assert (resolve_tenant(none, None), resolve_namespace(none, None)) == (None, None)


@pytest.mark.parametrize(
    ("mode", "tenant", "namespace", "expected"),
    [
        ("advisory", "acme", "chat", ()),
        ("advisory", "other", "chat", ("tenant",)),
        ("advisory", "acme", "other", ("namespace",)),
        ("advisory", "x", "y", ("tenant", "namespace")),
        ("disabled", "x", "y", ()),
    ],
)
def test_advisory_mode_names_what_differs(
    mode: str, tenant: str, namespace: str, expected: tuple[str, ...]
) -> None:
    assert advisory_mismatches(tenancy(mode, "acme", "chat"), tenant, namespace) == expected


def test_an_empty_default_expects_nothing() -> None:
    assert advisory_mismatches(tenancy("advisory", "", ""), "x", "y") == ()


@settings(deadline=None)
@given(st.integers(0, 2**63 - 1))
def test_limits_are_kept_to_the_unit(limit: int) -> None:
    quota = document()["quota_admission_policy"] | {"max_payload_bytes": limit}
    policy = load(document(quota_admission_policy=quota))
    assert policy.quota_admission_policy.max_payload_bytes == limit
