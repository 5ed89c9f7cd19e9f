"""A plan as it is told: to its caller, to the history, to whoever asks why. Pure.

Times are whole microseconds of at most MAX_US, so terms below it add up to their total but for
roundings.
"""

from collections.abc import Iterable, Mapping, Sequence
from itertools import islice
from math import sqrt
from typing import Final

import msgspec

from app.contract.enums import DeviceClass
from app.contract.limits import MAX_I63
from app.lifecycle.plan_question import Asked, Origin, backend_for
from app.planner.choose import Alternative, Plan, PlanAction
from app.planner.explain import Considered
from app.planner.pricing import MAX_US, Priced
from app.planner.question import PlanExclusion, Question, Source, Target
from app.policy.document import ExecutionPolicy

MAX_CONSIDERED: Final = 1_024


class ToldTerm(msgspec.Struct, frozen=True, gc=False):
    """One addend of a cost; `uncertainty_us` is a standard deviation."""

    name: str
    value_us: int
    uncertainty_us: int
    provenance: str


class ToldSource(msgspec.Struct, frozen=True, gc=False):
    """Where state is brought from. `kind`: `engine` for an engine's own blocks, `state` for a
    registered state; `name` is the engine's, or the entry's id.
    """

    kind: str
    name: str
    generation: int | None
    tier: str
    node: str
    tokens: int
    backend: str | None


class ToldWay(msgspec.Struct, frozen=True, gc=False):
    """One way to serve the request; see `app.api.plan_schemas.WayView`."""

    action: str
    engine_id: str
    dp_rank: int
    generation: int
    residency: str
    source: ToldSource | None
    path: str
    reused_tokens: int
    computed_tokens: int
    moved_bytes: int
    total_us: int
    uncertainty_us: int
    gain_us: int
    gain_uncertainty_us: int
    transfer_us: int
    terms: tuple[ToldTerm, ...]
    lost: str | None


class ToldExclusion(msgspec.Struct, frozen=True, gc=False):
    """How many alternatives were not taken for one reason."""

    reason: str
    count: int


class ToldNote(msgspec.Struct, frozen=True, gc=False):
    """What of a question is not as its caller said, or is not known."""

    about: str
    note: str


class ToldConsidered(msgspec.Struct, frozen=True, gc=False):
    """One alternative of all; those that were not priced have no costs."""

    engine_id: str
    dp_rank: int
    source: ToldSource | None
    total_us: int | None
    gain_us: int | None
    lost: str | None
    terms: tuple[ToldTerm, ...] = ()


class ToldPlan(msgspec.Struct, frozen=True, gc=False):
    """The choice, and what it was chosen among; see `app.api.plan_schemas.PlanView`."""

    action: str
    chosen: ToldWay
    fallback: ToldWay
    margin_us: int | None
    late: bool
    explored: bool
    tokens: int
    alternatives: tuple[ToldWay, ...]
    excluded: tuple[ToldExclusion, ...]
    notes: tuple[ToldNote, ...]
    considered: tuple[ToldConsidered, ...] | None = None
    considered_left_off: int = 0


class Teller:
    """Tells of one question's alternatives. `devices` are of the targets in their order."""

    def __init__(
        self,
        asked: Asked,
        policy: ExecutionPolicy,
        devices: Sequence[DeviceClass | None],
    ) -> None:
        self._asked = asked
        self._policy = policy
        question = asked.question
        self._origins: Mapping[int, Origin] = {
            id(source): origin
            for source, origin in zip(question.sources, asked.origins, strict=True)
        }
        self._devices = {
            id(target): device for target, device in zip(question.targets, devices, strict=True)
        }

    def plan(self, plan: Plan, considered: Iterable[Considered] | None = None) -> ToldPlan:
        question, listed, left_off = self._asked.question, None, 0
        if considered is not None:
            told = islice(considered, MAX_CONSIDERED)
            listed = tuple(self._considered(one) for one in told)
            left_off = len(question.targets) * (1 + len(question.sources)) - len(listed)
        return ToldPlan(
            action=plan.chosen.action,
            chosen=self.way(plan.chosen),
            fallback=self.way(plan.fallback),
            margin_us=None if plan.margin_us is None else _whole_us(plan.margin_us),
            late=plan.late,
            explored=plan.explored,
            tokens=question.tokens,
            alternatives=tuple(map(self.way, plan.alternatives)),
            excluded=excluded(plan.excluded),
            notes=tuple(ToldNote(*note) for note in self._asked.notes),
            considered=listed,
            considered_left_off=left_off,
        )

    def way(self, one: Alternative) -> ToldWay:
        target, priced = one.target, one.priced
        source = None if one.source is None else self._source(one.source, target)
        instance, rank = named(target.engine_id)
        return ToldWay(
            one.action,
            instance,
            rank,
            target.generation,
            target.node,
            source,
            _path(one.action, source, target),
            self._asked.question.tokens - priced.tail_tokens,
            priced.tail_tokens,
            round(min(priced.moved_bytes, MAX_I63)),
            _whole_us(priced.total_us),
            _whole_us(sqrt(sum(part.deviation_us**2 for part in priced.parts))),
            _whole_us(priced.gain_us),
            _whole_us(priced.gain_deviation_us),
            _whole_us(priced.transfer_us),
            _terms(priced),
            one.lost,
        )

    def _considered(self, one: Considered) -> ToldConsidered:
        instance, rank = named(one.target.engine_id)
        priced = one.priced
        return ToldConsidered(
            instance,
            rank,
            None if one.source is None else self._source(one.source, one.target),
            None if priced is None else _whole_us(priced.total_us),
            None if priced is None else _whole_us(priced.gain_us),
            one.lost,
            () if priced is None else _terms(priced),
        )

    def _source(self, source: Source, target: Target) -> ToldSource:
        origin = self._origins[id(source)]
        return ToldSource(
            origin.kind,
            origin.name,
            origin.generation,
            source.tier,
            source.node,
            source.tokens,
            backend_for(self._policy, source.tier, self._devices[id(target)]),
        )


def start_by_us(way: ToldWay) -> int:
    """From now on, the latest begin of what the plan counts on: of the transfer where there is one,
    which may wait as long as the queue hides it; else of the prefill.
    """
    queue_us = next(term.value_us for term in way.terms if term.name == "queue")
    return max(0, queue_us - way.transfer_us)


def named(engine_id: str) -> tuple[str, int]:
    """Instance and data parallel rank."""
    instance, _, rank = engine_id.partition("/")
    return instance, int(rank or 0)


def excluded(counts: Mapping[PlanExclusion, int]) -> tuple[ToldExclusion, ...]:
    """The most frequent first."""
    ordered = sorted(counts.items(), key=lambda one: (-one[1], one[0]))
    return tuple(ToldExclusion(reason, count) for reason, count in ordered)


def links_of(question: Question) -> dict[tuple[str, str], int]:
    """How many transfers ran on each link that the question is about; only those with any."""
    if not question.links.running:
        return {}
    targets = {target.node for target in question.targets}
    sources = {source.node for source in question.sources}
    return {
        (source, target): running
        for (source, target), running in question.links.running.items()
        if source in sources and target in targets
    }


def changed_links_of(question: Question) -> list[tuple[str, str, float, float]]:
    """Of links that the question is about, those that are other than the topology has them."""
    targets = {target.node for target in question.targets}
    sources = {source.node for source in question.sources}
    return [
        (source, target, link.latency_us, link.bytes_per_us)
        for (source, target), link in question.links.changed.items()
        if source in sources and target in targets
    ]


def _terms(priced: Priced) -> tuple[ToldTerm, ...]:
    return tuple(
        ToldTerm(
            part.name,
            _whole_us(part.value_us),
            _whole_us(part.deviation_us),
            part.provenance.value,
        )
        for part in priced.parts
    )


def _whole_us(value_us: float) -> int:
    """What is beyond 31 years, as absurd loads come to, is told as that: an integer and a date of
    every reader and of the database holds it.
    """
    if -MAX_US < value_us < MAX_US:
        return round(value_us)
    return round(MAX_US if value_us > 0 else -MAX_US)


def _path(action: PlanAction, source: ToldSource | None, target: Target) -> str:
    if source is not None:
        return f"{source.tier}@{source.node} -> device@{target.node}"
    if action is PlanAction.RECOMPUTE:
        return f"computed@{target.node}"
    return f"device@{target.node}"
