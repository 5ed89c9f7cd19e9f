"""The strategies that are compared: what others publish, ours, and one that knows the truth."""

from collections.abc import Iterable, Iterator, Sequence
from typing import Final

from app.evaluate.moves import Ahead
from app.evaluate.requests import Request
from app.evaluate.simulator import Choice, Engine, Job, Simulator
from app.planner.calibrate import NEW, Estimator, Part, calibrated, observed
from app.planner.choose import Alternative, Plan, plan
from app.planner.profile import Profile
from app.planner.question import CostBounds, Question, Source, Target

# llm-d publishes weights for a device and for memory. Nobody publishes any for what is below:
# half of what the tier above has.
_TIER_WEIGHTS: Final = (1.0, 0.8, 0.4, 0.2, 0.1)
# Dynamo's, for all that is below memory.
_DISK_WEIGHT: Final = 0.25


class Blind:
    """Learns nothing, and moves nothing ahead."""

    def observe(self, _job: Job) -> None:
        """What became of a request changes nothing."""

    def answered(self, _job: Job, _world: Simulator) -> float | None:
        """It never looks ahead."""
        return None

    def ahead(self, _job: Job, _world: Simulator) -> Ahead | None:
        """It moves nothing."""
        return None


class RecomputeAlways(Blind):
    """The shortest queue, and nothing is reused."""

    name = "recompute always"

    def choose(self, _request: Request, world: Simulator) -> Choice:
        return Choice(_least_queued(world), reuse=False)


class EngineLocal(Blind):
    """The shortest queue; an engine reuses what its own device has."""

    name = "engine-local prefix cache"

    def choose(self, _request: Request, world: Simulator) -> Choice:
        return Choice(_least_queued(world))


class HitDriven(Blind):
    """The shortest queue; the longest hit of the fleet is always brought there."""

    name = "hit-driven"

    def choose(self, request: Request, world: Simulator) -> Choice:
        target = _least_queued(world)
        held = world.caches.prefixes(request.blocks)
        anywhere = held[-1]
        longest = max(range(len(anywhere)), key=lambda engine: (anywhere[engine], engine == target))
        return _fetching(world, target, longest, held)


class BlockWeights(Blind):
    """Dynamo's published cost: prefill blocks left after credit for overlap, and decode blocks. The
    lowest is taken; what its node's memory has beyond the device is loaded.
    """

    def __init__(self, prefill_scale: float = 1.0, host_weight: float = 0.75) -> None:
        self.name = f"block weights ({prefill_scale:g}, {host_weight:g})"
        self._scale = prefill_scale
        self._host = host_weight

    def choose(self, request: Request, world: Simulator) -> Choice:
        block = world.fleet.block_tokens
        held = world.caches.prefixes(request.blocks)
        weights = (1.0, self._host, *[_DISK_WEIGHT] * (len(held) - 2))
        costs = []
        for place, engine in enumerate(world.engines):
            _, queued = engine.queued(world.now_us)
            credit = _weighed(held, place, weights)
            prefill = max(0.0, (queued + request.tokens) / block - credit)
            costs.append((self._scale * prefill + engine.decoding_tokens / block, place))
        place = min(costs)[1]
        return _fetching(world, place, place, held)


class TierWeights(Blind):
    """llm-d's score: of each leading block its best tier's weight (device 1, memory 0.8), as a part
    of all blocks; less the queue as a part of the longest, by a weight. The highest is taken.
    """

    def __init__(self, load_weight: float = 1.0) -> None:
        self.name = f"tier weights ({load_weight:g})"
        self._load = load_weight

    def choose(self, request: Request, world: Simulator) -> Choice:
        held = world.caches.prefixes(request.blocks)
        queues = [engine.queued(world.now_us)[0] for engine in world.engines]
        longest = max(queues) or 1
        blocks = max(len(request.blocks), 1)
        scores = [
            (
                _weighed(held, place, _TIER_WEIGHTS) / blocks
                - self._load * queues[place] / longest,
                -place,
            )
            for place in range(len(queues))
        ]
        place = -max(scores)[1]
        return _fetching(world, place, place, held)


class Planned(Blind):
    """NexusKV's planner, unmodified, on a profile that may be wrong."""

    def __init__(self, profile: Profile, bounds: CostBounds | None = None, name: str = "") -> None:
        self.name = name or "NexusKV"
        self.profile = profile
        self.bounds = bounds or CostBounds()

    def choose(self, request: Request, world: Simulator) -> Choice:
        question = self.question(request.tokens, request.blocks, world)
        return chosen(self.plan(question).chosen)

    def plan(self, question: Question) -> Plan:
        """What the planner says."""
        return plan(question)

    def question(self, tokens: int, blocks: tuple[int, ...], world: Simulator) -> Question:
        """What a router knows at this moment, about a prompt that begins with these blocks."""
        block, held = world.fleet.block_tokens, world.caches.prefixes(blocks)
        return Question(
            tokens,
            tuple(
                self.target(world, place, prefix * block) for place, prefix in enumerate(held[0])
            ),
            tuple(self._sources(held, world)),
            world.links,
            bounds=self.bounds,
        )

    def target(self, world: Simulator, place: int, local_tokens: int) -> Target:
        """One engine as it is now."""
        engine = world.engines[place]
        depth, queued = engine.queued(world.now_us)
        return Target(
            f"{place:02}",
            1,
            world.node(place),
            self.profile,
            local_tokens=local_tokens,
            queue_depth=depth,
            queued_prefill_tokens=queued,
            running_decode_tokens=engine.decoding_tokens,
        )

    def _sources(self, held: Sequence[Sequence[int]], world: Simulator) -> Iterable[Source]:
        each, block = self.profile.default_bytes_per_token, world.fleet.block_tokens
        for place in range(len(held[0])):
            for level, reach in _steps(held, place):
                tier = world.caches.tiers[level]
                yield Source(f"{place:02}", world.node(place), tier, reach * block, each)


class Calibrated(Planned):
    """The same, whose profile follows what it observes; one request in `explores` takes a transfer
    that is not thought to be worth it, where there is one: what is never done is never learnt.
    """

    def __init__(
        self, profile: Profile, name: str, *, explores: int = 50, bounds: CostBounds | None = None
    ) -> None:
        super().__init__(profile, bounds, name)
        self._base = profile
        self._known: dict[Part, Estimator] = {}
        self._explores = explores

    def choose(self, request: Request, world: Simulator) -> Choice:
        found = self.plan(self.question(request.tokens, request.blocks, world))
        if request.number % self._explores == 0:
            others = [one for one in found.alternatives if one.source is not None]
            if found.chosen.source is None and others:
                return chosen(others[0])
        return chosen(found.chosen)

    def observe(self, job: Job) -> None:
        """Its prefill and its transfer, against what the profile as it was given says. A link that
        the topology knows is not learnt: planning takes its figures, not the profile's.
        """
        base, request = self._base, job.request
        have = job.reused_tokens
        slowdown = 1 + base.decode_slowdown * job.decoding_tokens
        computed = base.prefill.recompute_us(request.tokens - have, have) * slowdown
        self._learn(None, base.prefill.schedule_us + computed, job.prefill_us)
        path = base.path(job.path[0], remote=job.path[1]) if job.path is not None else None
        if path is not None:
            moving = job.moved_bytes * (1 + job.sharing) / path.bytes_per_us
            self._learn(job.path, path.latency_us + moving, job.transfer_us)
        self.profile = calibrated(base, self._known)

    def _learn(self, part: Part, predicted_us: float, observed_us: float) -> None:
        before = self._known.get(part, NEW)
        self._known[part] = observed(before, predicted_us, observed_us).estimator


class Oracle(Blind):
    """Makes the same choice with true costs and true queues: the end of its own prefill is the
    soonest. It does not know what comes later.
    """

    name = "oracle"

    def choose(self, request: Request, world: Simulator) -> Choice:
        waits = [_true_wait_us(world, engine) for engine in world.engines]
        return min(
            (
                (_true_us(request, world, choice, waits[choice.engine]), number, choice)
                for number, choice in enumerate(_choices(request, world))
            ),
            key=lambda one: one[:2],
        )[2]


def _choices(request: Request, world: Simulator) -> Iterable[Choice]:
    held = world.caches.prefixes(request.blocks)
    block = world.fleet.block_tokens
    steps = [(origin, *step) for origin in range(len(held[0])) for step in _steps(held, origin)]
    for target, local in enumerate(held[0]):
        yield Choice(target)
        for origin, level, reach in steps:
            if reach > local:
                yield Choice(target, (origin, world.caches.tiers[level]), reach * block)


def _true_wait_us(world: Simulator, engine: Engine) -> float:
    wait = max(0.0, engine.until_us - world.now_us) if engine.serving else 0.0
    for job in engine.waiting:
        wait += world.prefill_us(job.request, engine, job.request.tokens - job.new_tokens)
    return wait


def _true_us(request: Request, world: Simulator, choice: Choice, wait_us: float) -> float:
    have = world.reach(request, choice.engine)
    if choice.source is not None:
        wait_us = max(wait_us, world.transfer_us(request, choice, choice.reach_tokens - have))
        have = choice.reach_tokens
    return wait_us + world.prefill_us(request, world.engines[choice.engine], have)


def chosen(found: Alternative) -> Choice:
    """The planner's alternative, as the simulator takes it."""
    told = Choice(int(found.target.engine_id), predicted_us=found.priced.total_us)
    if found.source is None:
        return told
    origin, reach_tokens, free_tokens = (
        int(found.source.entry_id), found.source.tokens, found.target.free_tokens,
    )  # fmt: skip
    if free_tokens is not None:
        reach_tokens = min(reach_tokens, found.target.local_tokens + free_tokens)
    return told._replace(source=(origin, found.source.tier), reach_tokens=reach_tokens)


def _least_queued(world: Simulator) -> int:
    return min(
        range(len(world.engines)),
        key=lambda place: (world.engines[place].queued(world.now_us)[1], place),
    )


def _steps(held: Sequence[Sequence[int]], place: int) -> Iterator[tuple[int, int]]:
    """Each tier that makes an engine's prefix longer than the ones above it, and how long."""
    reach = 0
    for level, found in enumerate(held):
        if found[place] > reach:
            reach = found[place]
            yield level, reach


def _weighed(held: Sequence[Sequence[int]], place: int, weights: Sequence[float]) -> float:
    """The blocks of an engine's prefix, each by the weight of the first tier that has it."""
    total, before = 0.0, 0
    for weight, found in zip(weights, held, strict=False):
        total += weight * (found[place] - before)
        before = found[place]
    return total


def _fetching(world: Simulator, target: int, origin: int, held: Sequence[Sequence[int]]) -> Choice:
    """There, with the longest prefix that the origin has in any tier."""
    steps = list(_steps(held, origin))
    if not steps or (origin == target and steps[-1][0] == 0):
        return Choice(target)
    level, reach = steps[-1]
    return Choice(target, (origin, world.caches.tiers[level]), reach * world.fleet.block_tokens)


BLOCK_WEIGHTS: Final = tuple(
    BlockWeights(scale, host)
    for scale in (1.0, 2.0, 4.0, 8.0, 16.0, 32.0)
    for host in (0.5, 0.75, 1.0)
)
TIER_WEIGHTS: Final = tuple(TierWeights(weight) for weight in (0.125, 0.25, 0.5, 1.0, 2.0, 4.0))
