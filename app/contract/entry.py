"""Identities, and the entry that describes one registered state."""

from msgspec import Struct

from app.contract.descriptor import AttentionStateDescriptor, SupportedFamily, SupportedType
from app.contract.enums import TierKind
from app.contract.limits import U32, U63, Label, Locator, Name, ScopeName, Tokens
from app.contract.scope import CheckpointLineage, ParallelScope


class KeyIdentity(Struct, frozen=True, forbid_unknown_fields=True, gc=False):
    """What is reused by whom: everything that isolates a state, and its tokens (u32 ids).

    A query's token list may be empty, which matches nothing; a registered one may not.
    """

    tenant: ScopeName
    namespace: ScopeName
    model: Name
    engine_family: SupportedFamily
    semantic_type: SupportedType
    tokens: Tokens
    block_id: U63 | None = None
    page_id: U63 | None = None


class ReuseKey(Struct, frozen=True, forbid_unknown_fields=True, gc=False):
    identity: KeyIdentity


class QueryKey(Struct, frozen=True, forbid_unknown_fields=True, gc=False):
    identity: KeyIdentity


class EntryVersion(Struct, frozen=True, forbid_unknown_fields=True, gc=False):
    """A higher generation supersedes; the wire's clients hold it in 32 bits."""

    generation: U32
    lineage: Name


class EntryLocation(Struct, frozen=True, forbid_unknown_fields=True, gc=False):
    tier: TierKind
    locator: Locator


class PolicyHint(Struct, frozen=True, forbid_unknown_fields=True, gc=False):
    reusable: bool
    admission_hint: Label
    eviction_hint: Label


class EntryIdentity(Struct, frozen=True, forbid_unknown_fields=True, gc=False):
    key: KeyIdentity
    entry_id: Name
    version: EntryVersion


class CacheEntry(Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True, gc=False):
    """One state. The fields below the published four are omitted on the wire when absent."""

    identity: EntryIdentity
    descriptor: AttentionStateDescriptor
    location: EntryLocation
    policy_hint: PolicyHint
    model_revision: Label | None = None
    adapter_revision: Label | None = None
    parallel: ParallelScope | None = None
    layer_scope: Label | None = None
    position_convention: Label | None = None
    checkpoint: CheckpointLineage | None = None
