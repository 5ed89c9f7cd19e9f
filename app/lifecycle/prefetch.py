"""Prefetch by value: state is brought to a worker before its use, where that is worth it.

It is a transfer as any other; before it there is a verdict, and around it a deadline. Late state is
of no use: the transfer is cancelled, or goes on as an ordinary one, and the caller computes.
"""

import asyncio
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final
from uuid import UUID

import structlog

from app.clock import Clock
from app.contract.enums import TierKind, TransferStatus
from app.contract.locators import node_locator
from app.contract.sizes import payload_bytes
from app.contract.transitions import LifecycleState
from app.db.session import Database
from app.decisions.record import DecisionKind, DecisionOutcome
from app.errors import ErrorCode, NexusError
from app.execution.transfers import StoredTransfer, TransferAsked
from app.index.registry import stored_registration
from app.index.repository import StoredState, states_by_key
from app.lifecycle.caller import Caller
from app.lifecycle.costs import CurrentTopology, StoredCosts
from app.lifecycle.move import Move, Moved
from app.lifecycle.move_open import is_running
from app.lifecycle.observe import Observer, Policies
from app.lifecycle.prefetch_budget import PrefetchBudgets, Taken
from app.planner.prefetch import (
    PrefetchBudget,
    PrefetchCase,
    PrefetchRefusal,
    PrefetchVerdict,
    judge,
)
from app.planner.transfer_costs import ProfileCosts
from app.transfer.faults import WorkerCallError

# To hear that a late transfer was stopped; then nobody waits any longer.
_GRACE_S: Final = 0.5
_US_PER_S: Final = 1_000_000
# Where a worker puts what it is brought.
_TIER: Final = TierKind.HOST_DRAM
_log = structlog.get_logger("nexuskv.prefetch")


class Abandon(StrEnum):
    """What becomes of a transfer that is late."""

    CANCEL = "cancel"  # it is stopped, and what arrived of it is deleted
    DEMOTE = "demote"  # it goes on, as one that nobody waits for


class PrefetchStatus(StrEnum):
    """How a prefetch ended, or stands."""

    COMPLETED = "completed"
    RUNNING = "running"  # another request carries it out
    REFUSED = "refused"
    CANCELLED = "cancelled"  # late, or told to stop
    DEMOTED = "demoted"  # late, and going on
    FELL_BACK = "fell_back"  # it could not be carried out


@dataclass(frozen=True, slots=True)
class PrefetchAsked:
    """A transfer, and what is to be expected of it. Times are microseconds from now on."""

    transfer: TransferAsked
    use_within_us: int
    use_probability: float
    engine_id: str | None = None
    pollution_us: int = 0
    interference_us: int = 0
    abandon: Abandon = Abandon.CANCEL


@dataclass(frozen=True, slots=True)
class Prefetched:
    """`transfer` is None where none was begun; `verdict` where an earlier one was found.

    `late`: it was not there in time.
    """

    status: PrefetchStatus
    decision_id: UUID
    late: bool
    transfer: StoredTransfer | None
    case: PrefetchCase | None = None
    budget: PrefetchBudget | None = None
    verdict: PrefetchVerdict | None = None


class Prefetching:
    """Judges prefetches, and has them carried out."""

    def __init__(
        self,
        database: Database,
        move: Move,
        observer: Observer,
        costs: StoredCosts,
        *,
        topologies: CurrentTopology,
        policies: Policies,
        clock: Clock,
    ) -> None:
        self._database = database
        self._move = move
        self._observer = observer
        self._costs = costs
        self._topologies = topologies
        self._policies = policies
        self._clock = clock
        self.budgets = PrefetchBudgets(clock)
        self._running: set[asyncio.Task[Moved]] = set()

    async def run(self, asked: PrefetchAsked, caller: Caller) -> Prefetched:
        """Ends at the deadline at the latest, but for a moment. One decision is recorded.

        Raises NexusError for what cannot be tried at all: no such state, a prefetch id that was
        used otherwise, no database, too many at once.
        """
        known = await self._known(asked.transfer)
        if known is not None:
            # What was judged before is not judged again: it runs, or its bytes are there.
            return await self._carried(asked, caller, None)
        stored = await self._stored(asked.transfer)
        case = self._case(asked, stored)
        place = (asked.transfer.target_worker, _TIER)
        budget = self.budgets.budget(
            asked.transfer.tenant,
            place,
            self._policies.current.policy.prefetch_budgets,
            self._topologies.current,
        )
        verdict = judge(case, budget)
        judged = _Judged(case, budget, verdict)
        if verdict.refusal is not None:
            return self._refused(asked, caller, stored, judged)
        taken = self.budgets.take(asked.transfer.tenant, place, case)
        return await self._carried(asked, caller, judged, taken)

    async def stop(self) -> None:
        """Those that nobody waits for are not carried on."""
        for task in self._running:
            task.cancel()
        await asyncio.gather(*self._running, return_exceptions=True)

    async def _known(self, asked: TransferAsked) -> StoredTransfer | None:
        try:
            found = await self._move.get(asked.tenant, asked.transfer_id)
        except NexusError as error:
            if error.code is ErrorCode.NOT_FOUND:
                return None
            raise
        done = found.status is TransferStatus.COMPLETED
        return found if done or is_running(found) or found.asked != asked else None

    async def _stored(self, asked: TransferAsked) -> StoredState:
        key = (asked.tenant, asked.entry_id)
        async with self._database.read() as session:
            found = (await states_by_key(session, [key], whole=True)).get(key)
        if found is None or found.deleted_at is not None:
            raise NexusError(ErrorCode.NOT_FOUND, "the tenant has no live state of that entry_id")
        return found

    def _case(self, asked: PrefetchAsked, stored: StoredState) -> PrefetchCase:
        """By the profile of the engine that is to use it."""
        costs = self._costs.of(stored.model, asked.engine_id)
        target = asked.transfer.target_worker
        brought_us = _bringing_us(costs, stored, stored.locator, TierKind(stored.tier), target)
        there = node_locator(target, asked.transfer.payload_id or "state")
        near_us = _bringing_us(costs, stored, there, _TIER, target)
        whole_bytes = _bytes_of(stored)
        if whole_bytes is None:
            whole_bytes = round(stored.token_count * costs.profile.default_bytes_per_token)
        return PrefetchCase(
            asked.use_probability,
            float(asked.use_within_us),
            float(costs.recompute_us(stored.token_count) - near_us),
            float(brought_us),
            float(asked.pollution_us),
            float(asked.interference_us),
            whole_bytes,
        )

    def _refused(
        self, asked: PrefetchAsked, caller: Caller, stored: StoredState, judged: "_Judged"
    ) -> Prefetched:
        refusal = judged.verdict.refusal
        assert refusal is not None
        attempt = self._observer.begin(DecisionKind.PREFETCH, caller, _inputs(asked, judged))
        attempt.named_tenant, attempt.stored = asked.transfer.tenant, stored
        attempt.reached(LifecycleState.SKIPPED, LifecycleState.OBSERVED)
        self._observer.decided(attempt, DecisionOutcome.UNAVAILABLE, reason=refusal.value)
        return Prefetched(
            PrefetchStatus.REFUSED,
            attempt.decision_id,
            refusal is PrefetchRefusal.TOO_LATE,
            None,
            judged.case,
            judged.budget,
            judged.verdict,
        )

    async def _carried(
        self,
        asked: PrefetchAsked,
        caller: Caller,
        judged: "_Judged | None",
        taken: Taken | None = None,
    ) -> Prefetched:
        more = _inputs(asked, judged)
        task = asyncio.create_task(
            self._move.run(asked.transfer, caller, more=more), name="prefetch"
        )
        self._running.add(task)
        task.add_done_callback(lambda done: self._ended(done, taken))
        left_s = asked.use_within_us / _US_PER_S
        left_s -= (self._clock.monotonic_us() - caller.started_us) / _US_PER_S
        try:
            await asyncio.wait((task,), timeout=max(0.0, left_s))
        except asyncio.CancelledError:
            task.cancel()
            raise
        late = not task.done()
        if late and asked.abandon is Abandon.CANCEL:
            await self._stop_late(asked.transfer, task)
        if not task.done():
            status = PrefetchStatus.DEMOTED
            if asked.abandon is Abandon.CANCEL:
                status = PrefetchStatus.CANCELLED
                # Its worker does not answer: what it took is given back once that is undone.
                task.cancel()
            found = await self._move.get(asked.transfer.tenant, asked.transfer.transfer_id)
            return _told(status, found.decision_id, judged, found, late=True)
        moved = task.result()
        return _told(
            _STATUSES.get(moved.transfer.status, PrefetchStatus.FELL_BACK),
            moved.transfer.decision_id,
            judged,
            moved.transfer,
            late=late,
        )

    async def _stop_late(self, asked: TransferAsked, task: "asyncio.Task[Moved]") -> None:
        """Tell the worker; a moment later nobody waits for it any more."""
        try:
            async with asyncio.timeout(_GRACE_S):
                await self._move.cancel(asked.tenant, asked.transfer_id)
                await asyncio.wait((task,))
        except (TimeoutError, WorkerCallError, NexusError) as error:
            _log.info("late_prefetch_not_stopped", transfer=asked.transfer_id, cause=repr(error))

    def _ended(self, task: "asyncio.Task[Moved]", taken: Taken | None) -> None:
        self._running.discard(task)
        if taken is not None:
            self.budgets.give_back(taken, brought=_brought(task))
        if not task.cancelled() and (error := task.exception()) is not None:
            # Told to whoever waits; where nobody does, it is only noted.
            _log.info("prefetch_ended", cause=repr(error))


@dataclass(frozen=True, slots=True)
class _Judged:
    case: PrefetchCase
    budget: PrefetchBudget
    verdict: PrefetchVerdict


def _brought(task: "asyncio.Task[Moved]") -> bool:
    if task.cancelled() or task.exception() is not None:
        return False
    return task.result().transfer.status is TransferStatus.COMPLETED


_STATUSES: Final = {
    TransferStatus.COMPLETED: PrefetchStatus.COMPLETED,
    TransferStatus.CANCELLED: PrefetchStatus.CANCELLED,
    TransferStatus.INITIATED: PrefetchStatus.RUNNING,
    TransferStatus.IN_FLIGHT: PrefetchStatus.RUNNING,
}


def _told(
    status: PrefetchStatus,
    decision_id: UUID,
    judged: _Judged | None,
    transfer: StoredTransfer,
    *,
    late: bool,
) -> Prefetched:
    if judged is None:
        return Prefetched(status, decision_id, late, transfer)
    return Prefetched(
        status, decision_id, late, transfer, judged.case, judged.budget, judged.verdict
    )


def _inputs(asked: PrefetchAsked, judged: _Judged | None) -> dict[str, Any]:
    transfer = asked.transfer
    return {
        "transfer_id": transfer.transfer_id,
        "entry_id": transfer.entry_id,
        "target_worker": transfer.target_worker,
        "target_engine_id": asked.engine_id,
        "abandon": asked.abandon.value,
        "prefetch": None if judged is None else judged.case,
        "prefetch_budget": None if judged is None else judged.budget,
        "prefetch_verdict": None if judged is None else judged.verdict,
    }


def _bytes_of(stored: StoredState) -> int | None:
    descriptor = stored_registration(stored).entry.descriptor
    return payload_bytes(descriptor, stored.token_count)


def _bringing_us(
    costs: ProfileCosts, stored: StoredState, locator: str, tier: TierKind, target: str
) -> int:
    return costs.estimate(
        tier=tier,
        locator=locator,
        target_residency=target,
        payload_bytes=_bytes_of(stored),
        tokens=stored.token_count,
    ).transfer_us
