"""`nexuskv.execution_policy.v1`: what operators write to say how state may be moved. Pure.

An empty `allowed_*` list means unrestricted, a quota limit of 0 unlimited.
"""

from enum import StrEnum
from functools import cached_property
from hashlib import sha256
from itertools import islice
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
from app.contract.findings import MAX_FINDINGS, Shape, refusal
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
HistoryDurability = dict[
    Literal["lookup", "estimate", "materialize", "prefetch", "store"],
    Literal["group", "spooled"],
]


class ExecutionPolicy(
    Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True, dict=True
):
    """One policy document, whole."""

    schema_version: Literal["nexuskv.execution_policy.v1"]
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
    # By kind of decision; see app.decisions.record.Durability.
    history_durability: HistoryDurability = {}

    @cached_property
    def content_sha256(self) -> str:
        """Hex digest of the canonical bytes; equal content, however written, has equal digests."""
        return sha256(canonical_bytes(self)).hexdigest()

    @cached_property
    def version(self) -> str:
        """What decisions record: a short form of the digest, for people and for grouping."""
        return f"sha256:{self.content_sha256[:_VERSION_HEX_DIGITS]}"


_SHAPE = Shape(ExecutionPolicy, "execution policy")
_ENCODER = msgspec.json.Encoder(order="sorted")


def load_policy(text: bytes | str) -> ExecutionPolicy:
    """The policy in a YAML or JSON document.

    Raises NexusError with every finding, of its form and of its consistency, each with the value
    that stands there; REQUEST_TOO_LARGE or INVALID_BODY for what is no document at all.
    """
    document = parse_document(text)
    found = list(_SHAPE.findings(document))
    found += islice(inconsistencies(document), MAX_FINDINGS - len(found))
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
