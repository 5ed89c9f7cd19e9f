"""Reserve, execute, commit: the steps of a materialize, each with its undo.

A passage is one attempt on its way through them. What one step finds the next ones use.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, Final

import msgspec
from msgspec import Struct, structs

from app.clock import Clock
from app.contract.enums import ActionStatus, Disposition, FallbackReason
from app.contract.execution import BackendActionResult
from app.contract.transitions import LifecycleState
from app.db.session import Database, WriteSession
from app.errors import ErrorCode, NexusError
from app.execution.backend import Backend, settled
from app.execution.catalog import Rejection, disposition_after
from app.execution.claims import ClaimRequest, StoredClaim
from app.execution.grants import OptionGrant
from app.execution.orders import TransferOrder
from app.execution.receipt import Receipt, receipt_of
from app.execution.repository import (
    claim_consume,
    claim_find,
    claim_held,
    claim_release,
    claim_take,
)
from app.execution.worker_backend import WorkerBackend
from app.index.registry import stored_registration
from app.lifecycle.observe import Attempt
from app.lifecycle.queries import MaterializeQuery
from app.lifecycle.recheck import SeenStates, named_state, stands
from app.lifecycle.repository import Movement, reserve
from app.lifecycle.steps import End
from app.policy.evaluate import FallbackCause
from app.policy.provider import ActivePolicy
from app.quota.charges import charge_movement, release, settle
from app.quota.decision import ChargeKind, limits_of
from app.transfer.wire import SINK_NAMESPACE, SinkFacts

# A sink lives a day at most, and its charge no longer.
_SINK_MAX_LIFE: Final = timedelta(days=1)


class Fallback(Struct, frozen=True):
    """Why nothing was executed, and what is left to do: recompute or skip."""

    reason: FallbackReason
    disposition: Disposition
    detail: str
    rejected: tuple[Rejection, ...] = ()
    result: BackendActionResult | None = None


class Sink(Struct, frozen=True):
    """What is known of the worker's sink before anything is reserved.

    `facts` is None where its id says enough; `trouble` is why nobody may fill it.
    """

    payload_bytes: int = 0
    facts: SinkFacts | None = None
    trouble: tuple[FallbackReason, str] | None = None


@dataclass(slots=True)
class Passage:
    """One attempt to consume one option."""

    attempt: Attempt
    query: MaterializeQuery
    grant: OptionGrant
    claim: ClaimRequest
    active: ActivePolicy
    consumed: StoredClaim | None = None
    sink: Sink | None = None
    order: TransferOrder | None = None
    backend: Backend | None = None
    result: BackendActionResult | None = None
    receipt: Receipt | None = None
    fallback: Fallback | None = None
    notes: dict[str, Any] = field(default_factory=dict)

    def fall_back(
        self,
        reason: FallbackReason,
        cause: FallbackCause,
        detail: str,
        *,
        rejected: tuple[Rejection, ...] = (),
        result: BackendActionResult | None = None,
    ) -> End:
        """Nothing will be executed: the policy says whether to recompute or to skip."""
        stored = self.attempt.stored
        assert stored is not None
        descriptor = stored_registration(stored).entry.descriptor
        chosen = disposition_after(cause, descriptor, self.active.policy)
        result = result and settled(result, chosen)
        rejected = rejected or tuple(self.attempt.rejected)
        self.fallback = Fallback(reason, chosen, detail, rejected, result)
        return End.FALL_BACK


class Reserve:
    """Takes the claim and charges the tenant, in the transaction that sees the state stand.

    `plan` makes the order, from what is in memory; the tenant's row is locked last and shortest.
    """

    name = "reserve"

    def __init__(
        self,
        passage: Passage,
        database: Database,
        clock: Clock,
        seen: SeenStates,
        plan: Callable[[], End],
    ) -> None:
        self._passage = passage
        self._database = database
        self._clock = clock
        self._seen = seen
        self._plan = plan

    async def do(self) -> End:
        """DONE when the option is consumed: `passage.consumed` then has the stored claim."""
        if not await self._at_once():
            try:
                # A claim and a charge that a crash takes away are taken again by whoever repeats.
                async with self._database.write(durable=False) as session:
                    if (end := await self._step_by_step(session)) is not End.GO_ON:
                        return end
            except _DeniedError as denied:
                return self._passage.fall_back(
                    FallbackReason.ENGINE_POLICY,
                    FallbackCause.POLICY_DENIAL,
                    f"the tenant's quota does not allow it: {denied}",
                )
        attempt = self._passage.attempt
        if LifecycleState.RESERVED not in attempt.steps:
            attempt.reached(LifecycleState.RESERVED)
        return End.GO_ON

    async def _at_once(self) -> bool:
        """What is true nearly always, proven and written by one statement; False to find out."""
        passage, claim = self._passage, self._passage.claim
        stored = self._seen.find(passage.grant)
        expired = passage.grant.expires_us < self._clock.now_us()
        # Without a sink of a worker nothing is charged.
        if stored is None or expired or passage.query.sink_namespace != SINK_NAMESPACE:
            return False
        passage.attempt.stored = stored
        if self._plan() is End.FALL_BACK:
            return False
        order = passage.order
        assert order is not None
        limits = limits_of(passage.active.policy.quota_admission_policy)
        movement = Movement(order.session_id, order.payload_bytes, order.target_worker, limits)
        async with self._database.single() as session:
            reserved = await reserve(session, stored, claim, movement)
        passage.notes["quota_seen"] = reserved.seen
        return reserved.taken and reserved.seen is not None

    async def _step_by_step(self, session: WriteSession) -> End:
        passage, claim = self._passage, self._passage.claim
        # Of a plan that the one statement did not bear out, nothing is left.
        passage.fallback = passage.order = passage.backend = None
        passage.attempt.selection, passage.attempt.rejected = None, ()
        passage.attempt.situation = None
        found = await claim_find(session, claim.option_id)
        stored = passage.attempt.stored = await named_state(session, passage.grant)
        if found is not None and found.consumed:
            passage.consumed = found
            return End.DONE
        ours = found is not None and await claim_held(session, claim.option_id, claim.fence)
        if not ours:
            self._check_free(found)
        if stored is None or not stands(stored, passage.grant):
            raise NexusError(
                ErrorCode.SOURCE_STATE_MISMATCH,
                "the source state was deleted or superseded; look the input up again",
            )
        self._seen.see(stored)
        if self._plan() is End.FALL_BACK:
            return End.FALL_BACK
        if not ours and not await claim_take(session, claim):
            raise busy()
        await self._charge(session)
        return End.GO_ON

    async def undo(self) -> None:
        """A claim that was taken over is another attempt's, and so is the charge of its session."""
        claim, order = self._passage.claim, self._passage.order
        async with self._database.write(durable=False) as session:
            if not await claim_held(session, claim.option_id, claim.fence):
                return
            await claim_release(session, claim.option_id, claim.fence)
            if order is not None and order.sink_id is not None:
                await release(session, order.tenant, order.session_id, ChargeKind.TRANSFER)
                await release(session, order.tenant, order.session_id)

    def _check_free(self, found: StoredClaim | None) -> None:
        claim = self._passage.claim
        if found is not None and found.claim_expires_at > claim.now:
            if found.import_id == claim.import_id and not found.same_sink(claim):
                raise other_sink()
            raise busy()
        if self._passage.grant.expires_us < self._clock.now_us():
            raise NexusError(
                ErrorCode.MATERIALIZATION_OPTION_EXPIRED, "the option is expired; estimate again"
            )

    async def _charge(self, session: WriteSession) -> None:
        """For what the sink will hold, and for the transfer while it runs. Raises to undo all."""
        passage, order = self._passage, self._passage.order
        assert order is not None
        if order.sink_id is None:
            return
        verdict = await charge_movement(
            session, passage.active.policy, order.tenant, transfer_id=order.session_id,
            payload_id=order.session_id, payload_bytes=order.payload_bytes,
            worker=order.target_worker, now=self._clock.now(),
            # Until it is consumed: a crash gives it back when the claim would have expired.
            expires_at=passage.claim.expires_at,
        )  # fmt: skip
        passage.notes["quota_seen"] = verdict.seen
        if verdict.exceeded:
            passage.notes["quota"] = {
                "mode": verdict.mode,
                "exceeded": verdict.exceeded,
                "used_payload_bytes": verdict.used_payload_bytes,
                "used_entries": verdict.used_entries,
                "payload_bytes": order.payload_bytes,
            }
        if not verdict.allowed:
            raise _DeniedError(", ".join(verdict.exceeded))


class _DeniedError(Exception):
    """Rolls the reservation back; the step makes a fallback of it."""


class Execute:
    """Lets the backend act."""

    name = "execute"

    def __init__(self, passage: Passage, left_s: Callable[[], float]) -> None:
        """`left_s` says how much of the attempt's time is left."""
        self._passage = passage
        self._left_s = left_s

    async def do(self) -> End:
        passage = self._passage
        order, backend = passage.order, passage.backend
        assert order is not None
        assert backend is not None
        order = passage.order = structs.replace(order, deadline_s=self._left_s())
        carried = await backend.materialize(order)
        result = passage.result = carried.result
        passage.attempt.transfer_us = carried.transfer_us
        if (
            result.executed_kind is Disposition.MATERIALIZE
            and result.status is ActionStatus.SUCCEEDED
        ):
            passage.receipt = receipt_of(passage.claim, order, result)
            return End.GO_ON
        reason = result.fallback_reason or FallbackReason.PREFERRED_BACKEND_UNAVAILABLE
        # What went wrong on a worker has a name; anything more is for the record alone.
        worker = isinstance(backend, WorkerBackend)
        detail = (result.detail or "").partition(":")[0] if worker else "it was not executed"
        return passage.fall_back(reason, _cause(reason), detail, result=result)

    async def undo(self) -> None:
        """Stops what may still run. Bytes that arrived stay until their sink's end."""
        passage = self._passage
        completed = passage.receipt is not None
        if isinstance(passage.backend, WorkerBackend) and passage.order and not completed:
            await passage.backend.cancel(passage.order)


class Settle:
    """The bytes are in the sink: the transfer is over, what it brought stays charged.

    Before the receipt and apart from it, so that the tenant's row is not locked while the disk
    writes: should the receipt fail, undoing the reservation, or the sink's end, gives it back.
    """

    name = "settle"

    def __init__(self, passage: Passage, database: Database, clock: Clock) -> None:
        self._passage = passage
        self._database = database
        self._clock = clock

    async def do(self) -> End:
        order, now = self._passage.order, self._clock.now()
        assert order is not None
        await settle(
            self._database, order.tenant,
            transfer_id=order.session_id, payload_id=order.session_id,
            payload_bytes=order.payload_bytes, worker=order.target_worker, now=now,
            expires_at=now + _SINK_MAX_LIFE,
        )  # fmt: skip
        return End.GO_ON

    async def undo(self) -> None:
        """Nothing: to undo the reservation is to give back what it charged."""


class Consume:
    """Makes it final: the receipt is what this option answers from now on."""

    name = "consume"

    def __init__(self, passage: Passage, database: Database, clock: Clock) -> None:
        self._passage = passage
        self._database = database
        self._clock = clock

    async def do(self) -> End:
        claim = self._passage.claim
        text = msgspec.json.encode(self._passage.receipt).decode()
        async with self._database.single() as single:
            consumed = await claim_consume(
                single, claim.option_id, claim.fence, self._clock.now(), text
            )
        if not consumed:
            async with self._database.read() as session:
                found = await claim_find(session, claim.option_id)
            if found is None or not found.consumed or found.decision_id != claim.decision_id:
                # Another request took the expired claim over; its receipt is what counts.
                raise busy()
        return End.GO_ON

    async def undo(self) -> None:
        """Nothing: a transaction that did not commit has done nothing."""


def busy() -> NexusError:
    return NexusError(
        ErrorCode.MATERIALIZATION_UNAVAILABLE,
        "another request is materializing this option; try again",
    )


def other_sink() -> NexusError:
    return NexusError(
        ErrorCode.MATERIALIZATION_OPTION_MISMATCH,
        "this import_id has been used with another sink of this option",
    )


def _cause(reason: FallbackReason) -> FallbackCause:
    if reason is FallbackReason.CACHE_MISS:
        return FallbackCause.CACHE_MISS
    if reason is FallbackReason.ENGINE_POLICY:
        return FallbackCause.POLICY_DENIAL
    if reason is FallbackReason.UNSUPPORTED_CAPABILITY:
        return FallbackCause.CAPABILITY_MISS
    return FallbackCause.BACKEND_REJECTION
