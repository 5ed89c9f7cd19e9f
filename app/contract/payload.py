"""The bytes of a state: which slice, where they are, and who owns them."""

from msgspec import Struct

from app.contract.descriptor import SupportedFamily, SupportedType
from app.contract.enums import BufferKind, DeviceClass, Granularity, PayloadOwnership, TierKind
from app.contract.limits import U63, Locator, Name


class StateSliceDescriptor(
    Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True, gc=False
):
    """`token_count` tokens of the state from `token_start` on."""

    granularity: Granularity
    token_count: U63
    token_start: U63
    block_id: U63 | None = None
    page_id: U63 | None = None


class PayloadDescriptor(
    Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True, gc=False
):
    """`byte_size_hint` is a hint: only a verified transfer states how many bytes there are."""

    descriptor_id: Name
    engine_family: SupportedFamily
    semantic_type: SupportedType
    state_slice: StateSliceDescriptor
    byte_size_hint: U63 | None = None


class PayloadLocation(
    Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True, gc=False
):
    """A place that holds, or is to hold, a payload; what is absent is not constrained."""

    handle_kind: Name
    tier: TierKind | None = None
    buffer_kind: BufferKind | None = None
    device_class: DeviceClass | None = None
    locator: Locator | None = None


class PayloadHandle(Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True, gc=False):
    """Names one payload; `opaque_ref` means something to its backend only."""

    handle_id: Name
    location: PayloadLocation
    descriptor: PayloadDescriptor
    ownership: PayloadOwnership
    opaque_ref: Locator | None = None
