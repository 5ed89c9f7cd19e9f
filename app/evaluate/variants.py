"""NexusKV put together from its parts, so that each can be left out: what is lost without it.

The planner stays as it is; a part is left out of what it is told, or of what is done around it.
"""

from typing import Final, NamedTuple

from msgspec import structs

from app.evaluate.moves import Ahead
from app.evaluate.requests import Request
from app.evaluate.simulator import Choice, Job, Simulator
from app.evaluate.strategies import Calibrated, chosen
from app.evaluate.turns import Expectation, Turns
from app.planner.choose import Alternative, Plan, plan
from app.planner.links import Link, Links
from app.planner.prefetch import worth_us
from app.planner.pricing import waiting
from app.planner.profile import Profile
from app.planner.question import CostBounds, Question, Target

# The terms of a transfer that a request no longer waits for, once the state is there.
_SAVED: Final = frozenset({"lookup", "transfer", "restore", "sync"})


class Parts(NamedTuple):
    """Which ones are there.

    - `uncertainty`: state is brought only where the gain's lower bound is positive;
    - `overlap`: a transfer that passes while the request waits in the queue costs nothing;
    - `interference`: decodes slow prefills, and transfers on a link one another;
    - `calibration`: the profile follows what is observed;
    - `prefetch`: state is moved to where the next turn will be placed, if that is worth it;
    - `admission`: no queue longer than the objective allows, no more brought than has room.
    """

    uncertainty: bool = True
    overlap: bool = True
    interference: bool = True
    calibration: bool = True
    prefetch: bool = True
    admission: bool = True


class Assembled(Calibrated):
    """NexusKV with some of its parts."""

    def __init__(self, profile: Profile, name: str, parts: Parts, slo_us: float) -> None:
        told = profile if parts.interference else structs.replace(profile, decode_slowdown=0.0)
        bounds = CostBounds(
            deviations=1.0 if parts.uncertainty else 0.0,
            max_queue_us=slo_us if parts.admission else 0.0,
        )
        super().__init__(told, name, bounds=bounds)
        self._parts = parts
        self._turns = Turns()
        self._expected: dict[int, Expectation] = {}

    def choose(self, request: Request, world: Simulator) -> Choice:
        self._turns.asked(request.conversation, world.now_us)
        if self._parts.calibration:
            return super().choose(request, world)
        return chosen(self.plan(self.question(request.tokens, request.blocks, world)).chosen)

    def observe(self, job: Job) -> None:
        """Something to learn from, where it is to learn."""
        if self._parts.calibration:
            super().observe(job)

    def question(self, tokens: int, blocks: tuple[int, ...], world: Simulator) -> Question:
        """Without interference, links look idle."""
        found = super().question(tokens, blocks, world)
        if self._parts.interference:
            return found
        return structs.replace(found, links=_idle(world))

    def target(self, world: Simulator, place: int, local_tokens: int) -> Target:
        """With admission, what the device has room for beside what runs and waits there."""
        found = super().target(world, place, local_tokens)
        if not self._parts.admission:
            return found
        taken = (found.running_decode_tokens or 0) + (found.queued_prefill_tokens or 0)
        return structs.replace(found, free_tokens=max(0, world.fleet.device_tokens - taken))

    def plan(self, question: Question) -> Plan:
        """What the planner says; without overlap, as if a transfer began when the queue is over."""
        if self._parts.overlap:
            return plan(question)
        return _one_after_the_other(question)

    # ---- ahead of the next turn

    def answered(self, job: Job, world: Simulator) -> float | None:
        """When the next turn may come."""
        if not self._parts.prefetch:
            return None
        expected = self._turns.answered(job.request.conversation, world.now_us)
        if expected is None:
            return None
        self._expected[job.request.conversation] = expected
        return expected.early_us

    def ahead(self, job: Job, world: Simulator) -> Ahead | None:
        """What the planner would bring if the next turn came now, if it is worth more than it may
        waste."""
        request = job.request
        expected = self._expected.pop(request.conversation, None)
        if expected is None or not self._turns.waits(request.conversation):
            return None
        tokens = request.tokens + request.output_tokens + 1
        found = self.plan(self.question(tokens, request.blocks, world)).chosen
        choice = chosen(found)
        if choice.source is None or self._worth_us(found, choice, expected, world) <= 0:
            return None
        blocks = request.blocks[: choice.reach_tokens // world.fleet.block_tokens]
        return Ahead(choice.engine, choice.source, blocks, expected.late_us) if blocks else None

    def _worth_us(
        self, found: Alternative, choice: Choice, expected: Expectation, world: Simulator
    ) -> float:
        assert choice.source is not None
        origin, tier = choice.source
        remote = world.node(origin) != world.node(choice.engine)
        path = self.profile.path(tier, remote=remote)
        transfer_us = path.latency_us if path is not None else 0.0
        transfer_us += found.priced.moved_bytes / path.bytes_per_us if path is not None else 0.0
        gain_us = sum(part.value_us for part in found.priced.parts if part.name in _SAVED)
        # A move gives way to requests' transfers: it interferes with none.
        pollution_us = self._pollution_us(found, choice.engine, world)
        return worth_us(expected.p_use, gain_us, transfer_us, pollution_us, 0.0)

    def _pollution_us(self, found: Alternative, engine: int, world: Simulator) -> float:
        """Bringing back from memory what has to leave a full device."""
        memory = self.profile.path(world.caches.tiers[1], remote=False)
        if memory is None:
            return 0.0
        room_bytes = (
            world.caches.room(engine)
            * world.fleet.block_tokens
            * self.profile.default_bytes_per_token
        )
        displaced_bytes = max(0.0, found.priced.moved_bytes - room_bytes)
        return displaced_bytes / memory.bytes_per_us


def variants(profile: Profile, slo_us: float, said: str) -> list[Assembled]:
    """All parts, and each one left out; `said` is added to their names."""
    found = [Assembled(profile, f"all parts{said}", Parts(), slo_us)]
    for part in Parts._fields:
        left = Parts()._replace(**{part: False})
        found.append(Assembled(profile, f"without {part}{said}", left, slo_us))
    return found


def _idle(world: Simulator) -> Links:
    nodes = world.fleet.nodes()
    known = {
        (one, two): world.links.get(one, two)._replace(in_flight=0)
        for one in nodes
        for two in nodes
        if world.links.get(one, two) != Link()
    }
    return Links(nodes, known)


def _one_after_the_other(question: Question) -> Plan:
    """Each target asked for alone, as if it were idle, and its queue added to what it says."""
    waits = [waiting(target).queue.value_us for target in question.targets]
    most_us = question.bounds.max_queue_us or float("inf")
    allowed = [place for place, wait in enumerate(waits) if wait <= most_us]
    plans = []
    for place in allowed or range(len(waits)):
        idle = structs.replace(question.targets[place], queue_depth=0, queued_prefill_tokens=0)
        found = plan(structs.replace(question, targets=(idle,)))
        plans.append((found.chosen.priced.total_us + waits[place], place, found))
    total_us, _, best = min(plans, key=lambda one: one[:2])
    priced = best.chosen.priced._replace(total_us=total_us)
    return structs.replace(best, chosen=structs.replace(best.chosen, priced=priced))
