"""`nexuskv.execution_policy`: what operators write to say how state may be moved. Pure.

An empty `allowed_*` list means unrestricted, a limit of 0 unlimited. `v2` says all that `v1` does,
and what planning needs; a `v1` document is read as it always was, and has the defaults of the rest.
"""

from enum import StrEnum
from functools import cached_property
from hashlib import sha256
from itertools import chain, islice
from typing import Annotated, Literal

import msgspec
from msgspec import UNSET, Meta, Struct, UnsetType

from app.contract.enums import (
    BufferKind,
    MaterializationCapability,
    TierKind,
    TransferBackend,
    Word,
)
from app.contract.findings import MAX_FINDINGS, Shape, not_finite, refusal
from app.contract.limits import U63, Name
from app.policy.consistency import inconsistencies, with_value
from app.policy.text import parse_document

_VERSION_HEX_DIGITS = 16
_MAX_TENANT_CHARS = 128
_UNIQUE = {"uniqueItems": True}


class PolicyDeviceClass(Word):
    """The device classes a policy can name; every class it cannot counts as `other`."""

    CPU = "cpu"
    CUDA = "cuda"
    ROCM = "rocm"
    TPU = "tpu"
    OTHER = "other"


class FallbackBehavior(StrEnum):
    DEGRADE = "degrade"
    RECOMPUTE = "recompute"
    SKIP = "skip"


class TenancyMode(StrEnum):
    DISABLED = "disabled"
    ADVISORY = "advisory"


class QuotaMode(StrEnum):
    DISABLED = "disabled"
    ADVISORY = "advisory"
    ENFORCED = "enforced"


Backends = Annotated[
    tuple[TransferBackend, ...], Meta(min_length=1, max_length=16, extra_json_schema=_UNIQUE)
]
Tiers = Annotated[tuple[TierKind, ...], Meta(max_length=16, extra_json_schema=_UNIQUE)]
DeviceClasses = Annotated[
    tuple[PolicyDeviceClass, ...], Meta(max_length=16, extra_json_schema=_UNIQUE)
]
BufferKinds = Annotated[tuple[BufferKind, ...], Meta(max_length=16, extra_json_schema=_UNIQUE)]
Capabilities = Annotated[
    tuple[MaterializationCapability, ...], Meta(max_length=16, extra_json_schema=_UNIQUE)
]
TenantDefault = Annotated[
    str, Meta(max_length=_MAX_TENANT_CHARS, extra_json_schema={"pattern": "^[^\\u0000]*$"})
]


class RecomputeFallbackPolicy(Struct, frozen=True, forbid_unknown_fields=True):
    """Whether to recompute rather than skip, by what went wrong."""

    on_cache_miss: bool
    on_backend_rejection: bool
    on_capability_miss: bool
    on_policy_denial: bool


class TenantNamespacePolicy(Struct, frozen=True, forbid_unknown_fields=True):
    """Defaults where a call names none, in either mode; an empty default is none at all."""

    mode: TenancyMode
    default_tenant: TenantDefault
    default_namespace: TenantDefault


class QuotaAdmissionPolicy(Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    mode: QuotaMode
    max_payload_bytes: U63
    max_entries: U63
    max_concurrent_transfers: U63 = 0
    max_pinned_dram_bytes: U63 = 0


class BackendOverlay(Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """What differs for one backend; an absent field leaves the policy's own."""

    enabled: bool | UnsetType = UNSET
    priority_override: U63 | UnsetType = UNSET
    allowed_source_tiers: Tiers | UnsetType = UNSET
    allowed_target_tiers: Tiers | UnsetType = UNSET
    allowed_device_classes: DeviceClasses | UnsetType = UNSET
    allowed_buffer_kinds: BufferKinds | UnsetType = UNSET
    allowed_materialization_capabilities: Capabilities | UnsetType = UNSET
    allow_degraded_selection: bool | UnsetType = UNSET


Overlays = Annotated[dict[Name, BackendOverlay], Meta(max_length=64)]
_Kept = Literal["group", "spooled"]
HistoryDurabilityV1 = dict[
    Literal["lookup", "estimate", "materialize", "prefetch", "store"],
    _Kept,
]
HistoryDurability = dict[
    Literal["lookup", "estimate", "materialize", "prefetch", "store", "plan"],
    _Kept,
]
Deviations = Annotated[float, Meta(ge=0, le=10)]
Step = Annotated[float, Meta(gt=1, le=10)]
ExplorationShare = Annotated[float, Meta(ge=0, le=0.1)]
Share = Annotated[float, Meta(gt=0, le=1)]
Probability = Annotated[float, Meta(ge=0, le=1)]


class CostBoundsPolicy(Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """When state is worth bringing, and how far profiles may follow what is observed.

    The gain less `deviations` of its standard deviations must be more than `min_gain_us`. A target
    whose queue is longer than `max_queue_us` is taken only where all are. One observation changes a
    coefficient by the factor `max_calibration_step` at most. Of requests that would compute what
    could be brought, `exploration_share` bring it all the same, so that its cost is learnt.
    """

    deviations: Deviations = 1.0
    min_gain_us: U63 = 0
    max_queue_us: U63 = 0
    max_calibration_step: Step = 1.25
    exploration_share: ExplorationShare = 0.0


class PrefetchBudgetsPolicy(Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """What of a tenant's prefetches may be on its way at a time: bytes, and bytes a microsecond
    (1,000 are 1 GB/s); which part of a tier's capacity they may fill; and how likely their use must
    be at least.
    """

    max_bytes_in_flight: U63 = 0
    max_bytes_per_us: U63 = 0
    max_tier_share: Share = 1.0
    min_use_probability: Probability = 0.0


class _Common(Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True, dict=True):
    """What every version says."""

    # First, since a foreign one explains all that follows.
    schema_version: Literal["nexuskv.execution_policy.v1", "nexuskv.execution_policy.v2"]
    enabled_transfer_backends: Backends
    backend_priority_order: Backends
    allowed_source_tiers: Tiers
    allowed_target_tiers: Tiers
    allowed_device_classes: DeviceClasses
    allowed_buffer_kinds: BufferKinds
    default_fallback_behavior: FallbackBehavior
    recompute_fallback_policy: RecomputeFallbackPolicy
    tenant_namespace_policy: TenantNamespacePolicy
    quota_admission_policy: QuotaAdmissionPolicy
    backend_overlays: Overlays = {}


class ExecutionPolicyV1(_Common, frozen=True):
    """A document of the first version, as it is published."""

    schema_version: Literal["nexuskv.execution_policy.v1"]
    history_durability: HistoryDurabilityV1 = {}


class ExecutionPolicy(_Common, frozen=True):
    """One policy, whole, of whichever version its document is."""

    # By kind of decision; see app.decisions.record.Durability.
    history_durability: HistoryDurability = {}
    cost_bounds: CostBoundsPolicy = CostBoundsPolicy()
    prefetch_budgets: PrefetchBudgetsPolicy = PrefetchBudgetsPolicy()

    @cached_property
    def content_sha256(self) -> str:
        """Hex digest of the canonical bytes; equal content, however written, has equal digests."""
        return sha256(canonical_bytes(self)).hexdigest()

    @cached_property
    def version(self) -> str:
        """What decisions record: a short form of the digest, for people and for grouping."""
        return f"sha256:{self.content_sha256[:_VERSION_HEX_DIGITS]}"


class ExecutionPolicyV2(ExecutionPolicy, frozen=True):
    """A document of the second version, as it is published."""

    schema_version: Literal["nexuskv.execution_policy.v2"]


_V2 = "nexuskv.execution_policy.v2"
_SHAPE = Shape(ExecutionPolicy, "execution policy")
_SHAPE_V1 = Shape(ExecutionPolicyV1, _SHAPE.noun)
_SHAPE_V2 = Shape(ExecutionPolicyV2, _SHAPE.noun)
_ENCODER = msgspec.json.Encoder(order="sorted")


def load_policy(text: bytes | str) -> ExecutionPolicy:
    """The policy in a YAML or JSON document.

    Raises NexusError with every finding, of its form and of its consistency, each with the value
    that stands there; REQUEST_TOO_LARGE or INVALID_BODY for what is no document at all.
    """
    document = parse_document(text)
    second = isinstance(document, dict) and document.get("schema_version") == _V2
    found = list((_SHAPE_V2 if second else _SHAPE_V1).findings(document))
    further = chain(inconsistencies(document), not_finite(document, ""))
    found += islice(further, MAX_FINDINGS - len(found))
    if found or not isinstance(document, dict):
        raise refusal(_SHAPE.noun, [with_value(finding, document) for finding in found])
    return _SHAPE.accept(document)


def canonical_bytes(policy: ExecutionPolicy) -> bytes:
    """Compact JSON with sorted keys; what equals its default is omitted."""
    return _ENCODER.encode(policy)


def resolve_tenant(policy: ExecutionPolicy, tenant: str | None) -> str | None:
    """The tenant named, else the policy's default; None when there is neither."""
    default = policy.tenant_namespace_policy.default_tenant or None
    return default if tenant is None else tenant


def resolve_namespace(policy: ExecutionPolicy, namespace: str | None) -> str | None:
    """The namespace named, else the policy's default; None when there is neither."""
    default = policy.tenant_namespace_policy.default_namespace or None
    return default if namespace is None else namespace


def advisory_mismatches(policy: ExecutionPolicy, tenant: str, namespace: str) -> tuple[str, ...]:
    """Which of "tenant" and "namespace" are not the policy's; to be recorded, never to deny.

    Empty in disabled mode. A default left empty expects nothing.
    """
    expected = policy.tenant_namespace_policy
    if expected.mode is TenancyMode.DISABLED:
        return ()
    pairs = (
        ("tenant", tenant, expected.default_tenant),
        ("namespace", namespace, expected.default_namespace),
    )
    return tuple(name for name, found, default in pairs if default and found != default)
