"""Observe, for the two slices that ask Postgres: what is known of an attempt becomes a decision."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Protocol
from uuid import UUID

import msgspec

from app.clock import Clock, IdSource
from app.contract.enums import Disposition, FallbackReason, TransferStatus
from app.contract.execution import BackendActionResult
from app.contract.transitions import LifecycleState, path
from app.decisions.record import (
    INPUTS_VERSION,
    Action,
    Decision,
    DecisionKind,
    DecisionOutcome,
    Outcome,
    OutcomeStatus,
    made_at,
)
from app.errors import ErrorCode, NexusError
from app.execution.catalog import Rejection, Selection
from app.execution.grants import OptionGrant, SourceGrant
from app.execution.situation import Situation, price
from app.index.matcher import StateIndex
from app.index.repository import StoredState
from app.lifecycle.caller import Caller
from app.lifecycle.keeping import DecisionSink, durability_of
from app.lifecycle.tally import Tally
from app.planner.cost import TransferEstimate
from app.planner.transfer_costs import ProfileCosts, recorded_link
from app.policy.document import QuotaMode
from app.policy.provider import ActivePolicy

_CANCELLED: Final = "cancelled"


@dataclass(slots=True)
class Attempt:
    """One request on its way; the steps add what they learn, and observing reads it."""

    kind: DecisionKind
    decision_id: UUID
    caller: Caller
    inputs: dict[str, Any]
    active: ActivePolicy
    grant: SourceGrant | OptionGrant | None = None
    stored: StoredState | None = None
    parent_id: UUID | None = None
    estimate: TransferEstimate | None = None
    selected_path: str | None = None
    # What the plan was made from, once it was.
    situation: Situation | None = None
    selection: Selection | None = None
    rejected: Sequence[Rejection] = ()
    # How long the bytes took, by the clock of the worker that verified them.
    transfer_us: int | None = None
    # Of a request that names its tenant, once the caller is known to have it.
    named_tenant: str | None = None
    # By what it is priced, once it is.
    costs: ProfileCosts | None = None
    steps: list[LifecycleState] = field(default_factory=lambda: [LifecycleState.DESCRIBED])

    def reached(self, *states: LifecycleState) -> None:
        """Note the states that this attempt has come to."""
        self.steps += states

    def chose(self, selection: Selection) -> None:
        """Note which backend is to act, and which may not."""
        self.selection, self.rejected = selection, selection.rejected

    def backend(self) -> str | None:
        """Which kind of backend is to act, or acted."""
        return None if self.selection is None else self.selection.registration.backend.value

    def predicted_us(self) -> int | None:
        """How long bringing the state was estimated to take: where an option was made of it, when
        that was made.
        """
        if isinstance(self.grant, OptionGrant):
            return self.grant.transfer_us
        return None if self.estimate is None else self.estimate.transfer_us

    def tokens(self) -> int | None:
        """Of how much state it is about, once that is known."""
        if self.grant is not None:
            return self.grant.matched_tokens
        return None if self.situation is None else self.situation.tokens

    def tenant(self) -> str:
        """Under which tenant it is recorded."""
        if self.grant is not None:
            return self.grant.tenant
        return self.named_tenant or self.caller.tenant_for_record()


class Policies(Protocol):
    """Where the policy in force is read."""

    @property
    def current(self) -> ActivePolicy: ...


class CostBook(Protocol):
    """What things cost, for a model at an engine."""

    def of(self, model: str, engine_id: str | None) -> ProfileCosts: ...


class Observer:
    """Writes attempts into the decision sink."""

    def __init__(
        self,
        sink: DecisionSink,
        policies: Policies,
        index: StateIndex,
        costs: CostBook,
        *,
        clock: Clock,
        ids: IdSource,
        tally: Tally | None = None,
    ) -> None:
        self._tally = tally or Tally()
        self._costs = costs
        self._sink = sink
        self._index = index
        self._policies = policies
        self._clock = clock
        self._ids = ids

    def begin(self, kind: DecisionKind, caller: Caller, inputs: dict[str, Any]) -> Attempt:
        """A new attempt, under the policy that is in force now.

        `inputs` is what is known before anything is asked.
        """
        return Attempt(kind, self._ids.uuid7(), caller, inputs, self._policies.current)

    def refused(self, attempt: Attempt, error: NexusError) -> None:
        """The attempt ended in `error`: rejected for good, or unavailable for now."""
        outcome = DecisionOutcome.UNAVAILABLE if error.retryable else DecisionOutcome.REJECTED
        attempt.reached(LifecycleState.RECOMPUTED, LifecycleState.OBSERVED)
        self.decided(attempt, outcome, reason=error.code.value)

    def cancelled(self, attempt: Attempt) -> None:
        """The caller went away before there was an answer."""
        attempt.reached(LifecycleState.SKIPPED, LifecycleState.OBSERVED)
        self._tally.cancelled(attempt.kind)
        self.decided(attempt, DecisionOutcome.UNAVAILABLE, reason=_CANCELLED)

    def fell_back(
        self,
        attempt: Attempt,
        *,
        reason: FallbackReason,
        disposition: Disposition,
        detail: dict[str, Any],
        status: TransferStatus = TransferStatus.FALLBACK,
    ) -> None:
        """Nothing was executed: the decision and, as its outcome, what was tried.

        `status` is how the transfer ended, where `detail` has no `result` that says so.
        """
        recomputed = disposition is Disposition.RECOMPUTE
        attempt.reached(
            LifecycleState.RECOMPUTED if recomputed else LifecycleState.SKIPPED,
            LifecycleState.OBSERVED,
        )
        self.decided(attempt, DecisionOutcome.UNAVAILABLE, reason=reason.value)
        self._record_outcome(
            attempt,
            OutcomeStatus.FELL_BACK,
            0,
            physical=False,
            reason=reason.value,
            detail=detail,
            transfer=_ended(detail.get("result"), attempt, status),
        )

    def failed(self, attempt: Attempt, error: Exception) -> None:
        """The attempt ended in a fault of ours, which the caller is told as `internal_error`."""
        self.refused(attempt, NexusError(ErrorCode.INTERNAL_ERROR, type(error).__name__))

    def decided(
        self,
        attempt: Attempt,
        outcome: DecisionOutcome,
        *,
        reason: str | None = None,
    ) -> None:
        """Record the decision of this attempt."""
        if outcome is not DecisionOutcome.REPLAYED:
            self._tally.chose(attempt.kind, attempt.selection, attempt.rejected)
        if (quota := attempt.inputs.get("quota")) is not None:
            self._tally.exceeded(attempt.kind, quota["mode"], quota["exceeded"])
        grant, stored, caller = attempt.grant, attempt.stored, attempt.caller
        situation, tokens = attempt.situation, attempt.tokens()
        if attempt.estimate is None and situation is not None:
            attempt.estimate = price(situation, self.costs_of(attempt))
        root_id = grant.lookup_id if grant else attempt.decision_id
        self._sink.record(
            Decision(
                decision_id=attempt.decision_id,
                created_at=made_at(attempt.decision_id),
                tenant=attempt.tenant(),
                namespace=stored.namespace if stored else "",
                model=stored.model if stored else "",
                kind=attempt.kind,
                outcome=outcome,
                fallback_reason=reason,
                identity_hash=grant.identity_hash if grant else None,
                parent_id=attempt.parent_id,
                root_id=root_id,
                key_id=caller.principal.key_id,
                trace_id=caller.trace_id,
                policy_version=attempt.active.label,
                entry_id=stored.entry_id if stored else None,
                state_id=grant.state_id if grant else None,
                match=None,
                compatibility=None,
                excluded=_json(attempt.rejected),
                estimate=_json(attempt.estimate) if attempt.estimate else None,
                selected_path=attempt.selected_path,
                path=list(path(*attempt.steps)),
                index_revision=self._index.revision,
                latency_us=self._clock.monotonic_us() - caller.started_us,
                inputs=_json(self._inputs(attempt)),
                action=_action(attempt, outcome).value,
                backend=attempt.backend(),
                tier=stored.tier if stored else None,
                target=_target(attempt),
                durability=durability_of(attempt.active.policy, attempt.kind).value,
                matched_tokens=tokens,
                predicted_us=attempt.predicted_us(),
                recompute_us=self._recompute_us(attempt),
            )
        )

    def _inputs(self, attempt: Attempt) -> dict[str, Any]:
        """All that plan and policy need to be run again; see `rerun`."""
        grant, situation, costs = attempt.grant, attempt.situation, self.costs_of(attempt)
        link = None
        if situation is not None:
            link = recorded_link(costs, situation.locator, situation.target_residency)
        return {
            "v": INPUTS_VERSION,
            "matched_tokens": grant.matched_tokens if grant else None,
            "generation": grant.generation if grant else None,
            **attempt.inputs,
            "cost_profile": costs.name,
            "profile": costs.profile,
            "hardware": costs.hardware,
            "link": link,
            "situation": situation,
        }

    def costs_of(self, attempt: Attempt) -> ProfileCosts:
        """By what this attempt is priced: the same from its first price to its last."""
        if attempt.costs is None:
            model = attempt.stored.model if attempt.stored else ""
            engine_id = attempt.inputs.get("target_engine_id")
            attempt.costs = self._costs.of(model, engine_id)
        return attempt.costs

    def _recompute_us(self, attempt: Attempt) -> int | None:
        tokens = attempt.tokens()
        return None if tokens is None else self.costs_of(attempt).recompute_us(tokens)

    def completed(
        self, attempt: Attempt, *, bytes_transferred: int, physical: bool, detail: dict[str, Any]
    ) -> None:
        """Record that what was decided was carried out: in bytes, or in the protocol alone."""
        self._record_outcome(
            attempt,
            OutcomeStatus.COMPLETED if physical else OutcomeStatus.REGISTERED,
            bytes_transferred,
            physical=physical,
            detail=detail,
            transfer=TransferStatus.COMPLETED if physical else TransferStatus.REGISTERED,
        )

    def _record_outcome(
        self,
        attempt: Attempt,
        status: OutcomeStatus,
        bytes_transferred: int,
        *,
        physical: bool,
        detail: dict[str, Any],
        transfer: TransferStatus,
        reason: str | None = None,
    ) -> None:
        self._tally.executed(attempt.kind, reason or status.value, transfer, bytes_transferred)
        observed_us = self._clock.monotonic_us() - attempt.caller.started_us
        tokens = attempt.tokens()
        recompute_us = self._recompute_us(attempt)
        self._sink.record_outcome(
            Outcome(
                outcome_id=self._ids.uuid7(),
                created_at=self._clock.now(),
                decision_id=attempt.decision_id,
                tenant=attempt.tenant(),
                status=status,
                fallback_reason=reason,
                observed_us=observed_us,
                bytes_transferred=bytes_transferred,
                physical=physical,
                detail=_json({"v": INPUTS_VERSION, **detail}),
                model=attempt.stored.model if attempt.stored else None,
                kind=attempt.kind.value,
                backend=attempt.backend(),
                policy_version=attempt.active.label,
                tokens=tokens if physical else None,
                predicted_us=attempt.predicted_us(),
                recompute_us=recompute_us,
                # Bytes that are not there spare nobody anything, and a copy only once it is used.
                gain_us=recompute_us - observed_us
                if physical and recompute_us and attempt.kind is DecisionKind.MATERIALIZE
                else None,
                transfer_us=attempt.transfer_us if physical else None,
            )
        )


_ACTIONS: Final = {
    DecisionOutcome.ESTIMATED: Action.TRANSFER,
    DecisionOutcome.MATERIALIZED: Action.TRANSFER,
    DecisionOutcome.TRANSFERRED: Action.TRANSFER,
    DecisionOutcome.ACKNOWLEDGED: Action.REGISTER,
}


def _action(attempt: Attempt, outcome: DecisionOutcome) -> Action:
    """What comes of it: where nothing was executed, the state that it fell back to says so."""
    recomputed = LifecycleState.RECOMPUTED in attempt.steps
    return _ACTIONS.get(outcome, Action.RECOMPUTE if recomputed else Action.SKIP)


def _target(attempt: Attempt) -> str | None:
    found = attempt.inputs.get("target_engine_id") or attempt.inputs.get("target_worker")
    return None if found is None else str(found)


def _ended(
    result: BackendActionResult | None, attempt: Attempt, otherwise: TransferStatus
) -> TransferStatus:
    """How the backend says that the transfer ended; where none was asked, why not."""
    if result is not None and result.transfer_session is not None:
        return result.transfer_session.result.status
    quota = attempt.inputs.get("quota")
    denied = quota is not None and quota["mode"] is QuotaMode.ENFORCED
    return TransferStatus.REJECTED if denied else otherwise


def _json(value: object) -> str:
    return msgspec.json.encode(value).decode()
