"""What is kept of a decision when its answer leaves, and what waits for that."""

from typing import Protocol
from uuid import UUID

from app.decisions.record import Decision, DecisionKind, Durability, Outcome
from app.errors import ErrorCode, NexusError
from app.policy.document import ExecutionPolicy
from app.policy.provider import ActivePolicy

# What only asks goes on when nothing can be kept; what moves bytes is not begun.
_ASKING = frozenset({DecisionKind.LOOKUP, DecisionKind.ESTIMATE, DecisionKind.PLAN})


class DecisionSink(Protocol):
    """Where the pipeline leaves what it decided. Nothing here blocks, waits or raises; False
    where there was no room, and the row is lost and counted.
    """

    def append(self, payload: bytes) -> bool: ...

    def record(self, decision: Decision) -> bool: ...

    def record_outcome(self, outcome: Outcome) -> bool: ...


class KeptRows(Protocol):
    """What has become of rows."""

    @property
    def recorded(self) -> int: ...

    @property
    def full(self) -> bool: ...

    @property
    def lost_rows(self) -> int: ...

    async def wait_committed(self, seq: int, *, wait_s: float) -> bool: ...


class Policies(Protocol):
    @property
    def current(self) -> ActivePolicy: ...


def durability_of(policy: ExecutionPolicy, kind: DecisionKind) -> Durability:
    """What is promised of a decision before its answer leaves: the policy's word, else `spooled`
    for what only asks and `group` for what moves bytes.
    """
    word = policy.history_durability.get(kind.value)
    if word is not None:
        return Durability(word)
    return Durability.SPOOLED if kind in _ASKING else Durability.GROUP


class Keeping:
    """Of one process. `wait_s` is how long an answer waits for its decision's commit."""

    def __init__(self, rows: KeptRows, policies: Policies, *, wait_s: float) -> None:
        self._rows = rows
        self._policies = policies
        self._wait_s = wait_s
        # Answers that left with less than they were to wait for.
        self.late = 0

    @property
    def lost_rows(self) -> int:
        return self._rows.lost_rows

    def wanted(self, kind: DecisionKind) -> Durability:
        """What is promised now."""
        return durability_of(self._policies.current.policy, kind)

    def require_room(self, kind: DecisionKind) -> None:
        """Raises OVERLOADED where a decision could not be kept, of a kind that must be."""
        if kind not in _ASKING and self._rows.full:
            raise NexusError(
                ErrorCode.OVERLOADED,
                "The history is full: what moves state is not begun until it is stored. Try again.",
                internal="the spool is full",
            )

    async def kept(
        self, kind: DecisionKind, decision_id: UUID | None, *, lost_before: int
    ) -> Durability | None:
        """What holds of the decision that was just recorded; waits for what was promised.

        None without a decision. `lost_before` is `lost_rows` when its request began: where rows
        were lost since, it may be one of them, and is not said to be kept. An answer that was to
        wait leaves in the end, and says so.
        """
        if decision_id is None:
            return None
        if self._rows.lost_rows != lost_before:
            return Durability.LOST
        if self.wanted(kind) is not Durability.GROUP:
            return Durability.SPOOLED
        if await self._rows.wait_committed(self._rows.recorded, wait_s=self._wait_s):
            return Durability.GROUP
        self.late += 1
        return Durability.SPOOLED
