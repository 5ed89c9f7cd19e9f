"""What a plan is asked for, in the pipeline's own terms and no wire's."""

from collections.abc import Sequence

import msgspec

from app.contract.enums import DeviceClass
from app.contract.evidence import QueryEvidence
from app.engines.plans import Filter
from app.engines.reach import Tier, TierReach
from app.engines.registration import EngineKey
from app.engines.search import Tokens
from app.engines.spaces import Extra
from app.index.registered import ScopeIdentity


class AskedTarget(msgspec.Struct, frozen=True, gc=False):
    """An engine that may run the request, and its load; None is not known.

    `generation` as its `epoch` in answers of `POST /v1/match`. `running_prefill_tokens` are those
    that are computed before this request's, queued ones among them.
    """

    key: EngineKey
    generation: int | None = None
    residency: str | None = None
    device_class: DeviceClass | None = None
    hardware: str | None = None
    queue_depth: int | None = None
    running_prefill_tokens: int | None = None
    running_decode_tokens: int | None = None
    free_blocks: int | None = None
    block_tokens: int | None = None
    parallel_layout: str | None = None


class EngineHolding(msgspec.Struct, frozen=True, gc=False):
    """What an engine has of a prompt, by tier; of which epoch it was said, None for now."""

    key: EngineKey
    tiers: dict[Tier, TierReach]
    epoch: int | None = None
    stale: bool = False


class StateHolding(msgspec.Struct, frozen=True, gc=False):
    """A registered state that was found before."""

    entry_id: str
    generation: int
    matched_tokens: int


class Previous(msgspec.Struct, frozen=True, gc=False):
    """What a match answered before; all of it is checked against what is known now."""

    tokens: int
    engines: tuple[EngineHolding, ...]
    states: tuple[StateHolding, ...]


class PlanQuery(msgspec.Struct, frozen=True, gc=False):
    """Either `tokens` or `previous`. Without `evidence` no registered state may be reused.

    `deadline_us` is from now on.
    """

    wanted: Filter
    targets: Sequence[AskedTarget]
    namespace: str = "default"
    tokens: Tokens | None = None
    tokens_count: int = 0
    extra_keys: Sequence[Extra | None] | None = None
    scope: ScopeIdentity | None = None
    evidence: QueryEvidence | None = None
    previous: Previous | None = None
    deadline_us: float | None = None
