"""The life of a sink against a model of it: states, generations, memory, and one event each."""

from contextlib import nullcontext

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    Bundle,
    RuleBasedStateMachine,
    consumes,
    invariant,
    multiple,
    precondition,
    rule,
)

from app.clock import SystemIds
from app.errors import ErrorCode, NexusError
from app.transfer.wire import FinishSink, NewSink, SinkState, TransferFailure
from app.worker.arena import PAGE_BYTES, Arena
from app.worker.failure import TransferFailedError
from app.worker.payloads import Payloads
from app.worker.sinks import DEFAULT_TTL_S, FINISHED_S, TRANSITIONS, Sinks
from tests.control.clock import SetClock

S = SinkState
ENGINES = st.sampled_from(["engine-1", "engine-2"])
GENERATIONS = st.integers(1, 4)


class SinkMachine(RuleBasedStateMachine):
    """Sinks are made, filled, finished and forgotten in any order."""

    names = Bundle("names")
    claims = Bundle("claims")

    def __init__(self):
        super().__init__()
        self.clock = SetClock()
        self.events = []
        payloads = Payloads(Arena(64 * PAGE_BYTES), on_gone=lambda _: None, on_kept=lambda _: None)
        self.arena = payloads.arena
        self.sinks = Sinks(payloads, self.clock, SystemIds(), emit=self.events.append, max_sinks=6)
        self.model = {}
        self.newest = {}
        self.filling = 0
        self.stopped = []

    def teardown(self):
        self.arena.close()

    def live(self):
        return [name for name, (_, state, _) in self.model.items() if TRANSITIONS[state]]

    def stale(self, spec):
        return spec.engine_generation < self.newest.get(spec.engine_id, 0)

    def see(self, engine, generation):
        self.newest[engine] = max(generation, self.newest.get(engine, 0))

    @rule(target=names, engine=ENGINES, generation=GENERATIONS)
    def create(self, engine, generation):
        spec = NewSink(PAGE_BYTES, engine, generation, f"sink-{len(self.model)}")
        if self.stale(spec) or len(self.live()) == 6:
            with pytest.raises(NexusError) as refused:
                self.sinks.create("acme", spec)
            expected = ErrorCode.STALE_GENERATION if self.stale(spec) else ErrorCode.WORKER_FULL
            assert refused.value.code is expected
            return multiple()
        facts, created = self.sinks.create("acme", spec)
        assert created
        self.see(engine, generation)
        self.model[facts.sink_id] = (spec, S.OPEN, self.clock.us + DEFAULT_TTL_S * 10**6)
        return facts.sink_id

    @rule(name=names)
    def create_again(self, name):
        spec, state, _ = self.model[name]
        facts, created = self.sinks.create("acme", spec)
        assert not created
        assert facts.state is state
        other = NewSink(PAGE_BYTES + 1, spec.engine_id, spec.engine_generation, name)
        with pytest.raises(NexusError) as refused:
            self.sinks.create("acme", other)
        assert refused.value.code is ErrorCode.SINK_CONFLICT

    @rule(target=claims, name=names, generation=st.none() | GENERATIONS)
    def claim(self, name, generation):
        spec, state, expires = self.model[name]
        if TRANSITIONS[state] and generation is not None:
            self.see(spec.engine_id, generation)
        failure = None
        if not TRANSITIONS[state]:
            failure = TransferFailure.SINK_NOT_OPEN
        elif self.stale(spec) or generation not in (None, spec.engine_generation):
            failure = TransferFailure.STALE_GENERATION
        elif state is not S.OPEN:
            failure = TransferFailure.SINK_NOT_OPEN
        with nullcontext() if failure is None else pytest.raises(TransferFailedError) as refused:
            sink = self.sinks.claim(
                "acme",
                name,
                engine=(None, generation),
                session_id="session",
                decision_id=None,
                stop=lambda: self.stopped.append(name),
            )
        if failure is not None:
            assert refused.value.failure is failure
            return multiple()
        self.model[name] = (spec, S.FILLING, expires)
        self.filling += 1
        return sink

    @rule(sink=consumes(claims), good=st.booleans())
    def settle(self, sink, good):
        spec, state, expires = self.model[sink.sink_id]
        self.filling -= 1
        became = S.COMPLETE if good and not self.stale(spec) else S.OPEN
        if state is S.FILLING:
            self.model[sink.sink_id] = (spec, became, expires)
        fails = good and (state is not S.FILLING or became is S.OPEN)
        try:
            self.sinks.settle(sink, "0" * 32 if good else None)
            assert not fails
        except TransferFailedError:
            assert fails

    @rule(name=names, generation=GENERATIONS, how=st.sampled_from(["consumed", "discarded"]))
    def finish(self, name, generation, how):
        spec, state, expires = self.model[name]
        self.see(spec.engine_id, generation)
        wanted = SinkState(how)
        code = None
        late = state is not wanted and wanted is S.CONSUMED and self.stale(spec)
        if late or generation != spec.engine_generation:
            code = ErrorCode.STALE_GENERATION
        elif state is not wanted and wanted not in TRANSITIONS[state]:
            code = ErrorCode.SINK_NOT_COMPLETE
        stopped, events = len(self.stopped), len(self.events)
        order = FinishSink(spec.engine_id, generation)
        with nullcontext() if code is None else pytest.raises(NexusError) as refused:
            assert self.sinks.finish("acme", name, order, how).state is wanted
        if code is not None:
            assert refused.value.code is code
        done = code is None and state is not wanted
        assert len(self.events) == events + done
        assert len(self.stopped) == stopped + (done and state is S.FILLING)
        if done:
            self.model[name] = (spec, wanted, expires)

    # Finished sinks are forgotten after an hour; another test waits for that.
    @precondition(lambda self: self.clock.us < FINISHED_S / 2 * 10**6)
    @rule(seconds=st.sampled_from([1, DEFAULT_TTL_S / 2, DEFAULT_TTL_S]))
    def time_passes(self, seconds):
        self.clock.advance(seconds)
        self.sinks.sweep()
        for name, (spec, state, expires) in self.model.items():
            if state in (S.OPEN, S.COMPLETE) and expires <= self.clock.us:
                self.model[name] = (spec, S.EXPIRED, expires)

    @invariant()
    def all_is_as_the_model_says(self):
        for name, (_, state, _) in self.model.items():
            assert self.sinks.facts("acme", name).state is state
            with pytest.raises(NexusError) as foreign:
                self.sinks.facts("rival", name)
            assert foreign.value.code is ErrorCode.NOT_FOUND
            if state is not S.COMPLETE:
                with pytest.raises(NexusError), self.sinks.content("acme", name):
                    pass
        finished = [name for name in self.model if name not in self.live()]
        assert sorted(event.sink_id for event in self.events) == sorted(finished)
        assert self.arena.pins == self.filling
        # A finished sink keeps its memory only while a transfer is still writing to it.
        assert len(self.live()) <= self.arena.blocks <= len(self.live()) + self.filling


SinkMachine.TestCase.settings = settings(max_examples=50, stateful_step_count=40, deadline=None)
test_sink_machine = SinkMachine.TestCase


def test_finished_sinks_are_forgotten_after_a_while():
    clock = SetClock()
    payloads = Payloads(Arena(4 * PAGE_BYTES), on_gone=lambda _: None, on_kept=lambda _: None)
    sinks = Sinks(payloads, clock, SystemIds(), emit=lambda _: None, max_finished=2)
    for number in range(3):
        sinks.create("acme", NewSink(1, "e", 1, f"s{number}"))
        sinks.finish("acme", f"s{number}", FinishSink("e", 1), "discarded")
    with pytest.raises(NexusError):
        sinks.facts("acme", "s0")
    assert sinks.facts("acme", "s1").state is S.DISCARDED
    clock.advance(FINISHED_S + 1)
    sinks.sweep()
    with pytest.raises(NexusError):
        sinks.facts("acme", "s1")
