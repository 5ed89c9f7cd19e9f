"""What an operator says of an engine: where its events are, and what its blocks are made of."""

from enum import StrEnum
from typing import Annotated, Final, NamedTuple

import msgspec
from msgspec import Meta

from app.contract.registration import Registration
from app.engines.reach import AttentionKind

MAX_STATES: Final = 64
MAX_ENGINES: Final = 4_096
MAX_TENANTS: Final = 64
MAX_SALTS: Final = 1_024
MAX_BLOCK_TOKENS: Final = 65_536
MAX_DP_RANK: Final = 65_535
MAX_GROUPS: Final = 256
MAX_GROUP: Final = 1 << 16
MAX_WINDOW_TOKENS: Final = 1 << 40

# To Python a $ is also before a newline at the end. The published schema has a $.
Name = Annotated[str, Meta(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,127}\Z", max_length=128)]
# Instances are also named by where they are. No slash: the name is one segment of paths.
Instance = Annotated[str, Meta(pattern=r"^[A-Za-z0-9][A-Za-z0-9._:-]{0,127}\Z", max_length=128)]
Text = Annotated[str, Meta(min_length=1, max_length=512)]
Label = Annotated[str, Meta(max_length=512)]
Tenant = Annotated[str, Meta(min_length=1, max_length=128)]


class EngineKind(StrEnum):
    """Whose events they are."""

    VLLM = "vllm"
    SGLANG = "sglang"
    MOONCAKE = "mooncake"
    DYNAMO = "dynamo"


class Attach(StrEnum):
    """Which side binds the event socket: an engine that binds is connected to."""

    CONNECT = "connect"
    BIND = "bind"


class EngineKey(NamedTuple):
    """One publisher of events: a data parallel rank of an engine instance."""

    instance_id: str
    dp_rank: int = 0


class GroupSpec(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A KV cache group of the engine, by its number in events; the kind is as these have it.

    `window_tokens` is of a sliding window; of one that names none all blocks are needed.
    """

    group_idx: Annotated[int, Meta(ge=0, le=MAX_GROUP)]
    kind: AttentionKind
    window_tokens: Annotated[int, Meta(ge=1, le=MAX_WINDOW_TOKENS)] | None = None


class EngineSpec(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One registration. Its blocks belong to `tenants`:

    - one tenant: everything is that tenant's, salted or not;
    - several: only blocks salted with one of `salts` (a salt -> its tenant), the rest is not
      indexed, unless `pooled` says that unsalted blocks are shared by all of them, or events of a
      store by the KV events RFC name the tenant.
    """

    instance_id: Instance
    dp_rank: Annotated[int, Meta(ge=0, le=MAX_DP_RANK)] = 0
    kind: EngineKind = EngineKind.VLLM
    model: Text
    # Of the weights; blocks of another revision are other blocks.
    revision: Label = ""
    # Parallel layout and the like: whatever else makes blocks of equal tokens differ.
    layout: Label = ""
    # Tokens a block, as the engine's events have it.
    block_tokens: Annotated[int, Meta(ge=1, le=MAX_BLOCK_TOKENS)]
    tenants: Annotated[tuple[Tenant, ...], Meta(min_length=1, max_length=MAX_TENANTS)]
    salts: Annotated[dict[Text, Tenant], Meta(max_length=MAX_SALTS)] = {}
    pooled: bool = False
    # Where events come from; None for those that are pushed.
    endpoint: Text | None = None
    replay_endpoint: Text | None = None
    # What we do at `endpoint`; a replay endpoint is always connected to.
    attach: Attach = Attach.CONNECT
    # Frames of other topics are not taken; a prefix, empty for all.
    topic: Label = ""
    # The node that it runs on, as workers name theirs.
    node: Name | None = None
    # All KV cache groups of the model. One that no event has told of has nothing; without any, the
    # groups are those that events told of.
    groups: Annotated[tuple[GroupSpec, ...], Meta(max_length=MAX_GROUPS)] = ()
    # What lookups of the bridge may answer with where its blocks cover a prompt: registrations
    # without tokens, for their descriptor and evidence.
    states: Annotated[tuple[Registration, ...], Meta(max_length=MAX_STATES)] = ()

    @property
    def names_tenants(self) -> bool:
        """Whether its events say whose a block is: then unsalted ones may be one tenant's."""
        return self.kind is EngineKind.MOONCAKE

    @property
    def key(self) -> EngineKey:
        return EngineKey(self.instance_id, self.dp_rank)
