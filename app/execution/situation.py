"""What a transfer is planned from, besides the policy, and the plan. Pure.

A situation is recorded with its decision: the same one under the same policy is the same choice, so
that a plan can be made again, also under another policy.
"""

from typing import Literal

from msgspec import Struct

from app.contract.descriptor import AttentionStateDescriptor
from app.contract.enums import (
    Disposition,
    FallbackReason,
    MaterializationCapability,
    TierKind,
    TransferBackend,
)
from app.contract.payload import PayloadLocation
from app.contract.sizes import payload_bytes
from app.execution.catalog import (
    BackendRegistration,
    NoSelection,
    Order,
    Selection,
    disposition_after,
    select,
)
from app.planner.cost import CostModel, TransferEstimate
from app.policy.document import ExecutionPolicy
from app.policy.evaluate import FallbackCause

# Whether workers of ours have both ends, and the source is heard and has the payload.
# `engine`: the engine has a way of its own, and nothing is chosen for it.
Ends = Literal["workers", "source_unavailable", "no_path", "engine"]


class Situation(Struct, frozen=True, omit_defaults=True):
    """One state, where it is to go, and who offers to bring it. `tokens` are those to be used."""

    action: Disposition
    tier: TierKind
    locator: str
    tokens: int
    target_residency: str
    target: PayloadLocation
    descriptor: AttentionStateDescriptor
    capability: MaterializationCapability
    ends: Ends
    preferred: TransferBackend | None = None
    offers: tuple[BackendRegistration, ...] = ()


def choose(situation: Situation, policy: ExecutionPolicy) -> Selection | NoSelection:
    """Which backend brings the state there, or why none does. Not for what an engine does."""
    if situation.ends == "source_unavailable":
        return _nothing(situation, policy, FallbackReason.CACHE_MISS, FallbackCause.CACHE_MISS)
    if situation.ends == "no_path":
        no_path = FallbackReason.NO_TRANSFER_PATH
        return _nothing(situation, policy, no_path, FallbackCause.CAPABILITY_MISS)
    order = Order(
        action=situation.action,
        source_tier=situation.tier,
        target=situation.target,
        descriptor=situation.descriptor,
        capability=situation.capability,
        preferred=situation.preferred,
    )
    return select(situation.offers, order, policy)


def price(situation: Situation, costs: CostModel) -> TransferEstimate:
    """What bringing the state there is expected to cost."""
    return costs.estimate(
        tier=situation.tier,
        locator=situation.locator,
        target_residency=situation.target_residency,
        payload_bytes=payload_bytes(situation.descriptor, situation.tokens),
        tokens=situation.tokens,
    )


def _nothing(
    situation: Situation, policy: ExecutionPolicy, reason: FallbackReason, cause: FallbackCause
) -> NoSelection:
    return NoSelection(reason, disposition_after(cause, situation.descriptor, policy), ())
