"""What one decision and one outcome say: rows made once on the request path, never changed after.

Both types mirror the columns of their table, less `writer_id` and `writer_seq`, which the writer
adds. JSON columns hold text that is already encoded, so that a request encodes each value once.
"""

from datetime import UTC, datetime, timedelta
from enum import StrEnum
from typing import Final, NamedTuple
from uuid import UUID

from app.contract.enums import Word

# Version of the document in `Decision.inputs`; raise it whenever its fields change meaning.
# 2: the situation of a plan, the profile it was priced by, the quota it was judged on, and those of
# a lookup that came behind the winner.
INPUTS_VERSION = 2


_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
# Year 9986: adding the length of a chain stays within what datetime can hold.
LAST_ID_MS: Final = 253_000_000_000_000


def made_at(decision_id: UUID) -> datetime:
    """The millisecond in a uuidv7: the `created_at` of its decision, which is found by it.

    Raises ValueError for any other id, or a time that no row of ours can have.
    """
    id_ms = decision_id.int >> 80
    if decision_id.version != 7 or id_ms > LAST_ID_MS:
        raise ValueError("not the id of a decision")
    return _EPOCH + timedelta(milliseconds=id_ms)


class Durability(StrEnum):
    """What holds when an answer leaves: its decision is committed in Postgres, or it is in the
    spool of the machine that answered, or there was no room and it is lost.
    """

    GROUP = "group"
    SPOOLED = "spooled"
    LOST = "lost"


class Action(StrEnum):
    """What a decision comes to, for whoever asked."""

    REUSE = "reuse"
    TRANSFER = "transfer"
    REGISTER = "register"
    RECOMPUTE = "recompute"
    SKIP = "skip"


class LostReason(StrEnum):
    """Why what could have been done was not, where nothing stood against it.

    Of states behind the winner: `shorter_match`, or `ranked_lower` among equal ones. Of backends:
    `lower_priority` in the policy, or of a later registration. Of computing again: `state_found` (a
    lookup only says that there is a state), `dearer`, `caller_decides` (it would be quicker, and
    the caller asked for the transfer), `policy_skips`.
    """

    SHORTER_MATCH = "shorter_match"
    RANKED_LOWER = "ranked_lower"
    LOWER_PRIORITY = "lower_priority"
    STATE_FOUND = "state_found"
    DEARER = "dearer"
    CALLER_DECIDES = "caller_decides"
    POLICY_SKIPS = "policy_skips"


class DecisionKind(Word):
    """The request a decision answered."""

    LOOKUP = "lookup"
    ESTIMATE = "estimate"
    MATERIALIZE = "materialize"
    PREFETCH = "prefetch"
    STORE = "store"
    PLAN = "plan"


class DecisionOutcome(StrEnum):
    """How the request was answered.

    lookup: `hit`, `miss`, `unknown` (the index could not tell, which is not a miss), `excluded`
    (there were matches and every one was ruled out), `unavailable` (every one lies on a worker that
    is silent or has lost it), `rejected`.
    estimate: `estimated`, `rejected`, `unavailable`.
    materialize: `materialized` (a worker moved and verified the bytes), `acknowledged` (the
    protocol was completed and nothing moved by us), `replayed` (the stored receipt again),
    `rejected`, `unavailable` (nothing was executed, the same request may be tried again).
    plan: `planned`.
    prefetch, store: `transferred`, `replayed`, `rejected`, `unavailable`.
    `rejected` is a request answered with a 4xx; malformed bodies make no decision at all.
    """

    HIT = "hit"
    MISS = "miss"
    UNKNOWN = "unknown"
    EXCLUDED = "excluded"
    REJECTED = "rejected"
    ESTIMATED = "estimated"
    MATERIALIZED = "materialized"
    ACKNOWLEDGED = "acknowledged"
    TRANSFERRED = "transferred"
    PLANNED = "planned"
    REPLAYED = "replayed"
    UNAVAILABLE = "unavailable"


class OutcomeStatus(StrEnum):
    """What became of a decision to move state.

    `completed`: a worker verified the bytes at their destination. `registered`: the protocol alone
    was completed. `fell_back`: nothing was executed. The others are the runtime's own word on what
    was there for it; `recomputed`: it computed the tokens again all the same.
    """

    COMPLETED = "completed"
    REGISTERED = "registered"
    FELL_BACK = "fell_back"
    CONSUMED = "consumed"
    DISCARDED = "discarded"
    EXPIRED = "expired"
    RECOMPUTED = "recomputed"


class Decision(NamedTuple):
    """One answered lookup, estimate, materialize, prefetch, store or plan.

    `created_at` is `made_at(decision_id)`, when the request came: that is how a decision is found
    among day partitions. `root_id` is the decision that began the
    chain, its own id for the first; `parent_id` the one before. Where a rejected request names no
    namespace or model, those are "". `identity_hash` is keyed per tenant; token ids appear in no
    column. No text may hold U+0000: Postgres refuses it and the row would be lost.
    """

    decision_id: UUID
    created_at: datetime
    tenant: str
    namespace: str
    model: str
    kind: DecisionKind
    outcome: DecisionOutcome
    fallback_reason: str | None
    identity_hash: bytes | None
    parent_id: UUID | None
    root_id: UUID
    key_id: str
    trace_id: str | None
    policy_version: str
    entry_id: str | None
    state_id: UUID | None
    match: str | None
    compatibility: str | None
    excluded: str
    estimate: str | None
    selected_path: str | None
    path: list[str]
    index_revision: int
    latency_us: int
    inputs: str
    # None where a row has no such thing.
    action: str | None = None
    backend: str | None = None
    tier: str | None = None
    target: str | None = None
    freshness: str | None = None
    durability: str | None = None
    query_tokens: int | None = None
    matched_tokens: int | None = None
    # Bringing the state, and computing it again instead.
    predicted_us: int | None = None
    recompute_us: int | None = None


class Outcome(NamedTuple):
    """What happened after a decision. `physical` only when a worker verified the bytes.

    What it has of its decision's columns is copied, so that it can be summed up alone. `gain_us` is
    what was not computed again, less what was spent instead: `recompute_us` - `observed_us`.
    """

    outcome_id: UUID
    created_at: datetime
    decision_id: UUID
    tenant: str
    status: OutcomeStatus
    fallback_reason: str | None
    observed_us: int | None
    bytes_transferred: int | None
    physical: bool
    detail: str
    model: str | None = None
    kind: str | None = None
    backend: str | None = None
    policy_version: str | None = None
    tokens: int | None = None
    predicted_us: int | None = None
    recompute_us: int | None = None
    gain_us: int | None = None
    # Of that, how long the bytes took, by the clock of the worker that verified them.
    transfer_us: int | None = None


DECISION_COLUMNS = (*Decision._fields, "writer_id", "writer_seq")
OUTCOME_COLUMNS = (*Outcome._fields, "writer_id", "writer_seq")
