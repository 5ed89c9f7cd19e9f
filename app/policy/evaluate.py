"""What a policy says about backends and transfers. Pure, and under a microsecond a question.

The lists that apply to each backend (the policy's, or its overlay's in their place) become sets
once per policy, and the answers about a transfer are kept with it: every value of a question is a
member of a closed enum, so there are a few thousand at most, and a fleet asks for a few.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final, NamedTuple

from msgspec import UNSET

from app.contract.enums import (
    BufferKind,
    DeviceClass,
    Disposition,
    MaterializationCapability,
    TierKind,
    TransferBackend,
)
from app.policy.document import (
    BackendOverlay,
    ExecutionPolicy,
    FallbackBehavior,
    PolicyDeviceClass,
)

# The rank of a backend that the policy neither enables nor gives a priority: behind every other.
UNRANKED: Final = 2**63 - 1


class DenialReason(StrEnum):
    """Why a policy does not let a backend act."""

    BACKEND_NOT_ENABLED = "backend_not_enabled"
    BACKEND_DISABLED = "backend_disabled"
    SOURCE_TIER_NOT_ALLOWED = "source_tier_not_allowed"
    TARGET_TIER_NOT_ALLOWED = "target_tier_not_allowed"
    DEVICE_CLASS_NOT_ALLOWED = "device_class_not_allowed"
    BUFFER_KIND_NOT_ALLOWED = "buffer_kind_not_allowed"
    CAPABILITY_NOT_ALLOWED = "capability_not_allowed"


class FallbackCause(StrEnum):
    """What went wrong; each has its flag in `recompute_fallback_policy`."""

    CACHE_MISS = "cache_miss"
    BACKEND_REJECTION = "backend_rejection"
    CAPABILITY_MISS = "capability_miss"
    POLICY_DENIAL = "policy_denial"


@dataclass(frozen=True, slots=True)
class PolicyDenial:
    """A refusal to let `backend` act: the rule of the policy, and the value it does not admit.

    `detail` is what a record says of it.
    """

    reason: DenialReason
    backend: TransferBackend
    pointer: str
    value: str | None = None
    detail: str = field(init=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "detail", f"{self.reason} at {self.pointer}")


@dataclass(frozen=True, slots=True)
class _Restriction:
    """One list that is not empty; `dimension` is the place of its value in a question."""

    dimension: int
    allowed: frozenset[str]
    reason: DenialReason
    pointer: str


@dataclass(frozen=True, slots=True)
class _BackendRules:
    barred: PolicyDenial | None
    restrictions: tuple[_Restriction, ...]
    priority: int
    may_degrade: bool


class Ruling(NamedTuple):
    """What a policy says of one transfer: `denial` and `priority` of every backend."""

    denials: Mapping[TransferBackend, PolicyDenial | None]
    priorities: Mapping[TransferBackend, int]


Question = tuple[
    TierKind | None,
    TierKind | None,
    DeviceClass | PolicyDeviceClass | None,
    BufferKind | None,
    MaterializationCapability | None,
]


@dataclass(frozen=True, slots=True)
class _Rules:
    backends: dict[TransferBackend, _BackendRules]
    priorities: dict[TransferBackend, int]
    fallback: dict[FallbackCause, Disposition]
    rulings: dict[Question, Ruling]


# In the order of a question's values.
_DIMENSIONS: Final = (
    ("allowed_source_tiers", DenialReason.SOURCE_TIER_NOT_ALLOWED),
    ("allowed_target_tiers", DenialReason.TARGET_TIER_NOT_ALLOWED),
    ("allowed_device_classes", DenialReason.DEVICE_CLASS_NOT_ALLOWED),
    ("allowed_buffer_kinds", DenialReason.BUFFER_KIND_NOT_ALLOWED),
    ("allowed_materialization_capabilities", DenialReason.CAPABILITY_NOT_ALLOWED),
)
_UNNAMED_DEVICES: Final = frozenset(DeviceClass) - frozenset(PolicyDeviceClass)
_NO_OVERLAY: Final = BackendOverlay()
_KEPT_AS: Final = "_rules"


def denial(
    policy: ExecutionPolicy,
    backend: TransferBackend,
    *,
    source_tier: TierKind | None = None,
    target_tier: TierKind | None = None,
    device_class: DeviceClass | PolicyDeviceClass | None = None,
    buffer_kind: BufferKind | None = None,
    capability: MaterializationCapability | None = None,
) -> PolicyDenial | None:
    """The first rule that keeps the backend from this transfer; None when the policy allows it.

    A value that the caller leaves None is not constrained.
    """
    question = (source_tier, target_tier, device_class, buffer_kind, capability)
    return ruling(policy, question).denials[backend]


def ruling(policy: ExecutionPolicy, question: Question) -> Ruling:
    """Every backend at once; the question is (source tier, target tier, device class, buffer kind,
    capability)."""
    try:
        kept: Ruling = policy.__dict__[_KEPT_AS].rulings[question]
    except KeyError:
        rules = _rules(policy)
        kept = rules.rulings[question] = Ruling(
            {backend: _denial(backend, one, question) for backend, one in rules.backends.items()},
            rules.priorities,
        )
    return kept


def _denial(
    backend: TransferBackend, rules: _BackendRules, question: Question
) -> PolicyDenial | None:
    if rules.barred is not None:
        return rules.barred
    for rule in rules.restrictions:
        value = question[rule.dimension]
        if value is not None and value not in rule.allowed:
            return PolicyDenial(rule.reason, backend, rule.pointer, value.value)
    return None


def priority(policy: ExecutionPolicy, backend: TransferBackend) -> int:
    """The backend's rank, lowest first: its overlay's override, else its place in the order.

    An override and a place may be equal: who registered first then goes first. UNRANKED for a
    backend with neither.
    """
    return _rules(policy).priorities[backend]


def may_degrade(policy: ExecutionPolicy, backend: TransferBackend) -> bool:
    """Whether this backend may be taken in place of a preferred one that is away."""
    return _rules(policy).backends[backend].may_degrade


def fallback_disposition(policy: ExecutionPolicy, cause: FallbackCause) -> Disposition:
    """RECOMPUTE or SKIP, by the flag of what went wrong.

    Recomputing also needs the state's own `fallback_recompute` capability, which no policy knows.
    """
    return _rules(policy).fallback[cause]


def prepare(policy: ExecutionPolicy) -> None:
    """Does once, before the policy comes into force, what its first question would wait for."""
    _rules(policy)


def _rules(policy: ExecutionPolicy) -> _Rules:
    """Made at the first question, and kept with the policy as its other derived values are."""
    try:
        kept: _Rules = policy.__dict__[_KEPT_AS]
    except KeyError:
        backends = {backend: _backend_rules(policy, backend) for backend in TransferBackend}
        kept = policy.__dict__[_KEPT_AS] = _Rules(
            backends=backends,
            priorities={backend: one.priority for backend, one in backends.items()},
            fallback={cause: _disposition(policy, cause) for cause in FallbackCause},
            rulings={},
        )
    return kept


def _backend_rules(policy: ExecutionPolicy, backend: TransferBackend) -> _BackendRules:
    overlay = policy.backend_overlays.get(backend.value, _NO_OVERLAY)
    restrictions = [
        found
        for dimension in range(len(_DIMENSIONS))
        if (found := _restriction(policy, backend, overlay, dimension)) is not None
    ]
    order = policy.backend_priority_order
    place = order.index(backend) if backend in order else UNRANKED
    override = overlay.priority_override
    return _BackendRules(
        barred=_barred(policy, backend, overlay),
        restrictions=tuple(restrictions),
        priority=place if override is UNSET else override,
        may_degrade=policy.default_fallback_behavior is FallbackBehavior.DEGRADE
        and overlay.allow_degraded_selection is not False,
    )


def _barred(
    policy: ExecutionPolicy, backend: TransferBackend, overlay: BackendOverlay
) -> PolicyDenial | None:
    if backend not in policy.enabled_transfer_backends:
        return PolicyDenial(
            DenialReason.BACKEND_NOT_ENABLED, backend, "/enabled_transfer_backends", backend.value
        )
    if overlay.enabled is False:
        at = f"/backend_overlays/{backend}/enabled"
        return PolicyDenial(DenialReason.BACKEND_DISABLED, backend, at)
    return None


def _restriction(
    policy: ExecutionPolicy, backend: TransferBackend, overlay: BackendOverlay, dimension: int
) -> _Restriction | None:
    """None when the list that applies is empty: an overlay's takes the place of the policy's."""
    field, reason = _DIMENSIONS[dimension]
    values = getattr(overlay, field)
    at = f"/backend_overlays/{backend}/{field}"
    if values is UNSET:
        # Capabilities are restricted by overlays alone.
        values, at = getattr(policy, field, ()), f"/{field}"
    if not values:
        return None
    allowed = frozenset[str](values)
    if PolicyDeviceClass.OTHER in values:
        allowed |= _UNNAMED_DEVICES
    return _Restriction(dimension, allowed, reason, at)


def _disposition(policy: ExecutionPolicy, cause: FallbackCause) -> Disposition:
    recompute = getattr(policy.recompute_fallback_policy, f"on_{cause}")
    return Disposition.RECOMPUTE if recompute else Disposition.SKIP
