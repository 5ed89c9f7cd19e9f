"""The strategies that are compared: what others publish, ours, and one that knows the truth."""

from collections.abc import Iterable, Sequence
from typing import Final

from app.contract.enums import TierKind
from app.evaluate.simulator import Ahead, Choice, Job, Request, Simulator, node_of
from app.planner.calibrate import NEW, Estimator, Part, calibrated, observed
from app.planner.choose import Alternative, Plan, plan
from app.planner.profile import Profile
from app.planner.question import CostBounds, Question, Source, Target

_DEVICE, _HOST = TierKind.DEVICE, TierKind.HOST_DRAM


class _Blind:
    """Learns nothing."""

    def observe(self, _job: Job) -> None:
        """What became of a request changes nothing."""

    def ahead(self, _job: Job, _world: Simulator) -> Sequence[Ahead]:
        """Nothing is brought before it is asked for."""
        return ()


class RecomputeAlways(_Blind):
    """The shortest queue, and nothing is reused."""

    name = "recompute always"

    def choose(self, _request: Request, world: Simulator) -> Choice:
        return Choice(_least_queued(world), reuse=False)


class EngineLocal(_Blind):
    """The shortest queue; an engine reuses what its own device has."""

    name = "engine-local prefix cache"

    def choose(self, _request: Request, world: Simulator) -> Choice:
        return Choice(_least_queued(world))


class HitDriven(_Blind):
    """The shortest queue; the longest hit of the fleet is always brought there."""

    name = "hit-driven"

    def choose(self, request: Request, world: Simulator) -> Choice:
        target = _least_queued(world)
        device, anywhere = world.caches.prefixes(request.blocks)
        longest = max(range(len(anywhere)), key=lambda engine: (anywhere[engine], engine == target))
        tier = _DEVICE if device[longest] == anywhere[longest] else _HOST
        reach = anywhere[longest] * world.fleet.block_tokens
        if longest == target and tier is _DEVICE:
            return Choice(target)
        return Choice(target, (longest, tier), reach)


class BlockWeights(_Blind):
    """Dynamo's published cost: prefill blocks left after credit for overlap, and decode blocks. The
    lowest is taken; what its node's memory has beyond the device is loaded.
    """

    def __init__(self, prefill_scale: float = 1.0, host_weight: float = 0.75) -> None:
        self.name = f"block weights ({prefill_scale:g}, {host_weight:g})"
        self._scale = prefill_scale
        self._host = host_weight

    def choose(self, request: Request, world: Simulator) -> Choice:
        block = world.fleet.block_tokens
        device, anywhere = world.caches.prefixes(request.blocks)
        costs = []
        for place, engine in enumerate(world.engines):
            _, queued = engine.queued(world.now_us)
            credit = device[place] + self._host * (anywhere[place] - device[place])
            prefill = max(0.0, (queued + request.tokens) / block - credit)
            costs.append((self._scale * prefill + engine.decoding_tokens / block, place))
        place = min(costs)[1]
        return _with_host(world, place, device[place], anywhere[place])


class TierWeights(_Blind):
    """llm-d's score: of each leading block its best tier's weight (device 1, memory 0.8), as a part
    of all blocks; less the queue as a part of the longest, by a weight. The highest is taken.
    """

    def __init__(self, load_weight: float = 1.0) -> None:
        self.name = f"tier weights ({load_weight:g})"
        self._load = load_weight

    def choose(self, request: Request, world: Simulator) -> Choice:
        device, anywhere = world.caches.prefixes(request.blocks)
        queues = [engine.queued(world.now_us)[0] for engine in world.engines]
        longest = max(queues) or 1
        blocks = max(len(request.blocks), 1)
        scores = [
            (
                (device[place] + 0.8 * (anywhere[place] - device[place])) / blocks
                - self._load * queues[place] / longest,
                -place,
            )
            for place in range(len(queues))
        ]
        place = -max(scores)[1]
        return _with_host(world, place, device[place], anywhere[place])


class Planned(_Blind):
    """NexusKV's planner, unmodified, on a profile that may be wrong."""

    def __init__(self, profile: Profile, bounds: CostBounds | None = None, name: str = "") -> None:
        self.name = name or "NexusKV"
        self.profile = profile
        self.bounds = bounds or CostBounds()

    def choose(self, request: Request, world: Simulator) -> Choice:
        return choice_of(self._plan(request, world).chosen)

    def question(self, request: Request, world: Simulator) -> Question:
        """What the planner is asked of a request."""
        block = world.fleet.block_tokens
        device, anywhere = world.caches.prefixes(request.blocks)
        return Question(
            request.tokens,
            tuple(
                self._target(world, place, tokens * block) for place, tokens in enumerate(device)
            ),
            tuple(self._sources(device, anywhere, block)),
            world.links,
            bounds=self.bounds,
        )

    def _plan(self, request: Request, world: Simulator) -> Plan:
        return plan(self.question(request, world))

    def _target(self, world: Simulator, place: int, local_tokens: int) -> Target:
        engine = world.engines[place]
        depth, queued = engine.queued(world.now_us)
        return Target(
            f"{place:02}",
            1,
            node_of(place),
            self.profile,
            local_tokens=local_tokens,
            queue_depth=depth,
            queued_prefill_tokens=queued,
            running_decode_tokens=engine.decoding_tokens,
            # What else is on the device makes way.
            free_tokens=max(0, world.fleet.device_tokens - local_tokens),
        )

    def _sources(
        self, device: Sequence[int], anywhere: Sequence[int], block: int
    ) -> Iterable[Source]:
        each = self.profile.default_bytes_per_token
        for place, (near, far) in enumerate(zip(device, anywhere, strict=True)):
            if near:
                yield Source(f"{place:02}", node_of(place), _DEVICE, near * block, each)
            if far > near:
                yield Source(f"{place:02}", node_of(place), _HOST, far * block, each)


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
        found = self._plan(request, world)
        if request.number % self._explores == 0:
            others = [one for one in found.alternatives if one.source is not None]
            if found.chosen.source is None and others:
                return choice_of(others[0])
        return choice_of(found.chosen)

    def observe(self, job: Job) -> None:
        """Its prefill and its transfer, against what the profile as it was given says."""
        base, request = self._base, job.request
        have = job.reused_tokens
        slowdown = 1 + base.decode_slowdown * job.decoding_tokens
        computed = base.prefill.recompute_us(request.tokens - have, have) * slowdown
        self._learn(None, base.prefill.schedule_us + computed, job.prefill_us)
        if job.choice.source is not None and job.transfer_us:
            origin, tier = job.choice.source
            remote = origin != job.choice.engine
            path = base.path(tier, remote=remote)
            if path is not None:
                moving = job.moved_bytes * (1 + job.sharing) / path.bytes_per_us
                self._learn((tier, remote), path.latency_us + moving, job.transfer_us)
        self.profile = calibrated(base, self._known)

    def _learn(self, part: Part, predicted_us: float, observed_us: float) -> None:
        before = self._known.get(part, NEW)
        self._known[part] = observed(before, predicted_us, observed_us).estimator


class Oracle(_Blind):
    """Makes the same choice with true costs and true queues: the end of its own prefill is the
    soonest. It does not know what comes later.
    """

    name = "oracle"

    def choose(self, request: Request, world: Simulator) -> Choice:
        return min(
            (
                (self._first_token_us(request, world, choice), number, choice)
                for number, choice in enumerate(self._choices(request, world))
            ),
            key=lambda one: one[:2],
        )[2]

    def _choices(self, request: Request, world: Simulator) -> Iterable[Choice]:
        device, anywhere = world.caches.prefixes(request.blocks)
        block = world.fleet.block_tokens
        for target in range(len(device)):
            yield Choice(target)
            for origin, (near, far) in enumerate(zip(device, anywhere, strict=True)):
                for tier, reach in ((_DEVICE, near), (_HOST, far)):
                    if reach > device[target] and (tier is _DEVICE) == (reach == near):
                        yield Choice(target, (origin, tier), reach * block)

    def _first_token_us(self, request: Request, world: Simulator, choice: Choice) -> float:
        engine = world.engines[choice.engine]
        wait = max(0.0, engine.until_us - world.now_us) if engine.serving else 0.0
        for job in engine.waiting:
            have = job.request.tokens - job.new_tokens
            wait += world.prefill_us(job.request, engine, have)
        have = world.reach(request, choice.engine)
        if choice.source is not None:
            moved = choice.reach_tokens - have
            wait = max(wait, world.transfer_us(request, choice, moved))
            have = choice.reach_tokens
        return wait + world.prefill_us(request, engine, have)


def choice_of(found: Alternative) -> Choice:
    """What the simulator does of an alternative."""
    told = Choice(int(found.target.engine_id), predicted_us=found.priced.total_us)
    if found.source is None:
        return told
    origin = int(found.source.entry_id)
    return told._replace(source=(origin, found.source.tier), reach_tokens=found.source.tokens)


def _least_queued(world: Simulator) -> int:
    return min(
        range(len(world.engines)),
        key=lambda place: (world.engines[place].queued(world.now_us)[1], place),
    )


def _with_host(world: Simulator, place: int, device: int, anywhere: int) -> Choice:
    if anywhere <= device:
        return Choice(place)
    return Choice(place, (place, _HOST), anywhere * world.fleet.block_tokens)


BLOCK_WEIGHTS: Final = tuple(
    BlockWeights(scale, host)
    for scale in (1.0, 2.0, 4.0, 8.0, 16.0, 32.0)
    for host in (0.5, 0.75, 1.0)
)
TIER_WEIGHTS: Final = tuple(TierWeights(weight) for weight in (0.125, 0.25, 0.5, 1.0, 2.0, 4.0))
