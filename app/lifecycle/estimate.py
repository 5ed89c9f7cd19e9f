"""The second slice: plan, observe. A source handle becomes a priced option; nothing is written."""

from dataclasses import dataclass
from typing import Final
from uuid import UUID

import msgspec

from app.clock import Clock, IdSource
from app.contract.transitions import LifecycleState, path
from app.db.session import Database
from app.decisions.record import INPUTS_VERSION, Decision, DecisionKind, DecisionOutcome
from app.decisions.writer import DecisionSink
from app.errors import ErrorCode, NexusError
from app.execution.grants import OptionGrant, SourceGrant
from app.index.registry import stored_registration
from app.index.repository import StoredState
from app.lifecycle.caller import Caller, Refused
from app.lifecycle.queries import EstimateQuery
from app.lifecycle.recheck import still_valid
from app.planner.bytes import payload_bytes
from app.planner.cost import CostModel, TransferEstimate
from app.policy.document import ExecutionPolicy

_US_PER_S: Final = 1_000_000
_S = LifecycleState
_PATH_PLANNED: Final = list(path(_S.DESCRIBED, _S.MATCHED, _S.VALIDATED, _S.PLANNED))
_PATH_REFUSED: Final = list(
    path(_S.DESCRIBED, _S.MATCHED, _S.VALIDATED, _S.RECOMPUTED, _S.OBSERVED)
)


@dataclass(frozen=True, slots=True)
class Priced:
    """The option to materialize, and what it is expected to cost."""

    grant: OptionGrant
    estimate: TransferEstimate
    decision_id: UUID


class Estimate:
    """Prices one transfer; Postgres is asked whether the source still stands."""

    def __init__(
        self,
        database: Database,
        sink: DecisionSink,
        cost: CostModel,
        policy: ExecutionPolicy,
        clock: Clock,
        ids: IdSource,
        *,
        option_ttl_s: float,
    ) -> None:
        self._database = database
        self._sink = sink
        self._cost = cost
        self._policy = policy
        self._clock = clock
        self._ids = ids
        self._ttl_us = round(option_ttl_s * _US_PER_S)

    async def run(self, query: EstimateQuery, caller: Caller) -> Priced | Refused:
        """Exactly one decision is recorded, whatever the answer."""
        decision_id = self._ids.uuid7()
        grant = query.grant
        if grant is not None and not caller.principal.may_use(grant.tenant):
            # Another tenant's handle: answered, and recorded, as if it were nobody's.
            grant = None
        if grant is None or grant.expires_us < self._clock.now_us():
            return self._refuse(decision_id, query, caller, grant, None, _HANDLE_MISMATCH)
        try:
            async with self._database.read() as session:
                stored = await still_valid(
                    session, grant.state_id, grant.generation, grant.tenant
                )
        except NexusError as error:
            return self._refuse(decision_id, query, caller, grant, None, error)
        if stored is None:
            return self._refuse(decision_id, query, caller, grant, None, _HANDLE_MISMATCH)
        if stored.entry_id != query.source_state:
            return self._refuse(decision_id, query, caller, grant, stored, _STATE_MISMATCH)
        if (stored.locator, stored.tier) != (query.source_locator, query.source_tier):
            return self._refuse(decision_id, query, caller, grant, stored, _LOCATION_MISMATCH)
        return self._price(decision_id, query, caller, grant, stored)

    def _price(
        self,
        decision_id: UUID,
        query: EstimateQuery,
        caller: Caller,
        grant: SourceGrant,
        stored: StoredState,
    ) -> Priced:
        entry = stored_registration(stored).entry
        estimate = self._cost.estimate(
            tier=entry.location.tier,
            locator=entry.location.locator,
            target_residency=query.target_residency,
            payload_bytes=payload_bytes(entry.descriptor, grant.matched_tokens),
            tokens=grant.matched_tokens,
        )
        option = OptionGrant(
            option_id=self._ids.uuid7(),
            tenant=grant.tenant,
            state_id=grant.state_id,
            generation=grant.generation,
            matched_tokens=grant.matched_tokens,
            identity_hash=grant.identity_hash,
            target_digest=query.target_digest,
            lookup_id=grant.lookup_id,
            estimate_id=decision_id,
            transfer_us=estimate.transfer_us,
            expires_us=self._clock.now_us() + self._ttl_us,
        )
        self._record(
            decision_id, query, caller, grant, stored, DecisionOutcome.ESTIMATED, None, estimate
        )
        return Priced(option, estimate, decision_id)

    def _refuse(
        self,
        decision_id: UUID,
        query: EstimateQuery,
        caller: Caller,
        grant: SourceGrant | None,
        stored: StoredState | None,
        error: NexusError,
    ) -> Refused:
        outcome = DecisionOutcome.UNAVAILABLE if error.retryable else DecisionOutcome.REJECTED
        self._record(
            decision_id, query, caller, grant, stored, outcome, error.code.value, None
        )
        return Refused(error, decision_id)

    def _record(
        self,
        decision_id: UUID,
        query: EstimateQuery,
        caller: Caller,
        grant: SourceGrant | None,
        stored: StoredState | None,
        outcome: DecisionOutcome,
        reason: str | None,
        estimate: TransferEstimate | None,
    ) -> None:
        inputs = {
            "v": INPUTS_VERSION,
            "matched_tokens": grant.matched_tokens if grant else None,
            "generation": grant.generation if grant else None,
            "source_state": query.source_state,
            "source_locator": query.source_locator,
            "source_tier": query.source_tier,
            "target_id": query.target_id,
            "target_engine_id": query.target_engine_id,
            "target_engine_generation": query.target_engine_generation,
            "target_residency": query.target_residency,
        }
        self._sink.record(
            Decision(
                decision_id=decision_id,
                created_at=self._clock.now(),
                tenant=grant.tenant if grant else caller.tenant_for_record(),
                namespace=stored.namespace if stored else "",
                model=stored.model if stored else "",
                kind=DecisionKind.ESTIMATE,
                outcome=outcome,
                fallback_reason=reason,
                identity_hash=grant.identity_hash if grant else None,
                parent_id=grant.lookup_id if grant else None,
                root_id=grant.lookup_id if grant else decision_id,
                key_id=caller.principal.key_id,
                trace_id=caller.trace_id or decision_id.hex,
                policy_version=self._policy.version,
                entry_id=stored.entry_id if stored else None,
                state_id=grant.state_id if grant else None,
                match=None,
                compatibility=None,
                excluded="[]",
                estimate=None if estimate is None else _json(estimate),
                selected_path=None if estimate is None else _selected_path(query, estimate),
                path=_PATH_REFUSED if estimate is None else _PATH_PLANNED,
                index_revision=0,
                latency_us=self._clock.monotonic_us() - caller.started_us,
                inputs=_json(inputs),
            )
        )


def _selected_path(query: EstimateQuery, estimate: TransferEstimate) -> str:
    return estimate.topology_path or f"{query.source_tier}->local@{query.target_residency}"


def _json(value: object) -> str:
    return msgspec.json.encode(value).decode()


_HANDLE_MISMATCH: Final = NexusError(
    ErrorCode.SOURCE_HANDLE_MISMATCH,
    "the source handle is not valid here or no longer; look the input up again",
)
_STATE_MISMATCH: Final = NexusError(
    ErrorCode.SOURCE_STATE_MISMATCH, "source_state is not the state of the source handle"
)
_LOCATION_MISMATCH: Final = NexusError(
    ErrorCode.SOURCE_LOCATION_MISMATCH,
    "source_locator or source_tier is not where the state of the source handle lies",
)
