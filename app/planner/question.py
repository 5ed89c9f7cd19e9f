"""What a plan is made from: the request, where it may run, and where state of it lies. Pure."""

from collections.abc import Mapping
from typing import Final

from msgspec import Struct

from app.contract.enums import TierKind, Word
from app.planner.links import NO_LINKS, Links
from app.planner.profile import Profile


class PlanExclusion(Word):
    """Why an alternative was not taken."""

    # Known before anything is priced.
    INCOMPATIBLE = "incompatible"
    UNAVAILABLE = "unavailable"
    POLICY_DENIED = "policy_denied"
    UNKNOWN_GENERATION = "unknown_generation"
    QUOTA = "quota"
    # It has no more of the prefix than the target itself.
    NOT_LONGER = "not_longer"
    # The profile knows no path from that tier.
    NO_PATH = "no_path"
    # As many transfers run on the link as it takes.
    LINK_BUSY = "link_busy"
    # The target has no blocks left for the prompt.
    NO_CAPACITY = "no_capacity"
    # The target's queue is longer than the policy lets it grow.
    OVERLOADED = "overloaded"
    # Ready too late.
    DEADLINE = "deadline"
    # Less is gained than is uncertain.
    GAIN_UNCERTAIN = "gain_uncertain"
    # Another alternative is ready sooner.
    SLOWER = "slower"


# What may keep a single pair apart.
PAIR_EXCLUSIONS: Final = (
    PlanExclusion.POLICY_DENIED,
    PlanExclusion.INCOMPATIBLE,
    PlanExclusion.QUOTA,
)


class CostBounds(Struct, frozen=True):
    """What the policy asks of a gain. Its lower bound is the gain less `deviations` times its
    standard deviation; it must be more than `min_gain_us`. `max_queue_us` 0 is no limit.
    """

    deviations: float = 1.0
    min_gain_us: float = 0.0
    max_queue_us: float = 0.0


class Target(Struct, frozen=True):
    """One engine that may run the request. `local_tokens` of its prefix are on its device already.

    None is not known: the term has its default, and says so.
    """

    engine_id: str
    generation: int
    node: str
    profile: Profile
    local_tokens: int = 0
    queue_depth: int | None = None
    queued_prefill_tokens: int | None = None
    running_decode_tokens: int | None = None
    free_tokens: int | None = None
    excluded: PlanExclusion | None = None


class Source(Struct, frozen=True):
    """State of the first `tokens` of the request: so many bytes for each token from the first on,
    and so many whatever part is taken. `bytes_known`: as its descriptor says.
    """

    entry_id: str
    node: str
    tier: TierKind
    tokens: int
    bytes_per_token: float
    fixed_bytes: float = 0.0
    bytes_known: bool = True
    # Whether a part of it can be taken; else it is all of it or nothing.
    partial: bool = True
    excluded: PlanExclusion | None = None


class Question(Struct, frozen=True):
    """`tokens` of the prompt; `deadline_us` from now on. Of sources that cost the same the first is
    taken: give them in an order that every replica has."""

    tokens: int
    targets: tuple[Target, ...]
    sources: tuple[Source, ...] = ()
    links: Links = NO_LINKS
    deadline_us: float | None = None
    bounds: CostBounds = CostBounds()
    # Whether what would be computed is brought all the same where only its gain is uncertain, so
    # that its cost is learnt.
    explore: bool = False
    # Of pairs, by the places of target and source: what keeps them apart.
    barred: Mapping[tuple[int, int], PlanExclusion] = {}
