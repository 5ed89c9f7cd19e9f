"""Observe, for materialize: one decision for every answer, one outcome for every execution."""

from typing import Final
from uuid import UUID

import msgspec

from app.clock import Clock, IdSource
from app.contract.execution import BackendActionResult
from app.contract.transitions import LifecycleState, path
from app.decisions.record import (
    INPUTS_VERSION,
    Decision,
    DecisionKind,
    DecisionOutcome,
    Outcome,
    OutcomeStatus,
)
from app.decisions.writer import DecisionSink
from app.errors import NexusError
from app.execution.grants import OptionGrant
from app.execution.receipt import Receipt
from app.index.repository import StoredState
from app.lifecycle.caller import Caller
from app.lifecycle.queries import MaterializeQuery
from app.policy.document import ExecutionPolicy

_S = LifecycleState
_TO_PLANNED: Final = (_S.DESCRIBED, _S.MATCHED, _S.VALIDATED, _S.PLANNED)
_PATH_DONE: Final = list(path(*_TO_PLANNED, _S.RESERVED, _S.MATERIALIZED, _S.OBSERVED))
_PATH_REFUSED: Final = list(path(*_TO_PLANNED, _S.RECOMPUTED, _S.OBSERVED))


class MaterializeRecord:
    """Writes what a materialize came to into the decision sink."""

    def __init__(
        self, sink: DecisionSink, policy: ExecutionPolicy, clock: Clock, ids: IdSource
    ) -> None:
        self._sink = sink
        self._policy = policy
        self._clock = clock
        self._ids = ids

    def materialized(
        self,
        decision_id: UUID,
        query: MaterializeQuery,
        caller: Caller,
        grant: OptionGrant,
        stored: StoredState,
        receipt: Receipt,
        result: BackendActionResult,
    ) -> None:
        self._decision(
            decision_id, query, caller, grant, stored, DecisionOutcome.MATERIALIZED, None,
            grant.estimate_id, receipt.execution_backend,
        )
        self._sink.record_outcome(
            Outcome(
                outcome_id=self._ids.uuid7(),
                created_at=self._clock.now(),
                decision_id=decision_id,
                tenant=grant.tenant,
                status=OutcomeStatus.COMPLETED,
                fallback_reason=None,
                observed_us=self._clock.monotonic_us() - caller.started_us,
                bytes_transferred=receipt.bytes_transferred,
                physical=receipt.physical,
                detail=_json({"v": INPUTS_VERSION, "receipt": receipt, "result": result}),
            )
        )

    def replayed(
        self,
        decision_id: UUID,
        query: MaterializeQuery,
        caller: Caller,
        grant: OptionGrant,
        first_id: UUID | None,
    ) -> None:
        self._decision(
            decision_id, query, caller, grant, None, DecisionOutcome.REPLAYED, None,
            first_id or grant.estimate_id, None,
        )

    def refused(
        self,
        decision_id: UUID,
        query: MaterializeQuery,
        caller: Caller,
        grant: OptionGrant | None,
        stored: StoredState | None,
        error: NexusError,
    ) -> None:
        outcome = DecisionOutcome.UNAVAILABLE if error.retryable else DecisionOutcome.REJECTED
        self._decision(
            decision_id, query, caller, grant, stored, outcome, error.code.value,
            grant.estimate_id if grant else None, None,
        )

    def _decision(
        self,
        decision_id: UUID,
        query: MaterializeQuery,
        caller: Caller,
        grant: OptionGrant | None,
        stored: StoredState | None,
        outcome: DecisionOutcome,
        reason: str | None,
        parent_id: UUID | None,
        selected_path: str | None,
    ) -> None:
        done = outcome in (DecisionOutcome.MATERIALIZED, DecisionOutcome.REPLAYED)
        inputs = {
            "v": INPUTS_VERSION,
            "option_id": query.option_id,
            "import_id": query.import_id,
            "target_engine_id": query.target_engine_id,
            "sink_namespace": query.sink_namespace,
            "sink_value": query.sink_value,
            "matched_tokens": grant.matched_tokens if grant else None,
            "generation": grant.generation if grant else None,
            "estimated_transfer_us": grant.transfer_us if grant else None,
        }
        self._sink.record(
            Decision(
                decision_id=decision_id,
                created_at=self._clock.now(),
                tenant=grant.tenant if grant else caller.tenant_for_record(),
                namespace=stored.namespace if stored else "",
                model=stored.model if stored else "",
                kind=DecisionKind.MATERIALIZE,
                outcome=outcome,
                fallback_reason=reason,
                identity_hash=grant.identity_hash if grant else None,
                parent_id=parent_id,
                root_id=grant.lookup_id if grant else decision_id,
                key_id=caller.principal.key_id,
                trace_id=caller.trace_id or decision_id.hex,
                policy_version=self._policy.version,
                entry_id=stored.entry_id if stored else None,
                state_id=grant.state_id if grant else None,
                match=None,
                compatibility=None,
                excluded="[]",
                estimate=None,
                selected_path=selected_path,
                path=_PATH_DONE if done else _PATH_REFUSED,
                index_revision=0,
                latency_us=self._clock.monotonic_us() - caller.started_us,
                inputs=_json(inputs),
            )
        )


def _json(value: object) -> str:
    return msgspec.json.encode(value).decode()
