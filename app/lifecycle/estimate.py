"""The second slice: plan, observe. A source handle becomes a priced option; nothing is written."""

from dataclasses import dataclass
from typing import Final
from uuid import UUID

from app.clock import Clock, IdSource
from app.contract.enums import Disposition
from app.contract.transitions import LifecycleState
from app.db.session import Database
from app.decisions.record import DecisionKind, DecisionOutcome
from app.errors import ErrorCode, NexusError
from app.execution.grants import OptionGrant, SourceGrant
from app.execution.situation import price
from app.index.repository import StoredState
from app.lifecycle.caller import Caller, Refused
from app.lifecycle.observe import Attempt, Observer
from app.lifecycle.placing import (
    Asked,
    Directory,
    Placement,
    by_engine,
    concerns_workers,
    place,
    sink_on,
)
from app.lifecycle.queries import EstimateQuery
from app.lifecycle.recheck import named_state, stands
from app.planner.cost import TransferEstimate

_US_PER_S: Final = 1_000_000
_S = LifecycleState


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
        observer: Observer,
        directory: Directory,
        *,
        clock: Clock,
        ids: IdSource,
        option_ttl_s: float,
    ) -> None:
        self._database = database
        self._observer = observer
        self._directory = directory
        self._clock = clock
        self._ids = ids
        self._ttl_us = round(option_ttl_s * _US_PER_S)

    async def run(self, query: EstimateQuery, caller: Caller) -> Priced | Refused:
        """Exactly one decision is recorded, whatever the answer."""
        attempt = self._observer.begin(DecisionKind.ESTIMATE, caller, _inputs(query))
        try:
            grant = self._honoured(query, attempt)
            async with self._database.read() as session:
                attempt.stored = await named_state(session, grant)
            stored = _checked(query, grant, attempt.stored)
            attempt.reached(_S.VALIDATED)
            if refused := self._place(query, attempt, grant, stored):
                return refused
            priced = self._price(query, attempt, grant, stored)
        except NexusError as error:
            self._observer.refused(attempt, error)
            return Refused(error, attempt.decision_id)
        except Exception as error:
            self._observer.failed(attempt, error)
            raise
        return priced

    def _honoured(self, query: EstimateQuery, attempt: Attempt) -> SourceGrant:
        grant = query.grant
        # Another tenant's handle is answered, and recorded, as if it were nobody's.
        if grant is None or not attempt.caller.principal.may_use(grant.tenant):
            raise _handle_mismatch()
        attempt.grant, attempt.parent_id = grant, grant.lookup_id
        attempt.reached(_S.MATCHED)
        if grant.expires_us < self._clock.now_us():
            raise _handle_mismatch()
        return grant

    def _place(
        self, query: EstimateQuery, attempt: Attempt, grant: SourceGrant, stored: StoredState
    ) -> Refused | None:
        """Between two workers a backend must be able and allowed to act; it is noted which."""
        asked = Asked(
            action=Disposition.MATERIALIZE,
            stored=stored,
            tokens=grant.matched_tokens,
            target_worker=query.target_residency,
            location=sink_on(query.target_residency, ""),
        )
        if not concerns_workers(self._directory, stored.locator, query.target_residency):
            attempt.situation = by_engine(asked)
            return None
        attempt.situation, placed = place(self._directory, asked, attempt.active.policy)
        if isinstance(placed, Placement):
            attempt.chose(placed.selection)
            attempt.inputs["backend"] = placed.selection.registration.backend
            attempt.inputs["degraded_from"] = placed.selection.degraded_from
            return None
        attempt.rejected = placed.rejected
        self._observer.fell_back(
            attempt, reason=placed.reason, disposition=placed.disposition, detail={}
        )
        error = NexusError(
            ErrorCode.MATERIALIZATION_UNAVAILABLE,
            f"no backend may bring this state there now ({placed.reason}): {placed.disposition}",
        )
        return Refused(error, attempt.decision_id)

    def _price(
        self, query: EstimateQuery, attempt: Attempt, grant: SourceGrant, stored: StoredState
    ) -> Priced:
        assert attempt.situation is not None
        estimate = price(attempt.situation, self._observer.costs_of(attempt))
        option = OptionGrant(
            option_id=self._ids.uuid7(),
            tenant=grant.tenant,
            state_id=grant.state_id,
            generation=grant.generation,
            matched_tokens=grant.matched_tokens,
            identity_hash=grant.identity_hash,
            target_digest=query.target_digest,
            lookup_id=grant.lookup_id,
            estimate_id=attempt.decision_id,
            transfer_us=estimate.transfer_us,
            target_residency=query.target_residency,
            expires_us=self._clock.now_us() + self._ttl_us,
        )
        attempt.estimate = estimate
        attempt.selected_path = (
            estimate.topology_path or f"{stored.tier}->local@{query.target_residency}"
        )
        attempt.reached(_S.PLANNED)
        self._observer.decided(attempt, DecisionOutcome.ESTIMATED)
        return Priced(option, estimate, attempt.decision_id)


def _inputs(query: EstimateQuery) -> dict[str, object]:
    return {
        "source_state": query.source_state,
        "source_locator": query.source_locator,
        "source_tier": query.source_tier,
        "target_id": query.target_id,
        "target_engine_id": query.target_engine_id,
        "target_engine_generation": query.target_engine_generation,
        "target_residency": query.target_residency,
    }


def _checked(query: EstimateQuery, grant: SourceGrant, stored: StoredState | None) -> StoredState:
    if stored is None or not stands(stored, grant):
        raise _handle_mismatch()
    if stored.entry_id != query.source_state:
        raise NexusError(
            ErrorCode.SOURCE_STATE_MISMATCH, "source_state is not the state of the source handle"
        )
    if (stored.locator, stored.tier) != (query.source_locator, query.source_tier):
        raise NexusError(
            ErrorCode.SOURCE_LOCATION_MISMATCH,
            "source_locator or source_tier is not where the state of the source handle lies",
        )
    return stored


def _handle_mismatch() -> NexusError:
    return NexusError(
        ErrorCode.SOURCE_HANDLE_MISMATCH,
        "the source handle is not valid here or no longer; look the input up again",
    )
