"""What an operator says of an engine: where its events are, and what its blocks are made of."""

from enum import StrEnum
from typing import Annotated, Final, NamedTuple

import msgspec
from msgspec import Meta

from app.contract.registration import Registration

MAX_STATES: Final = 64
MAX_ENGINES: Final = 4_096
MAX_TENANTS: Final = 64
MAX_SALTS: Final = 1_024
MAX_BLOCK_TOKENS: Final = 65_536
MAX_DP_RANK: Final = 65_535

Name = Annotated[str, Meta(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,127}$", max_length=128)]
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


class EngineSpec(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One registration. Its blocks belong to `tenants`:

    - one tenant: everything is that tenant's, salted or not;
    - several: only blocks salted with one of `salts` (a salt -> its tenant), the rest is not
      indexed, unless `pooled` says that unsalted blocks are shared by all of them.
    """

    instance_id: Name
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
    # What lookups of the bridge may answer with where its blocks cover a prompt: registrations
    # without tokens, for their descriptor and evidence.
    states: Annotated[tuple[Registration, ...], Meta(max_length=MAX_STATES)] = ()

    @property
    def key(self) -> EngineKey:
        return EngineKey(self.instance_id, self.dp_rank)
