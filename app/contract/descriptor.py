"""What a state is: its tensors, layout, quantization, and how it may be moved."""

from typing import Annotated

from msgspec import Meta, Struct

from app.contract.enums import (
    BufferKind,
    CompatibilityFlag,
    DeviceClass,
    EngineFamily,
    Granularity,
    MaterializationCapability,
    StateSemanticType,
    TensorRole,
    TierKind,
    TransferBackend,
    TransferCapability,
)
from app.contract.limits import U32, ContractVersion, Detail, Label, Name
from app.errors import ErrorCode

_UNSUPPORTED = {"code": ErrorCode.UNSUPPORTED_IDENTITY}
SupportedFamily = Annotated[EngineFamily, Meta(extra=_UNSUPPORTED)]
SupportedType = Annotated[StateSemanticType, Meta(extra=_UNSUPPORTED)]

_MAX_TENSORS = 1024
_MAX_DIMS = 16
_MAX_CHOICES = 16
_MAX_METADATA = 64


class TensorSpec(Struct, frozen=True, forbid_unknown_fields=True, gc=False):
    """One tensor of the payload. A shape dimension is a number or a symbol (`contract.sizes`)."""

    name: Name
    role: TensorRole
    dtype: Label
    shape: Annotated[tuple[Name, ...], Meta(max_length=_MAX_DIMS)]


class QuantizationMetadata(Struct, frozen=True, forbid_unknown_fields=True, gc=False):
    """`group_size` is 0 for none and -1 for one group per channel."""

    scheme: Label
    bits: Annotated[int, Meta(ge=0, le=1024)]
    group_size: Annotated[int, Meta(ge=-1, le=2**31 - 1)]


class LayoutMetadata(Struct, frozen=True, forbid_unknown_fields=True, gc=False):
    layout: Label
    page_tokens: U32
    block_tokens: U32
    packed: bool


class TransferPath(Struct, frozen=True, forbid_unknown_fields=True, gc=False):
    backend: TransferBackend
    capabilities: Annotated[tuple[TransferCapability, ...], Meta(max_length=_MAX_CHOICES)]


class MaterializationProfile(Struct, frozen=True, forbid_unknown_fields=True, gc=False):
    """What can be done with the payload; an empty list means unrestricted."""

    capabilities: Annotated[tuple[MaterializationCapability, ...], Meta(max_length=_MAX_CHOICES)]
    tier_kinds: Annotated[tuple[TierKind, ...], Meta(max_length=_MAX_CHOICES)]
    device_classes: Annotated[tuple[DeviceClass, ...], Meta(max_length=_MAX_CHOICES)]
    buffer_kinds: Annotated[tuple[BufferKind, ...], Meta(max_length=_MAX_CHOICES)]


class AttentionStateDescriptor(Struct, frozen=True, forbid_unknown_fields=True, gc=False):
    """The physical and semantic form of a state, shared by all states of one engine set-up."""

    schema_version: ContractVersion
    descriptor_id: Name
    engine_family: SupportedFamily
    semantic_type: SupportedType
    granularity: Granularity
    tensor_specs: Annotated[tuple[TensorSpec, ...], Meta(max_length=_MAX_TENSORS)]
    quantization: QuantizationMetadata
    layout: LayoutMetadata
    compatibility_flags: Annotated[tuple[CompatibilityFlag, ...], Meta(max_length=_MAX_CHOICES)]
    transfer_paths: Annotated[tuple[TransferPath, ...], Meta(max_length=_MAX_CHOICES)]
    materialization: MaterializationProfile
    layout_metadata: Annotated[dict[Name, Detail], Meta(max_length=_MAX_METADATA)]
