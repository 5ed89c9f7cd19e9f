"""The third slice: reserve, execute, commit or fall back, observe.

The option's claim is one row: taken before execution, consumed with the receipt after it. Whoever
repeats a consumed import with the same sink gets the stored receipt again, even after expiry.
"""

from dataclasses import dataclass
from datetime import timedelta
from typing import Final
from uuid import UUID

import msgspec
import structlog

from app.clock import Clock
from app.contract.enums import (
    ActionStatus,
    Disposition,
    Granularity,
    PayloadOwnership,
    TransferStatus,
)
from app.contract.execution import BackendActionResult
from app.contract.payload import (
    PayloadDescriptor,
    PayloadHandle,
    PayloadLocation,
    StateSliceDescriptor,
)
from app.contract.transitions import LifecycleState
from app.db.session import Database
from app.decisions.record import DecisionKind, DecisionOutcome
from app.errors import ErrorCode, NexusError
from app.execution.backend import Backend, sink_location
from app.execution.claims import ClaimRequest, StoredClaim
from app.execution.grants import OptionGrant
from app.execution.receipt import Receipt
from app.execution.repository import claim_consume, claim_find, claim_release, claim_take
from app.index.registry import stored_registration
from app.index.repository import StoredState
from app.lifecycle.caller import Caller, Refused
from app.lifecycle.observe import Attempt, Observer
from app.lifecycle.queries import MaterializeQuery
from app.lifecycle.recheck import named_state, stands

_FENCE_MASK: Final = (1 << 62) - 1
_PROTOCOL_RECEIPT: Final = "nexuskv.protocol-transfer-receipt.v1"
_S = LifecycleState
log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class Materialized:
    """The receipt; `replayed` when it is one that was given before."""

    receipt: Receipt
    replayed: bool
    decision_id: UUID


class Materialize:
    """Consumes options. `backend` is what carries the order out."""

    def __init__(
        self,
        database: Database,
        observer: Observer,
        backend: Backend,
        *,
        clock: Clock,
        claim_ttl_s: float,
    ) -> None:
        self._database = database
        self._observer = observer
        self._backend = backend
        self._clock = clock
        self._claim_ttl = timedelta(seconds=claim_ttl_s)

    async def run(self, query: MaterializeQuery, caller: Caller) -> Materialized | Refused:
        """Exactly one decision is recorded, and one outcome when something was executed."""
        attempt = self._observer.begin(DecisionKind.MATERIALIZE, caller, _inputs(query))
        try:
            grant = _honoured(query, attempt)
            claim = self._claim_request(attempt, query, grant)
            held = await self._claim(attempt, claim, grant)
            if isinstance(held, StoredClaim):
                return self._replay(attempt, claim, held)
            result = await self._execute(claim, query, grant, held)
            receipt = _receipt(query, grant, result)
            await self._commit(claim, receipt)
        except NexusError as error:
            self._observer.refused(attempt, error)
            return Refused(error, attempt.decision_id)
        except Exception as error:
            self._observer.failed(attempt, error)
            raise
        attempt.selected_path = receipt.execution_backend
        attempt.reached(_S.MATERIALIZED, _S.OBSERVED)
        self._observer.decided(attempt, DecisionOutcome.MATERIALIZED)
        self._observer.completed(
            attempt,
            bytes_transferred=receipt.bytes_transferred,
            physical=receipt.physical,
            detail={"receipt": receipt, "result": result},
        )
        return Materialized(receipt, False, attempt.decision_id)

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

    async def _claim(
        self, attempt: Attempt, claim: ClaimRequest, grant: OptionGrant
    ) -> StoredState | StoredClaim:
        """The source to execute from, with the claim taken; or the claim that was consumed."""
        async with self._database.write() as session:
            found = await claim_find(session, claim.option_id)
            stored = attempt.stored = await named_state(session, grant)
            if found is not None and found.consumed:
                return found
            self._check_free(claim, grant, found)
            if stored is None or not stands(stored, grant):
                raise NexusError(
                    ErrorCode.SOURCE_STATE_MISMATCH,
                    "the source state was deleted or superseded; look the input up again",
                )
            if not await claim_take(session, claim):
                raise _busy()
        attempt.reached(_S.RESERVED)
        return stored

    def _replay(self, attempt: Attempt, claim: ClaimRequest, found: StoredClaim) -> Materialized:
        if not found.same_import(claim):
            raise _other_sink() if found.import_id == claim.import_id else _consumed()
        assert found.receipt is not None
        receipt = msgspec.json.decode(found.receipt, type=Receipt)
        attempt.parent_id = found.decision_id or attempt.parent_id
        # Nothing runs a second time.
        attempt.reached(_S.SKIPPED, _S.OBSERVED)
        self._observer.decided(attempt, DecisionOutcome.REPLAYED)
        return Materialized(receipt, True, attempt.decision_id)

    def _check_free(
        self, claim: ClaimRequest, grant: OptionGrant, found: StoredClaim | None
    ) -> None:
        if found is not None and found.claim_expires_at > claim.now:
            if found.import_id == claim.import_id and not found.same_sink(claim):
                raise _other_sink()
            raise _busy()
        if grant.expires_us < self._clock.now_us():
            raise NexusError(
                ErrorCode.MATERIALIZATION_OPTION_EXPIRED, "the option is expired; estimate again"
            )

    async def _execute(
        self, claim: ClaimRequest, query: MaterializeQuery, grant: OptionGrant, stored: StoredState
    ) -> BackendActionResult:
        """Anything but an executed materialize gives the claim back and is unavailable."""
        session_id = f"session-{claim.decision_id.hex}"
        try:
            result = await self._backend.materialize(
                session_id,
                _payload_handle(stored, grant),
                sink_location(query.sink_namespace, query.sink_value),
            )
        except BaseException:
            await self._release(claim)
            raise
        if (
            result.executed_kind is not Disposition.MATERIALIZE
            or result.status is not ActionStatus.SUCCEEDED
        ):
            await self._release(claim)
            raise NexusError(
                ErrorCode.MATERIALIZATION_UNAVAILABLE,
                f"the transfer was not executed: {result.fallback_reason or result.status}",
                internal=result.detail,
            )
        return result

    async def _commit(self, claim: ClaimRequest, receipt: Receipt) -> None:
        text = msgspec.json.encode(receipt).decode()
        async with self._database.write() as session:
            consumed = await claim_consume(
                session, claim.option_id, claim.fence, self._clock.now(), text
            )
        if not consumed:
            # Another request took the expired claim over; its receipt is the one that counts.
            raise _busy()

    async def _release(self, claim: ClaimRequest) -> None:
        """Best effort: a claim that cannot be given back expires by itself."""
        try:
            async with self._database.write() as session:
                await claim_release(session, claim.option_id, claim.fence)
        except NexusError as error:
            log.warning("claim_not_released", option_id=str(claim.option_id), cause=error.internal)


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


def _payload_handle(stored: StoredState, grant: OptionGrant) -> PayloadHandle:
    entry = stored_registration(stored).entry
    descriptor = entry.descriptor
    return PayloadHandle(
        handle_id=f"{stored.state_id.hex}.{stored.generation}",
        location=PayloadLocation(
            handle_kind="state", tier=entry.location.tier, locator=entry.location.locator
        ),
        descriptor=PayloadDescriptor(
            descriptor_id=descriptor.descriptor_id,
            engine_family=descriptor.engine_family,
            semantic_type=descriptor.semantic_type,
            state_slice=StateSliceDescriptor(
                granularity=Granularity.TOKEN, token_count=grant.matched_tokens, token_start=0
            ),
        ),
        ownership=PayloadOwnership.BORROWED,
    )


def _receipt(query: MaterializeQuery, grant: OptionGrant, result: BackendActionResult) -> Receipt:
    session = result.transfer_session
    assert session is not None
    # The only backend so far moves nothing and says so; a physical one brings its own evidence.
    assert session.result.status is TransferStatus.REGISTERED
    return Receipt(
        bytes_transferred=0,
        receipt_namespace=_PROTOCOL_RECEIPT,
        receipt_value=f"receipt-{grant.option_id.hex}",
        physical=False,
        execution_backend=result.backend_name,
        transfer_session=session.session_id,
        sink_namespace=query.sink_namespace,
        sink_value=query.sink_value,
        import_id=query.import_id,
    )


def _busy() -> NexusError:
    return NexusError(
        ErrorCode.MATERIALIZATION_UNAVAILABLE,
        "another request is materializing this option; try again",
    )


def _consumed() -> NexusError:
    return NexusError(
        ErrorCode.MATERIALIZATION_OPTION_CONSUMED, "the option was consumed by another import"
    )


def _other_sink() -> NexusError:
    return NexusError(
        ErrorCode.MATERIALIZATION_OPTION_MISMATCH,
        "this import_id has been used with another sink of this option",
    )
