"""The choice of a backend against a plain reading of its rules."""

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from app.contract.descriptor import AttentionStateDescriptor, TransferPath
from app.contract.enums import (
    BufferKind,
    DeviceClass,
    Disposition,
    FallbackReason,
    MaterializationCapability,
    TierKind,
    TransferBackend,
)
from app.contract.payload import PayloadLocation
from app.contract.registration import parse_registration
from app.execution.catalog import BackendRegistration, NoSelection, Order, Selection, select
from app.policy.document import load_policy
from app.settings import DEFAULT_POLICY_FILE
from tests.fixtures.wire import registration

B, T, D, C = TransferBackend, TierKind, Disposition, MaterializationCapability
BASE = msgspec.to_builtins(load_policy(DEFAULT_POLICY_FILE.read_bytes()))
DESCRIPTOR = parse_registration(registration("t")).entry.descriptor
TARGET = PayloadLocation("sink", T.HOST_DRAM, BufferKind.HOST_PAGEABLE, DeviceClass.CPU)


def policy(**changes):
    order = changes.pop("order", ["baseline_transport", "staged_copy"])
    merged = BASE | {"enabled_transfer_backends": order, "backend_priority_order": order}
    return load_policy(msgspec.json.encode(merged | changes))


def descriptor(capabilities=(), paths=()) -> AttentionStateDescriptor:
    return msgspec.structs.replace(
        DESCRIPTOR,
        transfer_paths=tuple(TransferPath(path, ()) for path in paths),
        materialization=msgspec.structs.replace(
            DESCRIPTOR.materialization, capabilities=tuple(capabilities)
        ),
    )


def offer(backend, **changes):
    return BackendRegistration(
        name=f"w/{backend}", backend=backend, actions=frozenset(D), **changes
    )


def order(**changes):
    fields = {
        "action": D.MATERIALIZE,
        "source_tier": T.HOST_DRAM,
        "target": TARGET,
        "descriptor": descriptor(),
        "capability": C.FULL,
    }
    return Order(**(fields | changes))


def chosen(registrations, order_, policy_):
    found = select(registrations, order_, policy_)
    if isinstance(found, NoSelection):
        return (found.reason, found.disposition)
    return (found.registration.backend, found.degraded_from)


BOTH = [offer(B.STAGED_COPY), offer(B.BASELINE_TRANSPORT)]


def test_the_policys_order_and_an_overlays_override_decide():
    assert chosen(BOTH, order(), policy()) == (B.BASELINE_TRANSPORT, None)
    reverse = policy(order=["staged_copy", "baseline_transport"])
    assert chosen(BOTH, order(), reverse) == (B.STAGED_COPY, None)
    override = policy(backend_overlays={"baseline_transport": {"priority_override": 7}})
    assert chosen(BOTH, order(), override) == (B.STAGED_COPY, None)


def test_a_lesser_backend_only_where_the_policy_degrades():
    away = [offer(B.STAGED_COPY), offer(B.BASELINE_TRANSPORT, available=False)]
    assert chosen(away, order(), policy()) == (B.STAGED_COPY, B.BASELINE_TRANSPORT)
    unavailable = FallbackReason.PREFERRED_BACKEND_UNAVAILABLE
    strict = policy(default_fallback_behavior="recompute")
    assert chosen(away, order(), strict) == (unavailable, D.RECOMPUTE)
    forbidden = policy(backend_overlays={"staged_copy": {"allow_degraded_selection": False}})
    assert chosen(away, order(), forbidden) == (unavailable, D.RECOMPUTE)
    wanted = order(preferred=B.STAGED_COPY)
    assert chosen(BOTH, wanted, policy()) == (B.STAGED_COPY, None)
    assert chosen(BOTH, order(preferred=B.RDMA), policy()) == (B.BASELINE_TRANSPORT, B.RDMA)


def test_why_nothing_may_act_and_what_to_do_instead():
    denied = policy(allowed_source_tiers=["local_ssd"])
    assert chosen(BOTH, order(), denied) == (FallbackReason.ENGINE_POLICY, D.RECOMPUTE)
    skips = BASE["recompute_fallback_policy"] | {"on_policy_denial": False}
    skipping = policy(allowed_source_tiers=["local_ssd"], recompute_fallback_policy=skips)
    assert chosen(BOTH, order(), skipping) == (FallbackReason.ENGINE_POLICY, D.SKIP)
    cannot = order(descriptor=descriptor(capabilities=[C.PARTIAL]))
    assert chosen(BOTH, cannot, policy()) == (FallbackReason.UNSUPPORTED_CAPABILITY, D.SKIP)
    no_path = order(descriptor=descriptor(paths=[B.RDMA]))
    assert chosen(BOTH, no_path, policy()) == (FallbackReason.NO_TRANSFER_PATH, D.RECOMPUTE)
    assert chosen([], order(), policy()) == (FallbackReason.NO_TRANSFER_PATH, D.RECOMPUTE)
    # Recomputing needs the state's own capability, whatever the policy wants.
    fixed = order(descriptor=descriptor(capabilities=[C.FULL]))
    assert chosen(BOTH, fixed, denied) == (FallbackReason.ENGINE_POLICY, D.SKIP)


subset = st.frozensets
offers = st.builds(
    offer,
    st.sampled_from(B),
    source_tiers=subset(st.sampled_from([T.HOST_DRAM, T.LOCAL_SSD]), max_size=2),
    device_classes=subset(st.sampled_from([DeviceClass.CPU, DeviceClass.CUDA]), max_size=2),
    available=st.booleans(),
)
policies = st.builds(
    policy,
    order=st.permutations([b.value for b in B]).map(lambda all_: all_[:3]),
    default_fallback_behavior=st.sampled_from(["degrade", "recompute", "skip"]),
    allowed_source_tiers=st.sampled_from([[], ["host_dram"], ["local_ssd"]]),
    backend_overlays=st.dictionaries(
        st.sampled_from([b.value for b in B]),
        st.fixed_dictionaries(
            {},
            optional={
                "enabled": st.booleans(),
                "priority_override": st.integers(0, 3),
                "allow_degraded_selection": st.booleans(),
                "allowed_source_tiers": st.sampled_from([[], ["host_dram"]]),
            },
        ),
    ),
)


def admits(policy_, backend, tier):
    overlay = policy_.backend_overlays.get(backend.value)
    tiers = policy_.allowed_source_tiers
    if overlay is not None:
        if overlay.enabled is False:
            return False
        if overlay.allowed_source_tiers is not msgspec.UNSET:
            tiers = overlay.allowed_source_tiers
    return backend in policy_.enabled_transfer_backends and (not tiers or tier in tiers)


def rank(policy_, backend):
    overlay = policy_.backend_overlays.get(backend.value)
    if overlay is not None and overlay.priority_override is not msgspec.UNSET:
        return overlay.priority_override
    return policy_.backend_priority_order.index(backend)


def degradable(policy_, backend):
    overlay = policy_.backend_overlays.get(backend.value)
    forbidden = overlay is not None and overlay.allow_degraded_selection is False
    return policy_.default_fallback_behavior == "degrade" and not forbidden


@given(st.lists(offers, max_size=5), policies, st.none() | st.sampled_from(B))
def test_the_choice_is_that_of_the_rules_read_one_by_one(registrations, policy_, preferred):
    able = [
        one
        for one in registrations
        if (not one.source_tiers or T.HOST_DRAM in one.source_tiers)
        and (not one.device_classes or DeviceClass.CPU in one.device_classes)
        and admits(policy_, one.backend, T.HOST_DRAM)
    ]
    # sorted() is stable, as the order of registration must be.
    able = sorted(able, key=lambda one: rank(policy_, one.backend))
    found = select(registrations, order(preferred=preferred), policy_)
    assert found == select(registrations, order(preferred=preferred), policy_)
    wanted = preferred or (able[0].backend if able else None)
    first = next((one for one in able if one.backend is wanted and one.available), None)
    lesser = next((one for one in able if one.available and degradable(policy_, one.backend)), None)
    if first is not None:
        assert isinstance(found, Selection)
        assert (found.registration, found.degraded_from) == (first, None)
    elif lesser is not None:
        assert isinstance(found, Selection)
        assert (found.registration, found.degraded_from) == (lesser, wanted)
    else:
        assert isinstance(found, NoSelection)
        assert len(found.rejected) == len(registrations)
