"""The third slice: reserve, execute, commit or fall back, observe.

The option's claim is one row: taken before execution, consumed with the receipt after it. Whoever
repeats a consumed import with the same sink gets the stored receipt again, even after expiry.
"""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Final
from uuid import UUID

import msgspec

from app.clock import Clock
from app.contract.enums import Disposition
from app.contract.transitions import LifecycleState
from app.db.session import Database
from app.decisions.record import DecisionKind, DecisionOutcome
from app.errors import ErrorCode, NexusError
from app.execution.backend import not_ordered, sink_location
from app.execution.claims import ClaimRequest, StoredClaim
from app.execution.grants import OptionGrant
from app.execution.receipt import Receipt
from app.lifecycle.caller import Caller, Refused
from app.lifecycle.materialize_plan import FindSink, PlanMaterialize, Workers, payload_handle
from app.lifecycle.materialize_steps import (
    Consume,
    Execute,
    Fallback,
    Passage,
    Reserve,
    Settle,
    other_sink,
)
from app.lifecycle.observe import Attempt, Observer
from app.lifecycle.queries import MaterializeQuery
from app.lifecycle.recheck import SeenStates
from app.lifecycle.steps import End, Step, Steps
from app.transfer.wire import SINK_NAMESPACE

_FENCE_MASK: Final = (1 << 62) - 1
_S = LifecycleState


@dataclass(frozen=True, slots=True)
class Materialized:
    """The receipt; `replayed` when it is one that was given before."""

    receipt: Receipt
    replayed: bool
    decision_id: UUID


class Materialize:
    """Consumes options: into a worker's sink with bytes, into any other by the protocol alone."""

    def __init__(
        self,
        database: Database,
        observer: Observer,
        workers: Workers,
        steps: Steps,
        *,
        clock: Clock,
        claim_ttl_s: float,
    ) -> None:
        self._database = database
        self._observer = observer
        self._workers = workers
        self._steps = steps
        self._clock = clock
        self._seen = SeenStates()
        self._claim_ttl = timedelta(seconds=claim_ttl_s)

    async def run(self, query: MaterializeQuery, caller: Caller) -> Materialized | Refused:
        """Exactly one decision is recorded, and one outcome when something was tried."""
        attempt = self._observer.begin(DecisionKind.MATERIALIZE, caller, _inputs(query))
        try:
            grant = _honoured(query, attempt)
            claim = self._claim_request(attempt, query, grant)
            passage = Passage(attempt, query, grant, claim, attempt.active)
            end = await self._steps.run(self._steps_of(passage))
            if end is End.DONE:
                return self._replay(passage)
        except NexusError as error:
            self._observer.refused(attempt, error)
            return Refused(error, attempt.decision_id)
        except asyncio.CancelledError:
            self._observer.cancelled(attempt)
            raise
        except Exception as error:
            self._observer.failed(attempt, error)
            raise
        attempt.inputs.update(passage.notes)
        if end is End.FALL_BACK:
            assert passage.fallback is not None
            return self._fell_back(passage, passage.fallback)
        return self._materialized(passage)

    def _steps_of(self, passage: Passage) -> Sequence[Step]:
        plan = PlanMaterialize(passage, self._workers).plan
        physical = passage.query.sink_namespace == SINK_NAMESPACE
        return (
            *((FindSink(passage, self._workers),) if physical else ()),
            Reserve(passage, self._database, self._clock, self._seen, plan),
            Execute(passage, lambda: self._workers.left_s(passage.attempt)),
            *((Settle(passage, self._database, self._clock),) if physical else ()),
            Consume(passage, self._database, self._clock),
        )

    def _claim_request(
        self, attempt: Attempt, query: MaterializeQuery, grant: OptionGrant
    ) -> ClaimRequest:
        now = self._clock.now()
        return ClaimRequest(
            option_id=grant.option_id,
            tenant=grant.tenant,
            import_id=query.import_id,
            sink_namespace=query.sink_namespace,
            sink_value=query.sink_value,
            fence=attempt.decision_id.int & _FENCE_MASK,
            decision_id=attempt.decision_id,
            now=now,
            expires_at=now + self._claim_ttl,
        )

    def _materialized(self, passage: Passage) -> Materialized:
        attempt, receipt = passage.attempt, passage.receipt
        assert receipt is not None
        attempt.selected_path = receipt.execution_backend
        # An acknowledged protocol is no movement: nothing was materialized by us.
        attempt.reached(_S.MATERIALIZED if receipt.physical else _S.SKIPPED, _S.OBSERVED)
        self._observer.decided(
            attempt,
            DecisionOutcome.MATERIALIZED if receipt.physical else DecisionOutcome.ACKNOWLEDGED,
        )
        self._observer.completed(
            attempt,
            bytes_transferred=receipt.bytes_transferred,
            physical=receipt.physical,
            detail={"receipt": receipt, "result": passage.result},
        )
        return Materialized(receipt, False, attempt.decision_id)

    def _fell_back(self, passage: Passage, fallback: Fallback) -> Refused:
        attempt, stored = passage.attempt, passage.attempt.stored
        attempt.rejected = fallback.rejected
        result = fallback.result
        if result is None and stored is not None:
            result = not_ordered(
                Disposition.MATERIALIZE,
                payload_handle(stored, passage.grant.matched_tokens),
                sink_location(passage.query.sink_namespace, passage.query.sink_value),
                fallback.disposition,
                fallback.reason,
                detail=fallback.detail,
            )
        self._observer.fell_back(
            attempt,
            reason=fallback.reason,
            disposition=fallback.disposition,
            detail={"detail": fallback.detail, "result": result},
        )
        error = NexusError(
            ErrorCode.MATERIALIZATION_UNAVAILABLE,
            f"not executed ({fallback.reason}): {fallback.detail}; {fallback.disposition} instead, "
            "or try the option again",
        )
        return Refused(error, attempt.decision_id)

    def _replay(self, passage: Passage) -> Materialized:
        attempt, found = passage.attempt, passage.consumed
        assert found is not None
        _check_same(passage.claim, found)
        assert found.receipt is not None
        receipt = msgspec.json.decode(found.receipt, type=Receipt)
        attempt.parent_id = found.decision_id or attempt.parent_id
        # Nothing runs a second time.
        attempt.reached(_S.SKIPPED, _S.OBSERVED)
        self._observer.decided(attempt, DecisionOutcome.REPLAYED)
        return Materialized(receipt, True, attempt.decision_id)


def _check_same(claim: ClaimRequest, found: StoredClaim) -> None:
    if found.same_import(claim):
        return
    if found.import_id == claim.import_id:
        raise other_sink()
    raise NexusError(
        ErrorCode.MATERIALIZATION_OPTION_CONSUMED, "the option was consumed by another import"
    )


def _inputs(query: MaterializeQuery) -> dict[str, object]:
    grant = query.grant
    return {
        "option_id": query.option_id,
        "import_id": query.import_id,
        "target_engine_id": query.target_engine_id,
        "sink_namespace": query.sink_namespace,
        "sink_value": query.sink_value,
        "estimated_transfer_us": grant.transfer_us if grant else None,
    }


def _honoured(query: MaterializeQuery, attempt: Attempt) -> OptionGrant:
    if query.option_id is None:
        raise NexusError(
            ErrorCode.UNKNOWN_MATERIALIZATION_OPTION, "no option of this service has that id"
        )
    grant = query.grant
    if (
        grant is None
        or grant.option_id != query.option_id
        or not attempt.caller.principal.may_use(grant.tenant)
    ):
        raise NexusError(
            ErrorCode.MATERIALIZATION_OPTION_MISMATCH,
            "option_handle is not valid for option_id; estimate again",
        )
    attempt.grant, attempt.parent_id = grant, grant.estimate_id
    attempt.reached(_S.MATCHED, _S.VALIDATED, _S.PLANNED)
    if query.target_digest != grant.target_digest:
        raise NexusError(
            ErrorCode.MATERIALIZATION_TARGET_MISMATCH,
            "the target is not the one that the option was estimated for",
        )
    return grant
