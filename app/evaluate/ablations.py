"""The planner with one of its parts left out, and with one more: what each is worth."""

from collections import OrderedDict
from collections.abc import Iterator, Sequence
from typing import Final

from msgspec import structs

from app.contract.enums import TierKind
from app.evaluate.simulator import Ahead, Choice, Job, Request, Simulator, Strategy
from app.evaluate.strategies import Calibrated, Planned, choice_of
from app.planner.choose import Alternative, PlanAction
from app.planner.prefetch import worth_us
from app.planner.pricing import Priced, Waiting, bringing, computing, waiting
from app.planner.profile import Profile
from app.planner.question import CostBounds, Question, Target

_HOST: Final = TierKind.HOST_DRAM
# How long after its answer a conversation is thought to go on, how many of them are kept in mind
# for each engine, and how many are brought at a time.
_THINKS_US: Final = 120e6
_MAX_WAITING: Final = 64
_MAX_AHEAD: Final = 2


class _OneByOne(Planned):
    """As the planner prices each pair, with one thing told otherwise; then the soonest."""

    def choose(self, request: Request, world: Simulator) -> Choice:
        question = self.question(request, world)
        ways = sorted(self._ways(question), key=lambda one: one[:2])
        return choice_of(ways[0][2])

    def _wait(self, target: Target) -> Waiting:
        return waiting(target)

    def _may(self, priced: Priced) -> bool:
        bounds = self.bounds
        least_us = priced.gain_us - bounds.deviations * priced.gain_deviation_us
        return least_us > bounds.min_gain_us

    def _ways(self, question: Question) -> Iterator[tuple[float, int, Alternative]]:
        for at, target in enumerate(question.targets):
            wait = self._wait(target)
            compute = computing(question, target, wait)
            yield compute.total_us, at, Alternative(PlanAction.RECOMPUTE, target, compute)
            for source in question.sources:
                priced = bringing(question, target, wait, source, compute)
                if isinstance(priced, Priced) and self._may(priced):
                    found = Alternative(PlanAction.TRANSFER, target, priced, source)
                    yield priced.total_us, at, found


class WithoutOverlap(_OneByOne):
    """A transfer is taken to be seen whole, whatever the queue hides of it."""

    def _wait(self, target: Target) -> Waiting:
        return waiting(target)._replace(known_us=0.0)


class WithoutAdmission(_OneByOne):
    """State that is at hand is brought, whether or not that gains anything."""

    def choose(self, request: Request, world: Simulator) -> Choice:
        question = self.question(request, world)
        ways = sorted(self._ways(question), key=lambda one: one[:2])
        brought = [one for one in ways if one[2].source is not None]
        return choice_of((brought or ways)[0][2])

    def _may(self, _priced: Priced) -> bool:
        return True


class WithPrefetch(Planned):
    """Conversations that were demoted to memory are brought back to their device before their next
    turn is expected: the latest ones, where that is worth it, a few at a time.

    How likely a next turn is, is learnt: the part of turns that were gone on from.
    """

    def __init__(self, profile: Profile, name: str = "") -> None:
        super().__init__(profile, name=name)
        # By engine the last block of each conversation: its blocks, and when it was answered.
        self._waiting: dict[int, OrderedDict[int, tuple[tuple[int, ...], float]]] = {}
        self._ended, self._continued = 1, 0

    def choose(self, request: Request, world: Simulator) -> Choice:
        for block in request.blocks:
            for waiting_here in self._waiting.values():
                self._continued += waiting_here.pop(block, None) is not None
        return super().choose(request, world)

    def ahead(self, job: Job, world: Simulator) -> Sequence[Ahead]:
        blocks, place = job.request.blocks, job.choice.engine
        if not blocks:
            return ()
        self._ended += 1
        here = self._waiting.setdefault(place, OrderedDict())
        here[blocks[-1]] = blocks, world.now_us
        while len(here) > _MAX_WAITING:
            here.popitem(last=False)
        found = []
        for last, (turn, ended_us) in list(here.items()):
            if world.now_us - ended_us > _THINKS_US:
                del here[last]
            elif (one := self._worth(place, turn, ended_us, world)) is not None:
                found.append(one)
                if len(found) == _MAX_AHEAD:
                    break
        return found

    def _worth(
        self, place: int, blocks: tuple[int, ...], ended_us: float, world: Simulator
    ) -> Ahead | None:
        near = world.caches.device_prefix(place, blocks)
        if near == len(blocks) or blocks[near] not in world.caches.host(place):
            return None
        missing = blocks[near:]
        path = self.profile.path(_HOST, remote=False)
        if path is None:
            return None
        moved = len(missing) * world.fleet.block_tokens * self.profile.default_bytes_per_token
        transfer_us = path.latency_us + moved / path.bytes_per_us
        # What leaves the device for it may be missed as much as this is.
        worth = worth_us(
            min(1.0, self._continued / self._ended), transfer_us, transfer_us, transfer_us, 0.0
        )
        if worth <= 0:
            return None
        return Ahead((place, _HOST), place, missing, ended_us + _THINKS_US)


def ablations(profile: Profile, wrong: Profile) -> list[Strategy]:
    """NexusKV first; `wrong` is the profile that calibration has to repair."""
    unhindered = structs.replace(profile, decode_slowdown=0.0)
    return [
        Planned(profile),
        Planned(profile, CostBounds(deviations=0.0), "without uncertainty"),
        WithoutOverlap(profile, name="without overlap"),
        Planned(unhindered, name="without interference"),
        WithoutAdmission(profile, name="without admission"),
        WithPrefetch(profile, "with prefetch"),
        Calibrated(wrong, "wrong profile, with calibration"),
        Planned(wrong, name="wrong profile, without calibration"),
    ]
