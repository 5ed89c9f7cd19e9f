"""Which backend carries an order out: a deterministic choice from what is registered. Pure.

A registration must be able to (its action, tiers, device class, buffer kind, capability), the
state must name the path, and the policy must allow it. Those left are ordered: the policy's
priority, then the order of registration. The wanted backend wins where it is available; a lesser
one only where the policy degrades. Every registration that was not taken has its reason.
"""

from collections.abc import Sequence
from typing import Final

from msgspec import Struct

from app.contract.descriptor import AttentionStateDescriptor
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
from app.policy.document import ExecutionPolicy
from app.policy.evaluate import (
    FallbackCause,
    PolicyDenial,
    fallback_disposition,
    may_degrade,
    ruling,
)

_UNSUPPORTED: Final = FallbackReason.UNSUPPORTED_CAPABILITY
_NO_PATH: Final = FallbackReason.NO_TRANSFER_PATH
_MAX_NOTED: Final = 1_024


class BackendRegistration(Struct, frozen=True):
    """What one backend of one worker can do; an empty set means unrestricted."""

    name: str
    backend: TransferBackend
    actions: frozenset[Disposition]
    source_tiers: frozenset[TierKind] = frozenset()
    target_tiers: frozenset[TierKind] = frozenset()
    device_classes: frozenset[DeviceClass] = frozenset()
    buffer_kinds: frozenset[BufferKind] = frozenset()
    capabilities: frozenset[MaterializationCapability] = frozenset()
    available: bool = True


class Order(Struct, frozen=True):
    """What is to be done, as far as the choice of a backend depends on it."""

    action: Disposition
    source_tier: TierKind
    target: PayloadLocation
    descriptor: AttentionStateDescriptor
    capability: MaterializationCapability
    preferred: TransferBackend | None = None


class Rejection(Struct, frozen=True):
    """A registration that was not taken."""

    registration: str
    reason: FallbackReason
    detail: str


class Selection(Struct, frozen=True):
    """`degraded_from` is the backend that was wanted, when a lesser one was taken."""

    registration: BackendRegistration
    degraded_from: TransferBackend | None
    rejected: tuple[Rejection, ...]


class NoSelection(Struct, frozen=True):
    """Nothing may act: why, and what to do instead (recompute or skip)."""

    reason: FallbackReason
    disposition: Disposition
    rejected: tuple[Rejection, ...]


def select(
    registrations: Sequence[BackendRegistration], order: Order, policy: ExecutionPolicy
) -> Selection | NoSelection:
    """The same arguments always give the same choice; a few microseconds for a few of them."""
    rejected: list[Rejection] = []
    admitted: list[BackendRegistration] = []
    paths = frozenset(path.backend for path in order.descriptor.transfer_paths)
    target = order.target
    denials, priorities = ruling(
        policy,
        (
            order.source_tier,
            target.tier,
            target.device_class,
            target.buffer_kind,
            order.capability,
        ),
    )
    # Most workers offer their backends in the policy's order.
    in_order, last_rank = True, 0
    for registration in registrations:
        rejection = incapable(registration, order, paths)
        if rejection is not None:
            rejected.append(rejection)
        elif (denial := denials[registration.backend]) is not None:
            name = registration.name
            rejected.append(denial.noted.get(name) or _denied(name, denial))
        else:
            admitted.append(registration)
            rank = priorities[registration.backend]
            in_order, last_rank = in_order and last_rank <= rank, rank
    if not admitted:
        return _nothing(rejected, order, policy)
    if not in_order:
        # Stable: equal priorities keep the order of registration.
        admitted.sort(key=lambda one: priorities[one.backend])
    wanted = order.preferred or admitted[0].backend
    for registration in admitted:
        if registration.backend is wanted and registration.available:
            return Selection(registration, None, tuple(rejected))
    for registration in admitted:
        refusal = _not_lesser(registration, wanted, policy)
        if refusal is None:
            return Selection(registration, wanted, tuple(rejected))
        rejected.append(refusal)
    return _fallback(
        FallbackReason.PREFERRED_BACKEND_UNAVAILABLE,
        FallbackCause.BACKEND_REJECTION,
        rejected,
        order,
        policy,
    )


def disposition_after(
    cause: FallbackCause, descriptor: AttentionStateDescriptor, policy: ExecutionPolicy
) -> Disposition:
    """Recompute where the policy wants it and the state can be; else skip."""
    capabilities = descriptor.materialization.capabilities
    can = not capabilities or MaterializationCapability.FALLBACK_RECOMPUTE in capabilities
    chosen = fallback_disposition(policy, cause)
    return chosen if can else Disposition.SKIP


def incapable(
    registration: BackendRegistration, order: Order, paths: frozenset[TransferBackend]
) -> Rejection | None:
    """Why the registration cannot carry the order out, whatever a policy says; None when it can.

    `paths` are the backends that the state names; none is no restriction.
    """
    target, state = order.target, order.descriptor.materialization
    for value, allowed, reason, trouble in (
        (order.action, registration.actions, _UNSUPPORTED, "does not"),
        (order.source_tier, registration.source_tiers, _NO_PATH, "does not read"),
        (target.tier, registration.target_tiers, _NO_PATH, "does not write"),
        (target.device_class, registration.device_classes, _UNSUPPORTED, "does not reach"),
        (target.buffer_kind, registration.buffer_kinds, _UNSUPPORTED, "does not fill"),
        (order.capability, registration.capabilities, _UNSUPPORTED, "does not materialize"),
        (order.capability, state.capabilities, _UNSUPPORTED, "the state cannot be had as"),
        (registration.backend, paths, _NO_PATH, "the state names no path by"),
    ):
        # An empty set or list restricts nothing, and what the order leaves open is not judged.
        if allowed and value is not None and value not in allowed:
            return Rejection(registration.name, reason, f"{trouble} {value}")
    return None


def _denied(name: str, denial: PolicyDenial) -> Rejection:
    """The same for every order: kept with the denial."""
    if len(denial.noted) >= _MAX_NOTED:
        denial.noted.clear()
    found = denial.noted[name] = Rejection(name, FallbackReason.ENGINE_POLICY, denial.detail)
    return found


def _not_lesser(
    registration: BackendRegistration, wanted: TransferBackend, policy: ExecutionPolicy
) -> Rejection | None:
    """Why this one does not stand in for the wanted backend; None when it does."""
    if not registration.available:
        return Rejection(
            registration.name, FallbackReason.PREFERRED_BACKEND_UNAVAILABLE, "is not available"
        )
    if registration.backend is wanted or may_degrade(policy, registration.backend):
        return None
    return Rejection(
        registration.name,
        FallbackReason.ENGINE_POLICY,
        f"the policy does not degrade {wanted} to {registration.backend}",
    )


def _nothing(rejected: list[Rejection], order: Order, policy: ExecutionPolicy) -> NoSelection:
    reasons = {rejection.reason for rejection in rejected}
    if FallbackReason.ENGINE_POLICY in reasons:
        reason, cause = FallbackReason.ENGINE_POLICY, FallbackCause.POLICY_DENIAL
    elif FallbackReason.UNSUPPORTED_CAPABILITY in reasons:
        reason, cause = FallbackReason.UNSUPPORTED_CAPABILITY, FallbackCause.CAPABILITY_MISS
    else:
        reason, cause = FallbackReason.NO_TRANSFER_PATH, FallbackCause.CAPABILITY_MISS
    return _fallback(reason, cause, rejected, order, policy)


def _fallback(
    reason: FallbackReason,
    cause: FallbackCause,
    rejected: list[Rejection],
    order: Order,
    policy: ExecutionPolicy,
) -> NoSelection:
    chosen = disposition_after(cause, order.descriptor, policy)
    return NoSelection(reason, chosen, tuple(rejected))
