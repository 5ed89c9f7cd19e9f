"""Observe, after the fact: what the runtime did with a sink becomes the decision's outcome."""

from collections import Counter
from datetime import UTC, datetime, timedelta
from itertools import product
from typing import Final, Literal, Protocol
from uuid import UUID

import msgspec
import structlog

from app.clock import Clock
from app.contract.enums import FallbackReason
from app.db.session import Database
from app.decisions.record import INPUTS_VERSION, DecisionKind, Outcome, OutcomeStatus
from app.decisions.reports_repository import decisions_reported
from app.errors import ErrorCode, NexusError
from app.execution.claims import StoredClaim
from app.execution.names import option_of
from app.execution.receipt import Receipt
from app.execution.repository import claim_find
from app.lifecycle.journey import payload_charge
from app.quota.charges import release, release_payloads, release_worker
from app.transfer.wire import GonePayload, SinkEvent

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
# A report keeps its own time, so that the same one again is the same row. A worker whose clock is
# further off than this is not believed.
_MAX_SKEW_US: Final = 7 * 86_400 * 1_000_000
_FLUSH_S: Final = 4.0
Result = Literal["matched", "unmatched", "refused"]
_RESULTS: Final[tuple[Result, ...]] = ("matched", "unmatched", "refused")
_STATES: Final = ("consumed", "discarded", "expired")
log = structlog.get_logger("nexuskv.sinks")


class OutcomeSink(Protocol):
    """The decision writer, as far as reports need it."""

    @property
    def recorded(self) -> int: ...

    def record_outcome(self, outcome: Outcome) -> bool: ...

    async def wait_committed(self, seq: int, *, wait_s: float) -> bool: ...


class SinkReports:
    """Takes what workers tell of sinks. Everything may be told twice, and counts once.

    `results` counts every report that was taken, by state and by what was made of it.
    """

    def __init__(self, database: Database, outcomes: OutcomeSink, clock: Clock) -> None:
        self._database = database
        self._outcomes = outcomes
        self._clock = clock
        self.results: Counter[tuple[str, ...]] = Counter(
            dict.fromkeys(product(_STATES, _RESULTS), 0)
        )

    async def take(self, worker: str, event: SinkEvent) -> None:
        """Returns once the report is stored. Raises DATABASE_UNAVAILABLE, or OVERLOADED while the
        receipt for the sink is not stored yet or the history is full: it must come again.

        Whoever has a token may fill a sink by an order of its own, and name in it what it likes. So
        a report counts only for the option that was consumed into this very sink, and only from the
        worker that has it: `worker` is who was authenticated. Any other one is taken, and nothing
        comes of it.
        """
        self.results[event.state, await self._take(worker, event)] += 1

    async def _take(self, worker: str, event: SinkEvent) -> Result:
        option_id = option_of(event.session_id or "")
        if option_id is None:
            return "unmatched"
        async with self._database.write() as session:
            claim = await claim_find(session, option_id)
            if claim is None or (claim.tenant, claim.sink_value) != (event.tenant, event.sink_id):
                return "unmatched"
            if not claim.consumed and claim.claim_expires_at > self._clock.now():
                # The runtime was faster than the receipt, which will charge it and record it.
                raise NexusError(ErrorCode.OVERLOADED, "the receipt is being stored: tell it again")
            await release(session, event.tenant, event.session_id or "", worker=worker)
        if claim.decision_id is None or not _filled_by(worker, claim):
            return "unmatched"
        return await self._record(worker, event, claim.decision_id)

    async def gone(self, worker: str, payloads: tuple[GonePayload, ...]) -> None:
        """The worker has these no more: their tenants are not charged for them any longer.

        Raises DATABASE_UNAVAILABLE.
        """
        charges = [(one.tenant, payload_charge(worker, one.payload_id)) for one in payloads]
        async with self._database.write() as session:
            await release_payloads(session, worker, charges)

    async def lost(self, worker: str, since: datetime) -> None:
        """The worker's process is another one since then, or none, or it was silent for long: what
        was charged for it before is not held now.

        Raises DATABASE_UNAVAILABLE.
        """
        async with self._database.write() as session:
            released = await release_worker(session, worker, since)
        if released:
            log.info("charges_released", worker=worker, charges=released)

    async def _record(self, worker: str, event: SinkEvent, decision_id: UUID) -> Result:
        if abs(event.at_us - self._clock.now_us()) > _MAX_SKEW_US:
            log.error("sink_report_refused", worker=worker, event_id=event.event_id)
            return "refused"
        created_at = _EPOCH + timedelta(microseconds=event.at_us)
        consumed = event.state == "consumed"
        async with self._database.read() as session:
            about = await decisions_reported(session, {decision_id}, None)
        # Its decision may have been lost; that it materialized is known all the same.
        decision = about.get(decision_id)
        kept = self._outcomes.record_outcome(
            Outcome(
                outcome_id=UUID(event.event_id),
                created_at=created_at,
                decision_id=decision_id,
                tenant=event.tenant,
                status=OutcomeStatus(event.state),
                fallback_reason=None if consumed else FallbackReason.ENGINE_POLICY.value,
                observed_us=None,
                # What the worker moved is told by its own outcome.
                bytes_transferred=None,
                # The worker had verified what the runtime took.
                physical=consumed,
                detail=msgspec.json.encode(
                    {
                        "v": INPUTS_VERSION,
                        "worker": worker,
                        "sink_id": event.sink_id,
                        "session_id": event.session_id,
                        "reason": event.reason,
                        "payload_bytes": event.payload_bytes,
                    }
                ).decode(),
                model=decision.model if decision is not None else None,
                kind=DecisionKind.MATERIALIZE.value,
                backend=decision.backend if decision is not None else None,
                policy_version=decision.policy_version if decision is not None else None,
            )
        )
        if not kept:
            raise NexusError(ErrorCode.OVERLOADED, "the history is full: tell it again later")
        if not await self._outcomes.wait_committed(self._outcomes.recorded, wait_s=_FLUSH_S):
            raise NexusError(ErrorCode.DATABASE_UNAVAILABLE, "the outcome could not be stored yet")
        return "matched"


def _filled_by(worker: str, claim: StoredClaim) -> bool:
    """Whether the option is consumed, and it was this worker that verified the bytes."""
    if not claim.consumed or claim.receipt is None:
        return False
    return msgspec.json.decode(claim.receipt, type=Receipt).target_worker == worker
