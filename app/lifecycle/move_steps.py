"""Reserve, execute, commit for prefetch and store: payload to payload, worker to worker."""

from typing import Final

from msgspec import structs

from app.clock import Clock
from app.contract.enums import (
    ActionStatus,
    Disposition,
    FallbackReason,
    TransferStatus,
)
from app.contract.execution import TransferRequest, TransferResult
from app.db.session import Database
from app.errors import ErrorCode, NexusError
from app.execution.backend import fallen_back
from app.execution.catalog import NoSelection
from app.execution.orders import TransferOrder
from app.execution.repository import transfer_close, transfer_route
from app.execution.sessions import RUNNING
from app.execution.transfers import TransferEnd, TransferRoute
from app.lifecycle.journey import Journey
from app.lifecycle.materialize_plan import Workers, payload_handle
from app.lifecycle.placing import Asked, Placement, payload_on, place
from app.lifecycle.steps import End
from app.quota.charges import charge_movement, release, settle_in, shrink
from app.quota.decision import ChargeKind
from app.transfer.faults import WorkerCallError
from app.transfer.wire import PayloadFacts

_DONE: Final = TransferStatus.COMPLETED
_NOT_ORDERED: Final = "cancelled before it was ordered"
_ARRIVED: Final = "cancelled when the copy was there"


class PlanMove:
    """Decides who carries it out, and notes the route: what a cancellation has to know."""

    name = "plan"

    def __init__(
        self, journey: Journey, workers: Workers, database: Database, clock: Clock
    ) -> None:
        self._journey = journey
        self._workers = workers
        self._database = database
        self._clock = clock

    async def do(self) -> End:
        journey, asked = self._journey, self._journey.asked
        assert journey.stored is not None
        journey.attempt.situation, placed = place(
            self._workers.directory,
            Asked(
                action=asked.action,
                stored=journey.stored,
                tokens=journey.stored.token_count,
                target_worker=asked.target_worker,
                location=payload_on(asked.target_worker, ""),
                preferred=asked.backend,
            ),
            journey.attempt.active.policy,
        )
        if isinstance(placed, NoSelection):
            journey.attempt.rejected = placed.rejected
            return journey.fall_back(
                TransferStatus.FALLBACK, placed.reason, "no worker can bring this state there"
            )
        journey.attempt.chose(placed.selection)
        facts = await self._payload(placed)
        if isinstance(facts, End):
            return facts
        self._give_order(placed, facts)
        return await self._route()

    async def undo(self) -> None:
        """Nothing: the route is only a note."""

    async def _payload(self, placed: Placement) -> PayloadFacts | End:
        journey = self._journey
        try:
            facts = await self._workers.client.payload(
                placed.source.name,
                placed.payload_id,
                tenant=journey.asked.tenant,
                deadline_s=self._workers.left_s(journey.attempt),
            )
        except WorkerCallError as error:
            detail = f"worker {placed.source.name} did not answer: {error.kind}"
            return journey.fall_back(
                TransferStatus.FAILED, FallbackReason.PREFERRED_BACKEND_UNAVAILABLE, detail
            )
        if facts is None:
            detail = f"worker {placed.source.name} does not hold the payload any more"
            return journey.fall_back(TransferStatus.MISSING, FallbackReason.CACHE_MISS, detail)
        return facts

    def _give_order(self, placed: Placement, facts: PayloadFacts) -> None:
        journey, asked = self._journey, self._journey.asked
        selection = placed.selection
        target_payload_id = asked.payload_id or placed.payload_id
        location = payload_on(placed.target.name, target_payload_id)
        assert journey.stored is not None
        source = payload_handle(journey.stored, journey.stored.token_count)
        journey.backend = self._workers.backends[selection.registration.backend]
        journey.order = TransferOrder(
            session_id=journey.session_id(
                selection.registration.backend, placed.source.name, facts.checksum
            ),
            decision_id=journey.attempt.decision_id,
            tenant=asked.tenant,
            request=TransferRequest(
                action_kind=asked.action,
                desired_target=location,
                source_handle=source,
                transfer_backend=selection.registration.backend,
                degraded_from=selection.degraded_from,
                required_capability=placed.capability,
                fallback_reason=FallbackReason.PREFERRED_BACKEND_UNAVAILABLE
                if selection.degraded_from
                else None,
            ),
            source=source,
            target=location,
            source_worker=placed.source.name,
            payload_id=placed.payload_id,
            target_worker=placed.target.name,
            target_payload_id=target_payload_id,
            payload_bytes=facts.payload_bytes,
            checksum=facts.checksum,
        )

    async def _route(self) -> End:
        """Notes it; a transfer that was cancelled meanwhile is not ordered."""
        journey, asked = self._journey, self._journey.asked
        order, backend = journey.order, journey.backend
        assert order is not None
        assert backend is not None
        route = TransferRoute(
            order.session_id, order.source_worker, order.payload_id, order.target_worker,
            order.target_payload_id or "", backend.backend,
        )  # fmt: skip
        async with self._database.write() as session:
            if await transfer_route(session, asked, journey.fence, route, self._clock.now()):
                return End.GO_ON
            if await journey.has(session, TransferStatus.IN_FLIGHT):
                return End.GO_ON
            if not await journey.cancelled(session):
                raise _taken_over()
        return journey.end_cancelled(_NOT_ORDERED)


class ChargeMove:
    """Charges the tenant for the transfer while it runs, and for the copy until it is gone."""

    name = "charge"

    def __init__(self, journey: Journey, database: Database, clock: Clock) -> None:
        self._journey = journey
        self._database = database
        self._clock = clock
        # What was charged for an earlier copy under that name.
        self._before_bytes: int | None = None

    async def do(self) -> End:
        journey, order = self._journey, self._journey.order
        assert order is not None
        async with self._database.write() as session:
            verdict = await charge_movement(
                session, journey.attempt.active.policy, order.tenant,
                transfer_id=order.session_id, payload_id=journey.charge_id(),
                payload_bytes=order.payload_bytes, worker=order.target_worker,
                now=self._clock.now(), expires_at=journey.expires_at,
            )  # fmt: skip
            # The last look before it is ordered, after waiting for others of the tenant.
            cancelled = await journey.cancelled(session)
            if not cancelled and not await journey.has(session, *RUNNING):
                raise _taken_over()
        if verdict.allowed and self._before_bytes is None:
            self._before_bytes = verdict.charged_bytes if verdict.repeated else 0
            journey.charged = not verdict.repeated
        journey.notes["quota_seen"] = verdict.seen
        if verdict.exceeded:
            journey.notes["quota"] = {"mode": verdict.mode, "exceeded": verdict.exceeded}
        if cancelled:
            return journey.end_cancelled(_NOT_ORDERED)
        if verdict.allowed:
            return End.GO_ON
        detail = f"the tenant's quota does not allow it: {', '.join(verdict.exceeded)}"
        return journey.fall_back(TransferStatus.REJECTED, FallbackReason.ENGINE_POLICY, detail)

    async def undo(self) -> None:
        """Only what this attempt charged: an earlier copy under that name stays charged."""
        journey, asked = self._journey, self._journey.asked
        if journey.order is None:
            return
        async with self._database.write() as session:
            # After a takeover the charges are the other attempt's, which has the same session; and
            # a transfer that did complete keeps them, whether or not this attempt heard of it.
            if not await journey.has(session, *(frozenset(TransferStatus) - {_DONE})):
                return
            await release(session, asked.tenant, journey.order.session_id, ChargeKind.TRANSFER)
            if journey.copy_stays:
                return
            if journey.charged:
                await release(session, asked.tenant, journey.charge_id())
            elif self._before_bytes is not None:
                await shrink(session, asked.tenant, journey.charge_id(), self._before_bytes)


class Carry:
    """Lets the backend act."""

    name = "carry"

    def __init__(self, journey: Journey, workers: Workers) -> None:
        self._journey = journey
        self._workers = workers

    async def do(self) -> End:
        journey, order, backend = self._journey, self._journey.order, self._journey.backend
        assert order is not None
        assert backend is not None
        left_s = self._workers.left_s(journey.attempt)
        order = journey.order = structs.replace(order, deadline_s=left_s)
        store = journey.asked.action is Disposition.STORE
        carried = await (backend.store(order) if store else backend.prefetch(order))
        result = journey.result = carried.result
        journey.attempt.transfer_us = carried.transfer_us
        if result.status is ActionStatus.SUCCEEDED:
            journey.end = TransferEnd(
                result.detail or "",
                tuple(journey.attempt.rejected),
                result,
                order.payload_bytes,
                order.target.locator,
            )
            return End.GO_ON
        session = result.transfer_session
        status = session.result.status if session else TransferStatus.FAILED
        reason = result.fallback_reason or FallbackReason.PREFERRED_BACKEND_UNAVAILABLE
        detail = result.detail or "it was not carried out"
        return journey.fall_back(status, reason, detail, result)

    async def undo(self) -> None:
        """Stops what may still run; bytes that arrived stay, and are what a retry finds.

        Those of a cancelled transfer are deleted, unless there was a copy before.
        """
        journey, order = self._journey, self._journey.order
        if journey.backend is None or order is None:
            return
        if journey.result is None or journey.result.status is not ActionStatus.SUCCEEDED:
            await journey.backend.cancel(order)
        elif journey.status is TransferStatus.CANCELLED:
            journey.copy_stays = True
            if journey.charged:
                await self._workers.client.delete_payload(
                    order.target_worker, order.target_payload_id or "", tenant=order.tenant
                )
                journey.copy_stays = False
                assert journey.end is not None
                journey.end = structs.replace(journey.end, detail=f"{_ARRIVED}: it is deleted")


class Close:
    """Makes it final, and the charge lasting: also of what arrived for a cancelled transfer, as
    long as that is there.
    """

    name = "close"

    def __init__(self, journey: Journey, database: Database, clock: Clock) -> None:
        self._journey = journey
        self._database = database
        self._clock = clock

    async def do(self) -> End:
        journey, order = self._journey, self._journey.order
        assert order is not None
        assert journey.end is not None
        now = self._clock.now()
        async with self._database.write() as session:
            closed = await transfer_close(
                session, journey.asked, journey.fence,
                status=TransferStatus.COMPLETED, end=journey.end, now=now,
            )  # fmt: skip
            cancelled = not closed and await journey.cancelled(session)
            if not closed and not cancelled and not await journey.has(session, _DONE):
                raise _taken_over()
            await settle_in(
                session, order.tenant,
                transfer_id=order.session_id, payload_id=journey.charge_id(),
                payload_bytes=order.payload_bytes, worker=order.target_worker,
                now=now, expires_at=None,
            )  # fmt: skip
        if cancelled:
            return self._end_cancelled(order)
        journey.status, journey.copy_present = TransferStatus.COMPLETED, True
        return End.GO_ON

    async def undo(self) -> None:
        """Nothing: a transaction that did not commit has done nothing."""

    def _end_cancelled(self, order: TransferOrder) -> End:
        backend = self._journey.backend
        assert backend is not None
        result = fallen_back(
            order,
            backend.name,
            Disposition.SKIP,
            FallbackReason.PREFERRED_BACKEND_UNAVAILABLE,
            transfer=TransferResult(TransferStatus.CANCELLED),
            detail=_ARRIVED,
        )
        return self._journey.end_cancelled(f"{_ARRIVED}: it stays there", result)


def _taken_over() -> NexusError:
    return NexusError(
        ErrorCode.OVERLOADED, "another request has taken this transfer over; ask for its state"
    )
