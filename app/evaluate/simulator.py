"""A fleet of engines that a trace is replayed against, event by event. Time is simulated.

An engine computes one prefill at a time, first come first served among those whose state has
arrived; decodes run beside it and slow it. State moves over links that running transfers share.
What is random was drawn for each request beforehand: it meets every strategy alike.
"""

import heapq
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import NamedTuple, Protocol

from app.contract.enums import TierKind
from app.evaluate.caches import Caches
from app.evaluate.fleet import Fleet
from app.evaluate.moves import Ahead, Moves
from app.evaluate.requests import Request
from app.planner.links import Link, Links
from app.planner.profile import Profile


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
    """One request on its way. `new_tokens` is what was expected to be computed; `at_hand_tokens`
    the longest prefix that any engine had, in any tier, when it was placed."""

    request: Request
    choice: Choice
    ready_us: float
    new_tokens: int
    at_hand_tokens: int
    moved_bytes: float = 0.0
    # How long the transfer took, and how many others ran when it began.
    transfer_us: float = 0.0
    sharing: int = 0
    # The profile's path that it took: a tier, and whether to another node. None for none, and where
    # the topology knows the link.
    path: tuple[TierKind, bool] | None = None
    first_token_us: float = 0.0
    reused_tokens: int = 0
    # Of the prefill: how long it took, and how many tokens were decoding beside it.
    prefill_us: float = 0.0
    decoding_tokens: int = 0


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


class Strategy(Protocol):
    """Chooses for each request as it comes, from what the simulator shows."""

    @property
    def name(self) -> str: ...

    def choose(self, request: Request, world: "Simulator", /) -> Choice: ...

    def observe(self, job: Job, /) -> None:
        """What became of one, once its first token is there."""

    def answered(self, job: Job, world: "Simulator", /) -> float | None:
        """When to ask `ahead` for what this request's next turn may need; None for never."""

    def ahead(self, job: Job, world: "Simulator", /) -> Ahead | None:
        """What to move before the next turn comes; None for nothing."""


class Simulator:
    """One run of one strategy."""

    def __init__(self, fleet: Fleet, strategy: Strategy) -> None:
        self.fleet = fleet
        self.profile: Profile = fleet.profile
        self.engines = [Engine() for _ in range(fleet.engines)]
        block = fleet.block_tokens
        self.caches = Caches(
            fleet.engines,
            fleet.device_tokens // block,
            fleet.host_tokens // block,
            engines_per_node=fleet.engines_per_node,
            deeper=[(one.kind, one.tokens // block) for one in fleet.tiers],
        )
        self.now_us = 0.0
        self._nodes = [fleet.node(engine) for engine in range(fleet.engines)]
        nodes = fleet.nodes()
        known = {(one, two): Link() for one in nodes for two in nodes}
        for link in fleet.links:
            known[link.origin, link.target] = Link(link.latency_us, link.bytes_per_us)
        self.links = Links(nodes, known)
        self.moves = Moves(self)
        self.done: list[Job] = []
        self._strategy = strategy
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._order = 0

    def run(self, requests: Sequence[Request]) -> list[Job]:
        """Every request's end, in the order of the first tokens."""
        for request in requests:
            self._advance(request.arrival_us)
            self.now_us = request.arrival_us
            choice = self._strategy.choose(request, self)
            self.moves.arrived(request, choice.engine)
            self._dispatch(request, choice)
        self._advance(float("inf"))
        return self.done

    def node(self, engine: int) -> str:
        """The name of the node that it is on."""
        return self._nodes[engine]

    def at(self, time_us: float, happens: Callable[[], None]) -> None:
        """Something is to happen then; at one time, what was said first."""
        self._order += 1
        heapq.heappush(self._events, (time_us, self._order, happens))

    # ---- what is true

    def transfer_us(self, request: Request, choice: Choice, moved_tokens: int) -> float:
        """How long bringing so much takes from now on; infinite where there is no path."""
        assert choice.source is not None
        origin, tier = choice.source
        one, two = self._nodes[origin], self._nodes[choice.engine]
        path, link = self.profile.path(tier, remote=one != two), self.links.get(one, two)
        moved = moved_tokens * self.profile.default_bytes_per_token * (1 + link.in_flight)
        took = 0.0
        if link.bytes_per_us:
            took = link.latency_us + moved / link.bytes_per_us
        if path is None:
            took = took or float("inf")
        elif not link.bytes_per_us or tier not in {TierKind.DEVICE, TierKind.HOST_DRAM}:
            took = max(took, path.latency_us + moved / path.bytes_per_us)
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
        longest = max(self.caches.prefixes(request.blocks)[-1]) * self.fleet.block_tokens
        new_tokens = request.tokens - min(have, request.tokens - 1)
        job = Job(request, choice, self.now_us, new_tokens, longest)
        engine = self.engines[choice.engine]
        if choice.source is not None and choice.reach_tokens > have:
            one, two = self._nodes[choice.source[0]], self._nodes[choice.engine]
            moved = choice.reach_tokens - have
            self.moves.give_way(one, two)
            job.new_tokens = request.tokens - min(choice.reach_tokens, request.tokens - 1)
            job.moved_bytes = moved * self.profile.default_bytes_per_token
            job.transfer_us = self.transfer_us(request, choice, moved)
            link = self.links.get(one, two)
            job.sharing = link.in_flight
            job.path = None if link.bytes_per_us else (choice.source[1], one != two)
            job.ready_us = self.now_us + job.transfer_us
            self.links.begin(one, two)
            self.at(job.ready_us, partial(self._arrived, job, choice.source[0]))
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
        self.at(engine.until_us, partial(self._prefilled, job))

    def _advance(self, until_us: float) -> None:
        while self._events and self._events[0][0] <= until_us:
            self.now_us, _, happens = heapq.heappop(self._events)
            happens()

    def _arrived(self, job: Job, origin: int) -> None:
        place = job.choice.engine
        self.links.begin(self._nodes[origin], self._nodes[place], -1)
        blocks = job.request.blocks[: job.choice.reach_tokens // self.fleet.block_tokens]
        self.caches.add(place, blocks)
        self._start(place)

    def _prefilled(self, job: Job) -> None:
        place, request = job.choice.engine, job.request
        engine = self.engines[place]
        job.first_token_us = self.now_us
        self.done.append(job)
        self._strategy.observe(job)
        engine.serving = None
        engine.decoding_tokens += request.tokens
        if job.choice.reuse:
            self.caches.add(place, request.blocks)
        ends_us = self.now_us + request.output_tokens * self.fleet.decode_us_per_token
        self.at(ends_us, partial(self._decoded, job))
        self._start(place)

    def _decoded(self, job: Job) -> None:
        self.engines[job.choice.engine].decoding_tokens -= job.request.tokens
        again_us = self._strategy.answered(job, self)
        if again_us is not None:
            self.at(max(again_us, self.now_us), partial(self._look_ahead, job))
        self._start(job.choice.engine)

    def _look_ahead(self, job: Job) -> None:
        wanted = self._strategy.ahead(job, self)
        if wanted is not None:
            self.moves.begin(job.request, wanted)
