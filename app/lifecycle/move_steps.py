"""Reserve, execute, commit for prefetch and store: payload to payload, worker to worker."""

from typing import Final

from msgspec import structs

from app.clock import Clock
from app.contract.enums import (
    ActionStatus,
    Disposition,
    FallbackReason,
    MaterializationCapability,
    TransferStatus,
)
from app.contract.execution import TransferRequest
from app.db.session import Database
from app.errors import ErrorCode, NexusError
from app.execution.catalog import NoSelection
from app.execution.orders import TransferOrder
from app.execution.repository import transfer_close, transfer_find, transfer_open, transfer_route
from app.execution.sessions import RUNNING, before
from app.execution.transfers import StoredTransfer, TransferEnd, TransferRoute
from app.index.registry import stored_registration, wall_us
from app.index.repository import states_by_key
from app.lifecycle.journey import Journey
from app.lifecycle.materialize_plan import Workers, payload_handle
from app.lifecycle.placing import Asked, Placement, payload_on, place
from app.lifecycle.steps import End
from app.quota.charges import charge_movement, release, settle_in
from app.quota.decision import ChargeKind
from app.transfer.faults import WorkerCallError
from app.transfer.wire import PayloadFacts

_DONE: Final = TransferStatus.COMPLETED


class Open:
    """Takes the session, and finds the state.

    One that completed is taken again only when its copy is found to be gone: whoever repeats the
    request wants the bytes there.
    """

    name = "open"

    def __init__(
        self, journey: Journey, workers: Workers, database: Database, clock: Clock
    ) -> None:
        self._journey = journey
        self._workers = workers
        self._database = database
        self._clock = clock

    async def do(self) -> End:
        """DONE when there is nothing to do: `journey.known` is the session as it stands."""
        journey = self._journey
        if await self._take():
            return End.GO_ON
        known = self._as_it_stands()
        if known.status is _DONE:
            journey.copy_present = await self._has_copy(known)
            # Of two that find it gone the first takes it, and the other joins.
            if journey.copy_present is False and await self._take(known.fence):
                return End.GO_ON
            self._as_it_stands()
        journey.notes["copy_present"] = journey.copy_present
        return End.DONE

    async def _take(self, gone_fence: int | None = None) -> bool:
        """False when it is not to be had: `journey.known` is how it stands then."""
        journey, asked = self._journey, self._journey.asked
        async with self._database.write() as session:
            opened = await transfer_open(
                session,
                asked,
                fence=journey.fence,
                decision_id=journey.attempt.decision_id,
                now=self._clock.now(),
                expires_at=journey.expires_at,
                gone_fence=gone_fence,
            )
            if not opened and not await journey.has(session, *RUNNING):
                journey.known = await transfer_find(session, asked.tenant, asked.transfer_id)
                return False
            key = (asked.tenant, asked.entry_id)
            stored = (await states_by_key(session, [key], whole=True)).get(key)
            if stored is None or stored.deleted_at is not None:
                raise NexusError(
                    ErrorCode.NOT_FOUND, "the tenant has no live state of that entry_id"
                )
            journey.stored = journey.attempt.stored = stored
        return True

    async def _has_copy(self, known: StoredTransfer) -> bool | None:
        """Whether just these bytes are at the target now; None when it cannot be asked."""
        route, end = known.route, known.end
        copy = end.result.payload_handle if end is not None and end.result is not None else None
        if route is None or end is None or copy is None:
            return False
        try:
            facts = await self._workers.client.payload(
                route.target_worker,
                route.target_payload_id,
                tenant=known.asked.tenant,
                deadline_s=self._workers.left_s(self._journey.attempt),
            )
        except WorkerCallError:
            return None
        found = facts and (facts.payload_bytes, f"xxh3-128:{facts.checksum}")
        return found == (end.bytes_transferred, copy.opaque_ref)

    def _as_it_stands(self) -> StoredTransfer:
        known = self._journey.known
        if known is None:
            raise NexusError(ErrorCode.OVERLOADED, "the transfer changed meanwhile; ask again")
        if known.asked != self._journey.asked:
            raise NexusError(
                ErrorCode.TRANSFER_CONFLICT,
                "this transfer_id was used for another transfer; take a new one",
            )
        return known

    async def undo(self) -> None:
        """The session ends as what it came to, and may be taken again."""
        journey = self._journey
        failed, end = journey.status, journey.end
        if end is None or failed not in before(TransferStatus.INITIATED) - {_DONE}:
            failed, end = TransferStatus.FAILED, TransferEnd("it was not carried out")
        async with self._database.write() as session:
            await transfer_close(
                session, journey.asked, journey.fence,
                status=failed, end=end, now=self._clock.now(),
            )  # fmt: skip


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
        entry = stored_registration(journey.stored).entry
        placed = place(
            self._workers.directory,
            Asked(
                action=asked.action,
                entry=entry,
                registered_us=wall_us(journey.stored.updated_at),
                target_worker=asked.target_worker,
                location=payload_on(asked.target_worker, ""),
                capability=MaterializationCapability.FULL,
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
            if not await journey.has(session, TransferStatus.CANCELLED):
                raise _taken_over()
        return journey.fall_back(
            TransferStatus.CANCELLED,
            FallbackReason.PREFERRED_BACKEND_UNAVAILABLE,
            "cancelled before it was ordered",
        )


class ChargeMove:
    """Charges the tenant for the transfer while it runs, and for the copy until it is gone."""

    name = "charge"

    def __init__(self, journey: Journey, database: Database, clock: Clock) -> None:
        self._journey = journey
        self._database = database
        self._clock = clock
        self._charged = False

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
        self._charged |= verdict.allowed and not verdict.repeated
        if verdict.exceeded:
            journey.notes["quota"] = {"mode": verdict.mode, "exceeded": verdict.exceeded}
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
            if self._charged:
                await release(session, asked.tenant, journey.charge_id())


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
        result = await (backend.store(order) if store else backend.prefetch(order))
        journey.result = result
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
        """Stops what may still run; bytes that arrived stay, and are what a retry finds."""
        journey = self._journey
        succeeded = journey.result is not None and journey.result.status is ActionStatus.SUCCEEDED
        if journey.backend is not None and journey.order is not None and not succeeded:
            await journey.backend.cancel(journey.order)


class Close:
    """Makes it final, and the charge lasting."""

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
            if not closed and not await journey.has(session, _DONE):
                raise _taken_over()
            await settle_in(
                session, journey.attempt.active.policy, order.tenant,
                transfer_id=order.session_id, payload_id=journey.charge_id(),
                payload_bytes=order.payload_bytes, worker=order.target_worker,
                now=now, expires_at=None,
            )  # fmt: skip
        journey.status, journey.copy_present = TransferStatus.COMPLETED, True
        return End.GO_ON

    async def undo(self) -> None:
        """Nothing: a transaction that did not commit has done nothing."""


def is_running(known: StoredTransfer) -> bool:
    return known.status in RUNNING


def _taken_over() -> NexusError:
    return NexusError(
        ErrorCode.OVERLOADED, "another request has taken this transfer over; ask for its state"
    )
