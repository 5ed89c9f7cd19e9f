"""Prefetch and store: a registered state's payload is brought to another worker, ahead of its use.

One row per transfer id: whoever repeats the request joins, or gets the end that is stored.
"""

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Final

from app.clock import Clock
from app.contract.enums import Disposition, FallbackReason, TransferStatus
from app.contract.transitions import LifecycleState
from app.db.session import Database
from app.decisions.record import DecisionKind, DecisionOutcome
from app.errors import ErrorCode, NexusError
from app.execution.repository import transfer_cancel, transfer_find
from app.execution.transfers import StoredTransfer, TransferAsked, TransferEnd
from app.lifecycle.caller import Caller
from app.lifecycle.journey import Journey
from app.lifecycle.materialize_plan import Workers
from app.lifecycle.move_open import Open, is_running
from app.lifecycle.move_steps import Carry, ChargeMove, Close, PlanMove
from app.lifecycle.observe import Attempt, Observer
from app.lifecycle.steps import End, Step, Steps
from app.transfer.wire import NewTransfer, TransferSource

_FENCE_MASK: Final = (1 << 62) - 1
# A session outlives its transfer by this much, for what comes before and after it.
_SLACK: Final = timedelta(seconds=2)
_KINDS: Final = {
    Disposition.PREFETCH: DecisionKind.PREFETCH,
    Disposition.STORE: DecisionKind.STORE,
}
_S = LifecycleState


@dataclass(frozen=True, slots=True)
class Moved:
    """The session when a request is over.

    `copy_present` says whether the copy is at the target now; False where it was gone and was not
    brought again, None where nobody looked, or the target could not be asked.
    """

    transfer: StoredTransfer
    copy_present: bool | None


class Move:
    """Carries transfers out, tells of them, and cancels them."""

    def __init__(
        self,
        database: Database,
        observer: Observer,
        workers: Workers,
        steps: Steps,
        *,
        clock: Clock,
    ) -> None:
        self._database = database
        self._observer = observer
        self._workers = workers
        self._steps = steps
        self._clock = clock

    async def run(
        self, asked: TransferAsked, caller: Caller, *, more: Mapping[str, Any] | None = None
    ) -> Moved:
        """The session as it stands when the request is over: ended, or run by another request.

        One that completed before is answered again, unless its copy is gone: then it is run anew.
        One decision is recorded, with `more` among its inputs, and one outcome when something was
        tried. Raises NexusError for what cannot be tried at all: no such state, a transfer id used
        otherwise, no database.
        """
        inputs = _inputs(asked) | dict(more or {})
        attempt = self._observer.begin(_KINDS[asked.action], caller, inputs)
        attempt.named_tenant = asked.tenant
        journey = Journey(
            attempt,
            asked,
            attempt.decision_id.int & _FENCE_MASK,
            self._clock.now() + timedelta(seconds=self._workers.deadline_s) + _SLACK,
        )
        try:
            end = await self._steps.run(self._steps_of(journey))
        except NexusError as error:
            self._observer.refused(attempt, error)
            raise
        except asyncio.CancelledError:
            self._observer.cancelled(attempt)
            raise
        except Exception as error:
            self._observer.failed(attempt, error)
            raise
        attempt.inputs.update(journey.notes)
        if end is End.DONE:
            assert journey.known is not None
            attempt.reached(_S.SKIPPED, _S.OBSERVED)
            self._observer.decided(attempt, DecisionOutcome.REPLAYED)
            return Moved(journey.known, journey.copy_present)
        self._observe(journey, attempt)
        found = await self.get(asked.tenant, asked.transfer_id)
        return Moved(found, journey.copy_present)

    async def get(self, tenant: str, transfer_id: str) -> StoredTransfer:
        """Raises NOT_FOUND for an id that the tenant never used, or that is forgotten."""
        async with self._database.read() as session:
            found = await transfer_find(session, tenant, transfer_id)
        if found is None:
            raise NexusError(ErrorCode.NOT_FOUND, "the tenant has no such transfer")
        return found

    async def cancel(self, tenant: str, transfer_id: str) -> StoredTransfer:
        """Stop it if it runs; who waits for it is told. One that ended stays as it is.

        One that is answered as running will be `cancelled`, or has failed by itself: it does not
        complete any more. Raises NOT_FOUND, and WorkerCallError when its worker cannot be told.
        """
        found = await self.get(tenant, transfer_id)
        if not is_running(found):
            return found
        end = TransferEnd("cancelled", fallback_reason=FallbackReason.PREFERRED_BACKEND_UNAVAILABLE)
        # Noted before the worker is told: it may get its order only afterwards.
        async with self._database.write() as session:
            await transfer_cancel(session, tenant, transfer_id, end, self._clock.now())
        found = await self.get(tenant, transfer_id)
        if is_running(found) and (route := found.route) is not None:
            order = NewTransfer(
                session_id=route.session_id,
                source=TransferSource(route.source_worker, route.payload_id),
                backend=route.backend,
                target_payload_id=route.target_payload_id,
            )
            await self._workers.client.cancel(
                route.target_worker, order, tenant=tenant, deadline_s=self._workers.deadline_s
            )
            found = await self.get(tenant, transfer_id)
        return found

    def _steps_of(self, journey: Journey) -> Sequence[Step]:
        return (
            Open(journey, self._workers, self._database, self._clock),
            PlanMove(journey, self._workers, self._database, self._clock),
            ChargeMove(journey, self._database, self._clock),
            Carry(journey, self._workers),
            Close(journey, self._database, self._clock),
        )

    def _observe(self, journey: Journey, attempt: Attempt) -> None:
        end = journey.end
        assert end is not None
        if journey.status is TransferStatus.COMPLETED:
            assert journey.backend is not None
            attempt.selected_path = journey.backend.name
            attempt.reached(_S.MATCHED, _S.VALIDATED, _S.PLANNED, _S.RESERVED, _S.MATERIALIZED)
            attempt.reached(_S.OBSERVED)
            self._observer.decided(attempt, DecisionOutcome.TRANSFERRED)
            self._observer.completed(
                attempt,
                bytes_transferred=end.bytes_transferred,
                physical=True,
                detail={"result": end.result, "locator": end.locator},
            )
            return
        assert end.fallback_reason is not None
        self._observer.fell_back(
            attempt,
            reason=end.fallback_reason,
            # The state is still where it was: not to move it is to skip.
            disposition=Disposition.SKIP,
            detail={"detail": end.detail, "result": end.result},
            status=journey.status,
        )


def _inputs(asked: TransferAsked) -> dict[str, object]:
    return {
        "transfer_id": asked.transfer_id,
        "entry_id": asked.entry_id,
        "target_worker": asked.target_worker,
        "payload_id": asked.payload_id,
        "preferred_backend": asked.backend,
    }
