"""What a signed handle authorises; the bridge seals and opens them, the lifecycle acts on them."""

from uuid import UUID

import msgspec


class SourceGrant(msgspec.Struct, frozen=True, gc=False):
    """The right to ask for an estimate of one generation of one state, after a lookup hit."""

    tenant: str
    state_id: UUID
    generation: int
    matched_tokens: int
    identity_hash: bytes
    lookup_id: UUID
    expires_us: int


class OptionGrant(msgspec.Struct, frozen=True, gc=False):
    """The right to materialize that state once, into one target, after an estimate."""

    option_id: UUID
    tenant: str
    state_id: UUID
    generation: int
    matched_tokens: int
    identity_hash: bytes
    target_digest: bytes
    lookup_id: UUID
    estimate_id: UUID
    transfer_us: int
    expires_us: int
    target_residency: str
