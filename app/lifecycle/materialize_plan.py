"""The plan of a materialize: the order for a backend, made from what the claim reserved."""

from dataclasses import dataclass
from typing import Final, Protocol

from app.clock import Clock
from app.contract.enums import (
    Disposition,
    FallbackReason,
    Granularity,
    PayloadOwnership,
    TransferBackend,
)
from app.contract.execution import TransferRequest
from app.contract.payload import (
    PayloadDescriptor,
    PayloadHandle,
    PayloadLocation,
    StateSliceDescriptor,
)
from app.execution.backend import Backend, sink_location
from app.execution.catalog import NoSelection
from app.execution.names import option_session
from app.execution.orders import TransferOrder
from app.execution.worker_backend import CallsWorkers, WorkerBackend
from app.index.registry import stored_registration
from app.index.repository import StoredState
from app.lifecycle.materialize_steps import Fallback, Passage, Sink
from app.lifecycle.observe import Attempt
from app.lifecycle.placing import (
    Asked,
    Directory,
    Placement,
    by_engine,
    place,
    sink_on,
)
from app.lifecycle.steps import End
from app.policy.evaluate import FallbackCause
from app.transfer.faults import WorkerCallError
from app.transfer.sink_ids import SinkIds
from app.transfer.wire import SINK_NAMESPACE, PayloadFacts, SinkFacts, SinkState

_US_PER_S: Final = 1_000_000
_UNHEARD: Final = (
    FallbackReason.PREFERRED_BACKEND_UNAVAILABLE, "the target worker was not heard yet",
)  # fmt: skip


class Client(CallsWorkers, Protocol):
    """The client of workers, as far as plans use it."""

    async def sink(
        self, worker: str, sink_id: str, *, tenant: str, deadline_s: float
    ) -> SinkFacts | None:
        """None when there is none. Raises WorkerCallError when the worker cannot be asked."""

    async def payload(
        self, worker: str, payload_id: str, *, tenant: str, deadline_s: float
    ) -> PayloadFacts | None:
        """None when there is none. Raises WorkerCallError when the worker cannot be asked."""

    async def delete_payload(self, worker: str, payload_id: str, *, tenant: str) -> bool:
        """False when there was none. Raises WorkerCallError when the worker cannot be asked."""


@dataclass(frozen=True, slots=True)
class Workers:
    """What physical transfers need: the workers, the client that calls them, and the bounds."""

    directory: Directory
    client: Client
    protocol: Backend
    backends: dict[TransferBackend, WorkerBackend]
    deadline_s: float
    clock: Clock
    # None without a worker secret.
    sink_ids: SinkIds | None = None

    def left_s(self, attempt: Attempt) -> float:
        """Of the time for an attempt, which began with its request; 0 when it is over."""
        spent_us = self.clock.monotonic_us() - attempt.caller.started_us
        return max(0.0, self.deadline_s - spent_us / _US_PER_S)


class FindSink:
    """How long the sink is, before anything is reserved: by its id, else by asking its worker.

    Trouble is kept for later: a consumed option is answered although its sink is gone.
    """

    name = "find_sink"

    def __init__(self, passage: Passage, workers: Workers) -> None:
        self._passage = passage
        self._workers = workers

    async def do(self) -> End:
        passage, query, workers = self._passage, self._passage.query, self._workers
        target = passage.grant.target_residency
        known = workers.sink_ids and workers.sink_ids.payload_bytes(
            query.sink_value,
            target,
            passage.grant.tenant,
            query.target_engine_id,
            engine_generation=query.target_engine_generation,
        )
        if known:
            passage.sink = Sink(known)
        elif workers.directory.get(target) is not None:
            passage.sink = await self._asked(target)
        return End.GO_ON

    async def undo(self) -> None:
        """Nothing."""

    async def _asked(self, target: str) -> Sink:
        passage = self._passage
        try:
            facts = await self._workers.client.sink(
                target,
                passage.query.sink_value,
                tenant=passage.grant.tenant,
                deadline_s=self._workers.left_s(passage.attempt),
            )
        except WorkerCallError as error:
            reason = FallbackReason.PREFERRED_BACKEND_UNAVAILABLE
            return Sink(trouble=(reason, f"worker {target} did not answer: {error.kind}"))
        if facts is None:
            none = f"there is no sink {passage.query.sink_value} on {target}"
            return Sink(trouble=(FallbackReason.ENGINE_POLICY, none))
        return Sink(facts.payload_bytes, facts)


class PlanMaterialize:
    """Decides who carries the order out. Changes nothing, and waits for nothing."""

    def __init__(self, passage: Passage, workers: Workers) -> None:
        self._passage = passage
        self._workers = workers

    def plan(self) -> End:
        passage = self._passage
        stored = passage.attempt.stored
        assert stored is not None
        if passage.query.sink_namespace != SINK_NAMESPACE:
            passage.attempt.situation = by_engine(self._asked(stored))
            passage.backend = self._workers.protocol
            passage.order = self._protocol_order(stored)
            return End.GO_ON
        placed = self._placed(stored)
        if isinstance(placed, NoSelection):
            detail = "no worker can bring this state into that sink"
            passage.fallback = Fallback(placed.reason, placed.disposition, detail, placed.rejected)
            return End.FALL_BACK
        passage.attempt.chose(placed.selection)
        # A worker that registered only now was not asked.
        sink = passage.sink or Sink(trouble=_UNHEARD)
        trouble = sink.trouble or self._obstacle(sink, self._session_id(placed))
        if trouble is not None:
            reason, detail = trouble
            return passage.fall_back(reason, FallbackCause.BACKEND_REJECTION, detail)
        passage.backend = self._workers.backends[placed.selection.registration.backend]
        passage.order = self._worker_order(stored, placed, sink.payload_bytes)
        return End.GO_ON

    def _placed(self, stored: StoredState) -> Placement | NoSelection:
        passage = self._passage
        passage.attempt.situation, placed = place(
            self._workers.directory, self._asked(stored), passage.active.policy
        )
        return placed

    def _asked(self, stored: StoredState) -> Asked:
        grant, query = self._passage.grant, self._passage.query
        physical = query.sink_namespace == SINK_NAMESPACE
        return Asked(
            action=Disposition.MATERIALIZE,
            stored=stored,
            tokens=grant.matched_tokens,
            target_worker=grant.target_residency,
            location=sink_on(grant.target_residency, query.sink_value)
            if physical
            else sink_location(query.sink_namespace, query.sink_value),
        )

    def _obstacle(self, sink: Sink, session_id: str) -> tuple[FallbackReason, str] | None:
        """What the worker's own facts say against it; without facts the worker itself judges."""
        facts, query = sink.facts, self._passage.query
        if facts is None:
            return None
        policy = FallbackReason.ENGINE_POLICY
        engine = (facts.engine_id, facts.engine_generation)
        if engine != (query.target_engine_id, query.target_engine_generation):
            return policy, "the sink belongs to another engine or another generation of it"
        mine = facts.session_id == session_id and facts.state is SinkState.COMPLETE
        if mine or facts.state in (SinkState.OPEN, SinkState.FILLING):
            return None
        return policy, f"the sink is {facts.state}"

    def _session_id(self, placed: Placement) -> str:
        """One for an option, a sink and a way: who repeats the attempt joins or repeats the
        transfer. Another way is another session, since one stands for one order at its worker."""
        return option_session(
            self._passage.grant.option_id,
            self._passage.query.sink_value,
            placed.selection.registration.backend,
            placed.source.name,
            placed.payload_id,
        )

    def _worker_order(
        self, stored: StoredState, placed: Placement, payload_bytes: int
    ) -> TransferOrder:
        passage, query = self._passage, self._passage.query
        source = payload_handle(stored, passage.grant.matched_tokens)
        selection = placed.selection
        return TransferOrder(
            session_id=self._session_id(placed),
            decision_id=passage.attempt.decision_id,
            tenant=passage.grant.tenant,
            request=TransferRequest(
                action_kind=Disposition.MATERIALIZE,
                desired_target=placed.location,
                source_handle=source,
                transfer_backend=selection.registration.backend,
                degraded_from=selection.degraded_from,
                required_capability=placed.capability,
                fallback_reason=FallbackReason.PREFERRED_BACKEND_UNAVAILABLE
                if selection.degraded_from
                else None,
            ),
            source=source,
            target=placed.location,
            source_worker=placed.source.name,
            payload_id=placed.payload_id,
            target_worker=placed.target.name,
            sink_id=query.sink_value,
            engine_id=query.target_engine_id,
            engine_generation=query.target_engine_generation,
            payload_bytes=payload_bytes,
        )

    def _protocol_order(self, stored: StoredState) -> TransferOrder:
        passage, query = self._passage, self._passage.query
        source = payload_handle(stored, passage.grant.matched_tokens)
        target: PayloadLocation = sink_location(query.sink_namespace, query.sink_value)
        return TransferOrder(
            session_id=f"session-{passage.attempt.decision_id.hex}",
            decision_id=passage.attempt.decision_id,
            tenant=passage.grant.tenant,
            request=TransferRequest(
                action_kind=Disposition.MATERIALIZE, desired_target=target, source_handle=source
            ),
            source=source,
            target=target,
        )


def payload_handle(stored: StoredState, tokens: int) -> PayloadHandle:
    """The first `tokens` of a registered state, where it lies."""
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
                granularity=Granularity.TOKEN, token_count=tokens, token_start=0
            ),
        ),
        ownership=PayloadOwnership.BORROWED,
    )
