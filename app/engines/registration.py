"""What an operator says of an engine: where its events are, and what its blocks are made of."""

from enum import StrEnum
from typing import Final, NamedTuple

import msgspec

MAX_ENGINES: Final = 4_096
MAX_TENANTS: Final = 64
MAX_SALTS: Final = 1_024


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

    instance_id: str
    dp_rank: int = 0
    kind: EngineKind = EngineKind.VLLM
    model: str
    # Of the weights; blocks of another revision are other blocks.
    revision: str = ""
    # Parallel layout and the like: whatever else makes blocks of equal tokens differ.
    layout: str = ""
    # Tokens a block, as the engine's events have it.
    block_tokens: int
    tenants: tuple[str, ...]
    salts: dict[str, str] = {}
    pooled: bool = False
    # Where events come from; None for those that are pushed.
    endpoint: str | None = None
    replay_endpoint: str | None = None
    attach: Attach = Attach.CONNECT
    topic: str = ""
    # The node that it runs on, as workers name theirs.
    node: str | None = None

    @property
    def key(self) -> EngineKey:
        return EngineKey(self.instance_id, self.dp_rank)
