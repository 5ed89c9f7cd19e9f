"""A fleet of engines that a trace is replayed against, event by event. Time is simulated.

An engine computes one prefill at a time, first come first served among those whose state has
arrived; decodes run beside it and slow it. State moves over links that running transfers share.
What is random was drawn for each request beforehand: it meets every strategy alike.
"""

import heapq
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from math import exp
from typing import Final, NamedTuple, Protocol

from app.contract.enums import TierKind
from app.evaluate.caches import Caches
from app.evaluate.fleet import Fleet
from app.planner.links import Link, Links
from app.planner.profile import Profile

_LOCAL: Final = TierKind.HOST_DRAM


class Request(NamedTuple):
    """One of the trace, at its simulated time; `blocks` are its whole ones. The factors are what
    chance makes of true times."""

    number: int
    arrival_us: float
    tokens: int
    output_tokens: int
    blocks: tuple[int, ...]
    prefill_factor: float
    transfer_factor: float


class Choice(NamedTuple):
    """Where a request runs. `source` is (engine, tier) of state up to `reach_tokens` to bring.
    Without `reuse` not even what the engine has is used. `predicted_us` until the first token."""

    engine: int
    source: tuple[int, TierKind] | None = None
    reach_tokens: int = 0
    reuse: bool = True
    predicted_us: float | None = None


@dataclass(slots=True)
class Job:
    """One request on its way. `new_tokens` is what was expected to be computed."""

    request: Request
    choice: Choice
    ready_us: float
    new_tokens: int
    moved_bytes: float = 0.0
    # How long the transfer took, and how many others ran when it began.
    transfer_us: float = 0.0
    sharing: int = 0
    first_token_us: float = 0.0
    reused_tokens: int = 0
    # Of the prefill: how long it took, and how many tokens were decoding beside it.
    prefill_us: float = 0.0
    decoding_tokens: int = 0


class Ahead(NamedTuple):
    """State that is brought before anybody asks for it: blocks from a tier of one engine to the
    device of another, useful until `until_us`; what is not there by then is given up.
    """

    source: tuple[int, TierKind]
    engine: int
    blocks: tuple[int, ...]
    until_us: float


@dataclass(slots=True)
class Engine:
    """What one engine is at."""

    waiting: deque[Job] = field(default_factory=deque)
    serving: Job | None = None
    began_us: float = 0.0
    until_us: float = 0.0
    decoding_tokens: int = 0

    def queued(self, now_us: float) -> tuple[int, int]:
        """Requests and tokens whose prefill is to come, the running one with what is left of it."""
        tokens = sum(job.new_tokens for job in self.waiting)
        if self.serving is None:
            return len(self.waiting), tokens
        span = max(self.until_us - self.began_us, 1.0)
        left = max(0.0, (self.until_us - now_us) / span)
        return len(self.waiting) + 1, tokens + round(self.serving.new_tokens * left)


class Chance(Protocol):
    """Where random numbers come from; seeded, so that a run can be repeated."""

    def gauss(self, mu: float, sigma: float) -> float: ...


class Strategy(Protocol):
    """Chooses for each request as it comes, from what the simulator shows."""

    @property
    def name(self) -> str: ...

    def choose(self, request: Request, world: "Simulator", /) -> Choice: ...

    def observe(self, job: Job, /) -> None:
        """What became of one, once its first token is there."""

    def ahead(self, job: Job, world: "Simulator", /) -> Sequence[Ahead]:
        """What to bring ahead of its use, now that one is answered whole."""


class Simulator:
    """One run of one strategy."""

    def __init__(self, fleet: Fleet, strategy: Strategy) -> None:
        self.fleet = fleet
        self.profile: Profile = fleet.profile
        self.engines = [Engine() for _ in range(fleet.engines)]
        block = fleet.block_tokens
        self.caches = Caches(
            fleet.engines, fleet.device_tokens // block, fleet.host_tokens // block
        )
        self.now_us = 0.0
        nodes = [node_of(engine) for engine in range(fleet.engines)]
        self.links = Links(nodes, {(one, two): Link() for one in nodes for two in nodes})
        self._strategy = strategy
        self._events: list[tuple[float, int, int, Job | Ahead, int]] = []
        self._order = 0
        self.done: list[Job] = []
        # Of what was brought ahead: bytes, those that were late, and what waits to be used.
        self.ahead_bytes = 0.0
        self.ahead_late = 0

    def run(self, requests: Sequence[Request]) -> list[Job]:
        """Every request's end, in the order of the first tokens."""
        for request in requests:
            self._advance(request.arrival_us)
            self.now_us = request.arrival_us
            self._dispatch(request, self._strategy.choose(request, self))
        self._advance(float("inf"))
        return self.done

    # ---- what is true

    def transfer_us(self, request: Request, choice: Choice, moved_tokens: int) -> float:
        """How long bringing so much takes from now on; infinite where there is no path."""
        assert choice.source is not None
        origin, tier = choice.source
        path = self.profile.path(tier, remote=origin != choice.engine)
        if path is None:
            return float("inf")
        running = self.links.get(node_of(origin), node_of(choice.engine)).in_flight
        moved = moved_tokens * self.profile.default_bytes_per_token
        took = path.latency_us + moved * (1 + running) / path.bytes_per_us
        return took * request.transfer_factor + self.profile.restore_us

    def prefill_us(self, request: Request, engine: Engine, have_tokens: int) -> float:
        """How long its prefill takes there now, so much being there."""
        prefill = self.profile.prefill
        have = min(have_tokens, request.tokens - 1)
        slowdown = 1 + self.profile.decode_slowdown * engine.decoding_tokens
        computed = prefill.recompute_us(request.tokens - have, have) * slowdown
        return (prefill.schedule_us + computed) * request.prefill_factor

    def reach(self, request: Request, engine: int) -> int:
        """Tokens of it that the engine's device has."""
        blocks = self.caches.device_prefix(engine, request.blocks)
        return blocks * self.fleet.block_tokens

    # ---- events

    def _dispatch(self, request: Request, choice: Choice) -> None:
        have = self.reach(request, choice.engine) if choice.reuse else 0
        job = Job(request, choice, self.now_us, request.tokens - min(have, request.tokens - 1))
        engine = self.engines[choice.engine]
        if choice.source is not None and choice.reach_tokens > have:
            origin, _ = choice.source
            moved = choice.reach_tokens - have
            job.new_tokens = request.tokens - min(choice.reach_tokens, request.tokens - 1)
            job.moved_bytes = moved * self.profile.default_bytes_per_token
            job.transfer_us = self.transfer_us(request, choice, moved)
            job.sharing = self.links.get(node_of(origin), node_of(choice.engine)).in_flight
            job.ready_us = self.now_us + job.transfer_us
            self.links.begin(node_of(origin), node_of(choice.engine))
            self._at(job.ready_us, _READY, job, choice.engine)
        engine.waiting.append(job)
        self._start(choice.engine)

    def _start(self, place: int) -> None:
        engine = self.engines[place]
        if engine.serving is not None:
            return
        job = next((one for one in engine.waiting if one.ready_us <= self.now_us), None)
        if job is None:
            return
        engine.waiting.remove(job)
        have = self.reach(job.request, place) if job.choice.reuse else 0
        job.reused_tokens = min(have, job.request.tokens - 1)
        engine.serving, engine.began_us = job, self.now_us
        job.decoding_tokens = engine.decoding_tokens
        job.prefill_us = self.prefill_us(job.request, engine, have)
        engine.until_us = self.now_us + job.prefill_us
        self._at(engine.until_us, _PREFILLED, job, place)

    def _advance(self, until_us: float) -> None:
        while self._events and self._events[0][0] <= until_us:
            self.now_us, _, kind, job, place = heapq.heappop(self._events)
            if isinstance(job, Ahead):
                self._brought(job)
                continue
            if kind == _READY:
                self._arrived(job, place)
            elif kind == _PREFILLED:
                self._prefilled(job, place)
            else:
                self.engines[place].decoding_tokens -= job.request.tokens
                for ahead in self._strategy.ahead(job, self):
                    self._bring(ahead)
            self._start(place)

    def _bring(self, ahead: Ahead) -> None:
        """On the same links as everything else, and given up where it would be late."""
        origin, tier = ahead.source
        path = self.profile.path(tier, remote=origin != ahead.engine)
        if path is None or not ahead.blocks:
            return
        link = self.links.get(node_of(origin), node_of(ahead.engine))
        moved = len(ahead.blocks) * self.fleet.block_tokens * self.profile.default_bytes_per_token
        took_us = path.latency_us + moved * (1 + link.in_flight) / path.bytes_per_us
        if self.now_us + took_us > ahead.until_us:
            self.ahead_late += 1
            return
        self.ahead_bytes += moved
        self.links.begin(node_of(origin), node_of(ahead.engine))
        self._at(self.now_us + took_us, _BROUGHT, ahead, ahead.engine)

    def _brought(self, ahead: Ahead) -> None:
        self.links.begin(node_of(ahead.source[0]), node_of(ahead.engine), -1)
        self.caches.add(ahead.engine, ahead.blocks)

    def _arrived(self, job: Job, place: int) -> None:
        assert job.choice.source is not None
        self.links.begin(node_of(job.choice.source[0]), node_of(place), -1)
        blocks = job.request.blocks[: job.choice.reach_tokens // self.fleet.block_tokens]
        self.caches.add(place, blocks)

    def _prefilled(self, job: Job, place: int) -> None:
        engine, request = self.engines[place], job.request
        job.first_token_us = self.now_us
        self.done.append(job)
        self._strategy.observe(job)
        engine.serving = None
        engine.decoding_tokens += request.tokens
        if job.choice.reuse:
            self.caches.add(place, request.blocks)
        ends_us = self.now_us + request.output_tokens * self.fleet.decode_us_per_token
        self._at(ends_us, _DECODED, job, place)

    def _at(self, time_us: float, kind: int, job: Job | Ahead, place: int) -> None:
        self._order += 1
        heapq.heappush(self._events, (time_us, self._order, kind, job, place))


_READY, _PREFILLED, _DECODED, _BROUGHT = range(4)


def node_of(engine: int) -> str:
    return f"node-{engine:02}"


def draw(
    fleet: Fleet,
    trace: Sequence[tuple[float, int, int, Sequence[int]]],
    chance: Chance,
) -> list[Request]:
    """The requests of a trace (ms, input, output, ids), with arrivals scaled to the utilisation."""
    prefill = fleet.profile.prefill
    work_us = sum(
        prefill.schedule_us + prefill.recompute_us(tokens, 0) for _, tokens, _, _ in trace
    )
    span_us = max((trace[-1][0] - trace[0][0]) * 1e3, 1.0)
    scale = work_us / (fleet.engines * fleet.utilisation * span_us)
    return [
        Request(
            number,
            (at_ms - trace[0][0]) * 1e3 * scale,
            tokens,
            output,
            tuple(ids[: tokens // fleet.block_tokens]),
            exp(chance.gauss(0, fleet.prefill_noise)),
            exp(chance.gauss(0, fleet.transfer_noise)),
        )
        for number, (at_ms, tokens, output, ids) in enumerate(trace)
        if tokens > 0
    ]
