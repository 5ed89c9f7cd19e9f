"""A registered state as the index keeps it: parsed once, its tokens only in the compiled index."""

import sys
from array import array
from dataclasses import dataclass
from uuid import UUID

import msgspec

from app.contract.entry import CacheEntry, KeyIdentity
from app.contract.evidence import Evidence
from app.contract.locators import parse_locator
from app.contract.registration import Registration
from app.contract.rules import ReuseRule, allows_partial, extent_unit_tokens, reuse_rule
from app.contract.sizes import payload_bytes


class ScopeIdentity(msgspec.Struct, frozen=True, gc=False):
    """What keeps two states apart before any token is compared."""

    tenant: str
    namespace: str
    model: str
    engine_family: str
    semantic_type: str
    block_id: int | None = None
    page_id: int | None = None


def scope_of(key: KeyIdentity) -> ScopeIdentity:
    """The scope that a registered key belongs to."""
    return ScopeIdentity(
        key.tenant,
        key.namespace,
        key.model,
        key.engine_family.value,
        key.semantic_type.value,
        key.block_id,
        key.page_id,
    )


def token_array(packed: bytes) -> "array[int]":
    """Token ids from the stored form, little-endian u32, as a buffer of the machine's own u32."""
    tokens = array("I")
    tokens.frombytes(packed)
    if sys.byteorder == "big":
        tokens.byteswap()
    return tokens


@dataclass(frozen=True, slots=True)
class StateRow:
    """One live state as stored: the registration without its tokens, and the tokens packed."""

    state_id: UUID
    registration: Registration
    tokens: bytes
    content_hash: bytes
    # Wall time, microseconds since the epoch, of the latest registration of this content.
    registered_us: int


@dataclass(frozen=True, slots=True)
class AnswerParts:
    """The entry's JSON in two pieces, between which an answer writes the matched tokens."""

    before_tokens: bytes
    after_tokens: bytes


class RegisteredState:
    """One state in the index. `entry` carries an empty token list."""

    __slots__ = (
        "answer",
        "content_hash",
        "entry",
        "evidence",
        "evidence_class",
        "facts",
        "order",
        "payload",
        "payload_bytes",
        "registered_us",
        "rule",
        "scope",
        "state_id",
        "tier",
        "token_count",
        "unit_tokens",
    )

    def __init__(self, row: StateRow, *, evidence_class: int, order: int, tokens: int) -> None:
        registration = row.registration
        key = registration.entry.identity.key
        descriptor = registration.entry.descriptor
        self.state_id = row.state_id
        self.content_hash = row.content_hash
        self.entry: CacheEntry = registration.entry
        self.evidence: Evidence | None = registration.validation
        self.evidence_class = evidence_class
        self.order = order
        self.registered_us = row.registered_us
        # As plain text: an enum's member is hashed by a call.
        self.tier: str = registration.entry.location.tier.value
        # (worker, payload id) where the state lies on a worker.
        self.payload = parse_locator(registration.entry.location.locator)
        self.rule: ReuseRule = reuse_rule(key.semantic_type)
        self.unit_tokens: int = extent_unit_tokens(descriptor)
        self.answer = answer_parts(registration.entry)
        self.token_count = tokens
        # Of all of it; None where the descriptor does not say.
        self.payload_bytes = payload_bytes(descriptor, tokens)
        self.facts = _facts(row, tokens, self.payload_bytes)
        self.scope = scope_of(key)

    @property
    def tenant(self) -> str:
        return self.scope.tenant

    @property
    def entry_id(self) -> str:
        return self.entry.identity.entry_id

    @property
    def generation(self) -> int:
        return self.entry.identity.version.generation

    @property
    def partial(self) -> bool:
        return allows_partial(self.entry.descriptor)


def _facts(row: StateRow, tokens: int, whole_bytes: int | None) -> msgspec.Raw:
    """What a decision says of the state that matched: its ids, its tier, and the rest of a JSON
    object; in msgpack.
    """
    entry = row.registration.entry
    place = {
        "generation": entry.identity.version.generation,
        "tier": entry.location.tier,
        "locator": entry.location.locator,
        "token_count": tokens,
        "payload_bytes": whole_bytes,
    }
    return msgspec.Raw(
        msgspec.msgpack.encode(
            (
                entry.identity.entry_id,
                row.state_id.bytes,
                entry.location.tier,
                msgspec.json.encode(place).decode()[1:],
            )
        )
    )


def answer_parts(entry: CacheEntry) -> AnswerParts:
    """`entry` must carry an empty token list; its JSON is cut where the tokens go."""
    before, marker, after = msgspec.json.encode(entry).partition(b'"tokens":[')
    if not marker:
        raise ValueError("an entry's JSON has no token list")
    return AnswerParts(before + marker, after)
