"""Buffers that an engine owns: made by it, filled by one transfer, then consumed or discarded.

Making a sink authorises the transfer into it for one generation of its engine. Its bytes are
visible in `complete` only. Once a newer generation of the engine was seen, nothing more is done
for an older one. Used from the event loop only, but for the bytes a pin protects.
"""

from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final, Literal
from uuid import UUID

from msgspec import structs

from app.clock import Clock, IdSource
from app.errors import ErrorCode, NexusError
from app.transfer.wire import FinishSink, NewSink, SinkEvent, SinkFacts, SinkState, TransferFailure
from app.worker.arena import Arena, Block
from app.worker.failure import TransferFailedError
from app.worker.payloads import Payloads

DEFAULT_TTL_S: Final = 600
MAX_SINKS: Final = 4_096
# Finished ones: their facts can be read for this long.
FINISHED_S: Final = 3_600
MAX_FINISHED: Final = 4_096
MAX_ENGINES: Final = 8_192

Finish = Literal["consumed", "discarded", "expired"]

_S = SinkState

TRANSITIONS: Mapping[SinkState, frozenset[SinkState]] = MappingProxyType(
    {
        _S.OPEN: frozenset({_S.FILLING, _S.DISCARDED, _S.EXPIRED}),
        # A transfer has a deadline of its own: a filling sink does not expire.
        _S.FILLING: frozenset({_S.OPEN, _S.COMPLETE, _S.DISCARDED}),
        _S.COMPLETE: frozenset({_S.CONSUMED, _S.DISCARDED, _S.EXPIRED}),
        _S.CONSUMED: frozenset(),
        _S.DISCARDED: frozenset(),
        _S.EXPIRED: frozenset(),
    }
)

Key = tuple[str, str]


@dataclass(slots=True, eq=False)
class Sink:
    """One sink. `block` is its memory, until it is finished."""

    tenant: str
    sink_id: str
    spec: NewSink
    expires_us: int
    block: Block
    state: SinkState = SinkState.OPEN
    session_id: str | None = None
    decision_id: str | None = None
    checksum: str | None = None
    finished_us: int = 0
    # What was told of its end.
    told: SinkEvent | None = None
    # While it is filling: stops the transfer that fills it.
    stop: Callable[[], None] | None = None

    def facts(self) -> SinkFacts:
        return SinkFacts(
            sink_id=self.sink_id,
            tenant=self.tenant,
            payload_bytes=self.spec.payload_bytes,
            engine_id=self.spec.engine_id,
            engine_generation=self.spec.engine_generation,
            state=self.state,
            session_id=self.session_id,
            checksum=self.checksum,
        )

    def become(self, state: SinkState) -> None:
        assert state in TRANSITIONS[self.state], f"{self.state} may not become {state}"
        self.state = state


def _plain_name(_tenant: str, _spec: NewSink, unique: UUID) -> str:
    return f"sink-{unique}"


class Sinks:
    """The sinks of one arena. `emit` is told what became of each; `name` makes their ids."""

    def __init__(
        self,
        payloads: Payloads,
        clock: Clock,
        ids: IdSource,
        *,
        emit: Callable[[SinkEvent], None],
        name: Callable[[str, NewSink, UUID], str] = _plain_name,
        max_sinks: int = MAX_SINKS,
        max_finished: int = MAX_FINISHED,
    ) -> None:
        self._payloads = payloads
        self._arena: Arena = payloads.arena
        self._clock = clock
        self._ids = ids
        self._emit = emit
        self._name = name
        self._max_sinks = max_sinks
        self._max_finished = max_finished
        self._live: dict[Key, Sink] = {}
        # Oldest first.
        self._finished: OrderedDict[Key, Sink] = OrderedDict()
        self._generations = _Generations()

    def __len__(self) -> int:
        return len(self._live)

    def counts(self) -> dict[SinkState, int]:
        """How many there are in each state that holds memory."""
        found = dict.fromkeys((_S.OPEN, _S.FILLING, _S.COMPLETE), 0)
        for sink in self._live.values():
            found[sink.state] += 1
        return found

    def create(self, tenant: str, spec: NewSink) -> tuple[SinkFacts, bool]:
        """The sink, and whether it is new; one with the same id and the same facts is not.

        Raises SINK_CONFLICT for the same id with other facts, STALE_GENERATION when the engine has
        a newer one, WORKER_FULL, REQUEST_TOO_LARGE.
        """
        if spec.sink_id is not None:
            found = self._look_up((tenant, spec.sink_id))
            if found is not None:
                if found.spec != spec:
                    raise NexusError(
                        ErrorCode.SINK_CONFLICT,
                        "there is a sink of this id with other facts; choose another id",
                    )
                return found.facts(), False
        if self._generations.is_stale(tenant, spec.engine_id, spec.engine_generation):
            raise _stale()
        if len(self._live) >= self._max_sinks:
            raise NexusError(
                ErrorCode.WORKER_FULL,
                f"the worker has its {self._max_sinks} sinks; consume or discard some",
            )
        block = self._payloads.reserve(spec.payload_bytes)
        self._generations.see(tenant, spec.engine_id, spec.engine_generation)
        sink = Sink(
            tenant,
            spec.sink_id or self._name(tenant, spec, self._ids.uuid7()),
            spec,
            self._clock.now_us() + (spec.ttl_s or DEFAULT_TTL_S) * 1_000_000,
            block,
        )
        self._live[tenant, sink.sink_id] = sink
        return sink.facts(), True

    def facts(self, tenant: str, sink_id: str) -> SinkFacts:
        """Raises NOT_FOUND, also for what another tenant has."""
        return self._find(tenant, sink_id).facts()

    @contextmanager
    def content(self, tenant: str, sink_id: str) -> Iterator[tuple[SinkFacts, memoryview]]:
        """The bytes, for as long as this lasts. Raises NOT_FOUND, SINK_NOT_COMPLETE."""
        sink = self._find(tenant, sink_id)
        if sink.state is not _S.COMPLETE:
            raise _not_complete(sink)
        with self._arena.pinned(sink.block) as view:
            yield sink.facts(), view

    def finish(
        self, tenant: str, sink_id: str, order: FinishSink, state: Literal["consumed", "discarded"]
    ) -> SinkFacts:
        """The runtime's own choice. Doing the same again changes nothing.

        Raises NOT_FOUND, STALE_GENERATION for another engine or generation than the sink's, or one
        that is not the newest; SINK_NOT_COMPLETE for one that cannot become this.
        """
        sink = self._find(tenant, sink_id)
        mine = (sink.spec.engine_id, sink.spec.engine_generation)
        if order.engine_id == sink.spec.engine_id:
            self._generations.see(tenant, order.engine_id, order.engine_generation)
        if mine != (order.engine_id, order.engine_generation):
            raise _stale()
        wanted = SinkState(state)
        if sink.state is wanted:
            return sink.facts()
        # An older generation may still give its memory back, but take nothing.
        if wanted is _S.CONSUMED and self._generations.is_stale(tenant, *mine):
            raise _stale()
        if wanted not in TRANSITIONS[sink.state]:
            raise _not_complete(sink)
        self._finish(sink, state, order.reason)
        return sink.facts()

    def tell_again(self, tenant: str, sink_id: str) -> None:
        """Tell of a finished sink's end once more: whoever asks for it anew may not have heard.

        It is the same event and another report: one that is on its way now may come too early.
        """
        sink = self._finished.get((tenant, sink_id))
        if sink is not None and sink.told is not None:
            self._emit(structs.replace(sink.told))

    def sweep(self) -> None:
        """Expire what nobody came for, and forget what was finished long ago."""
        now_us = self._clock.now_us()
        late = [sink for sink in self._live.values() if sink.expires_us <= now_us]
        for sink in late:
            if sink.state is not _S.FILLING:
                self._finish(sink, "expired", None)
        while self._finished:
            oldest = next(iter(self._finished.values()))
            if oldest.finished_us > now_us - FINISHED_S * 1_000_000:
                break
            self._finished.popitem(last=False)

    def claim(
        self,
        tenant: str,
        sink_id: str,
        *,
        engine: tuple[str | None, int | None],
        session_id: str,
        decision_id: str | None,
        stop: Callable[[], None],
    ) -> Sink:
        """Begin to fill: the sink is `filling`, and its block pinned, until `settle`.

        `engine` is what the order says of it: an id or a generation that is given must be the
        sink's. Raises TransferFailedError: sink_missing, sink_not_open, stale_generation.
        """
        sink = self._live.get((tenant, sink_id))
        engine_id, generation = engine
        if sink is not None and generation is not None and engine_id in (None, sink.spec.engine_id):
            self._generations.see(tenant, sink.spec.engine_id, generation)
        if sink is None:
            known = (tenant, sink_id) in self._finished
            kind = TransferFailure.SINK_NOT_OPEN if known else TransferFailure.SINK_MISSING
            raise TransferFailedError(kind, "the sink is finished" if known else "no such sink")
        if (
            engine_id not in (None, sink.spec.engine_id)
            or generation not in (None, sink.spec.engine_generation)
            or self._is_stale(sink)
        ):
            raise TransferFailedError(
                TransferFailure.STALE_GENERATION, "the sink is not of the engine's generation"
            )
        if sink.state is not _S.OPEN:
            raise TransferFailedError(
                TransferFailure.SINK_NOT_OPEN, f"the sink is {sink.state}, not open"
            )
        sink.become(_S.FILLING)
        sink.session_id, sink.decision_id, sink.stop = session_id, decision_id, stop
        self._arena.pin(sink.block)
        return sink

    def settle(self, sink: Sink, checksum: str | None) -> None:
        """End what `claim` began, once: complete with a checksum, else open again.

        With a checksum, raises TransferFailedError when the sink was discarded in the meantime, or
        its engine has a newer generation; nothing is visible then.
        """
        self._arena.unpin(sink.block)
        sink.stop = None
        if sink.state is not _S.FILLING:
            if checksum is not None:
                raise TransferFailedError(TransferFailure.CANCELLED, f"the sink is {sink.state}")
            return
        if checksum is None or self._is_stale(sink):
            sink.become(_S.OPEN)
            sink.session_id = sink.decision_id = None
            if checksum is not None:
                raise TransferFailedError(
                    TransferFailure.STALE_GENERATION, "the engine has a newer generation"
                )
            return
        sink.checksum = checksum
        sink.become(_S.COMPLETE)

    def _finish(self, sink: Sink, state: Finish, reason: str | None) -> None:
        stop = sink.stop
        sink.become(SinkState(state))
        sink.finished_us = self._clock.now_us()
        key = (sink.tenant, sink.sink_id)
        del self._live[key]
        self._finished[key] = sink
        while len(self._finished) > self._max_finished:
            self._finished.popitem(last=False)
        self._arena.retire(sink.block)
        if stop is not None:
            stop()
        sink.told = SinkEvent(
            event_id=str(self._ids.uuid7()),
            sink_id=sink.sink_id,
            tenant=sink.tenant,
            state=state,
            at_us=sink.finished_us,
            payload_bytes=sink.spec.payload_bytes,
            session_id=sink.session_id,
            decision_id=sink.decision_id,
            reason=reason,
        )
        self._emit(sink.told)

    def _is_stale(self, sink: Sink) -> bool:
        spec = sink.spec
        return self._generations.is_stale(sink.tenant, spec.engine_id, spec.engine_generation)

    def _look_up(self, key: Key) -> Sink | None:
        return self._live.get(key) or self._finished.get(key)

    def _find(self, tenant: str, sink_id: str) -> Sink:
        found = self._look_up((tenant, sink_id))
        if found is None:
            raise NexusError(ErrorCode.NOT_FOUND, "this worker has no such sink")
        return found


class _Generations:
    """The newest generation seen of each engine; the longest unseen engines are forgotten."""

    def __init__(self) -> None:
        self._newest: OrderedDict[Key, int] = OrderedDict()

    def see(self, tenant: str, engine_id: str, generation: int) -> None:
        key = (tenant, engine_id)
        self._newest[key] = max(generation, self._newest.get(key, 0))
        self._newest.move_to_end(key)
        if len(self._newest) > MAX_ENGINES:
            self._newest.popitem(last=False)

    def is_stale(self, tenant: str, engine_id: str, generation: int) -> bool:
        return generation < self._newest.get((tenant, engine_id), 0)


def _stale() -> NexusError:
    return NexusError(
        ErrorCode.STALE_GENERATION,
        "the sink belongs to another engine or generation, or the engine has a newer one",
    )


def _not_complete(sink: Sink) -> NexusError:
    return NexusError(
        ErrorCode.SINK_NOT_COMPLETE, f"the sink is {sink.state}; that takes a complete one"
    )
