"""What one decision and one outcome say: rows made once on the request path, never changed after.

Both types mirror the columns of their table, less `writer_id` and `writer_seq`, which the writer
adds. JSON columns hold text that is already encoded, so that a request encodes each value once.
"""

from datetime import datetime
from enum import StrEnum
from typing import NamedTuple, Protocol
from uuid import UUID

from app.contract.enums import Word

# Version of the document in `Decision.inputs`; raise it whenever its fields change meaning.
INPUTS_VERSION = 1


class DecisionKind(Word):
    """The request a decision answered."""

    LOOKUP = "lookup"
    ESTIMATE = "estimate"
    MATERIALIZE = "materialize"
    PREFETCH = "prefetch"
    STORE = "store"


class DecisionOutcome(StrEnum):
    """How the request was answered.

    lookup: `hit`, `miss`, `unknown` (the index could not tell, which is not a miss), `excluded`
    (there were matches and every one was ruled out), `unavailable` (every one lies on a worker that
    is silent or has lost it), `rejected`.
    estimate: `estimated`, `rejected`, `unavailable`.
    materialize: `materialized` (a worker moved and verified the bytes), `acknowledged` (the
    protocol was completed and nothing moved by us), `replayed` (the stored receipt again),
    `rejected`, `unavailable` (nothing was executed, the same request may be tried again).
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
    REPLAYED = "replayed"
    UNAVAILABLE = "unavailable"


class OutcomeStatus(StrEnum):
    """What became of a decision to move state.

    `completed`: a worker verified the bytes at their destination. `registered`: the protocol alone
    was completed. `fell_back`: nothing was executed. The last three are the runtime's own word on a
    sink that was filled for it.
    """

    COMPLETED = "completed"
    REGISTERED = "registered"
    FELL_BACK = "fell_back"
    CONSUMED = "consumed"
    DISCARDED = "discarded"
    EXPIRED = "expired"


class Decision(NamedTuple):
    """One answered lookup, estimate, materialize, prefetch or store.

    `created_at` is aware and lies within an hour of the time inside `decision_id` (uuidv7): that
    is how a decision is found among day partitions. `root_id` is the decision that began the
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


class Outcome(NamedTuple):
    """What happened after a decision. `physical` only when a worker verified the bytes."""

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


class PendingDecision(Protocol):
    """What is known of a decision whose row is made only when its batch is stored."""

    @property
    def decision_id(self) -> UUID: ...

    @property
    def created_us(self) -> int:
        """Wall time in microseconds since the epoch: the row's `created_at`."""

    def fields(self) -> str:
        """The columns of `Decision` in their order, as fields of `app.db.copy_text`; asked once."""


DECISION_COLUMNS = (*Decision._fields, "writer_id", "writer_seq")
OUTCOME_COLUMNS = (*Outcome._fields, "writer_id", "writer_seq")
