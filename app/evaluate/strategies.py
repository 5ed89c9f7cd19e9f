"""The strategies that are compared: what others publish, ours, and one that knows the truth."""

from collections.abc import Iterable, Sequence
from typing import Final

from app.contract.enums import TierKind
from app.evaluate.simulator import Choice, Request, Simulator, node_of
from app.planner.choose import plan
from app.planner.profile import Profile
from app.planner.question import CostBounds, Question, Source, Target

_DEVICE, _HOST = TierKind.DEVICE, TierKind.HOST_DRAM


class RecomputeAlways:
    """The shortest queue, and nothing is reused."""

    name = "recompute always"

    def choose(self, _request: Request, world: Simulator) -> Choice:
        return Choice(_least_queued(world), reuse=False)


class EngineLocal:
    """The shortest queue; an engine reuses what its own device has."""

    name = "engine-local prefix cache"

    def choose(self, _request: Request, world: Simulator) -> Choice:
        return Choice(_least_queued(world))


class HitDriven:
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


class BlockWeights:
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


class TierWeights:
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


class Planned:
    """NexusKV's planner, unmodified, on a profile that may be wrong."""

    def __init__(self, profile: Profile, bounds: CostBounds | None = None, name: str = "") -> None:
        self.name = name or "NexusKV"
        self.profile = profile
        self._bounds = bounds or CostBounds()

    def choose(self, request: Request, world: Simulator) -> Choice:
        block = world.fleet.block_tokens
        device, anywhere = world.caches.prefixes(request.blocks)
        question = Question(
            request.tokens,
            tuple(
                self._target(world, place, tokens * block) for place, tokens in enumerate(device)
            ),
            tuple(self._sources(device, anywhere, block)),
            world.links,
            bounds=self._bounds,
        )
        chosen = plan(question).chosen
        target = int(chosen.target.engine_id)
        told = Choice(target, predicted_us=chosen.priced.total_us)
        if chosen.source is None:
            return told
        origin = int(chosen.source.entry_id)
        return told._replace(source=(origin, chosen.source.tier), reach_tokens=chosen.source.tokens)

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


class Oracle:
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
