"""What is recorded of a plan, and a plan made again from it. Pure.

The record has the question as the planner had it, profiles included: whatever profiles, loads and
indexes are later, the same plan comes out. Links are those of the topology's version; of these only
what ran on them is recorded.
"""

from collections.abc import Mapping
from typing import Any, Final

import msgspec
from msgspec import Struct, structs
from sqlalchemy import Row

from app.contract.enums import DeviceClass
from app.decisions.record import Action, DecisionKind
from app.engines.registration import EngineKey
from app.errors import ErrorCode, NexusError
from app.lifecycle.plan_question import Asked, Note, Origin
from app.lifecycle.plan_told import changed_links_of, links_of
from app.planner.choose import PlanAction
from app.planner.links import NO_LINKS, Link, Links
from app.planner.profile import Profile
from app.planner.question import (
    PAIR_EXCLUSIONS,
    CostBounds,
    PlanExclusion,
    Question,
    Source,
    Target,
)

PLAN_VERSION: Final = 1
ACTIONS: Final[Mapping[PlanAction, Action]] = {
    PlanAction.FULL_REUSE: Action.REUSE,
    PlanAction.PARTIAL_REUSE: Action.REUSE,
    PlanAction.ROUTE_TO_STATE: Action.REUSE,
    PlanAction.TRANSFER: Action.TRANSFER,
    PlanAction.SPLIT: Action.TRANSFER,
    PlanAction.RECOMPUTE: Action.RECOMPUTE,
}


class RecordedTarget(Struct, frozen=True, omit_defaults=True):
    """A target; `profile` is its place among the record's."""

    engine_id: str
    generation: int
    node: str
    profile: int
    local_tokens: int = 0
    queue_depth: int | None = None
    queued_prefill_tokens: int | None = None
    running_decode_tokens: int | None = None
    free_tokens: int | None = None
    excluded: PlanExclusion | None = None
    device: DeviceClass | None = None
    hardware: str = ""


class RecordedOrigin(Struct, frozen=True, omit_defaults=True):
    kind: str
    name: str
    generation: int | None = None


class RecordedPlan(Struct, frozen=True, omit_defaults=True):
    """`barred` by reason: places of target and source. `in_flight`: what ran from node to node."""

    v: int
    tokens: int
    profiles: tuple[Profile, ...]
    targets: tuple[RecordedTarget, ...]
    sources: tuple[Source, ...]
    origins: tuple[RecordedOrigin, ...]
    bounds: CostBounds
    deadline_us: float | None = None
    explore: bool = False
    barred: dict[str, list[tuple[int, int]]] = {}
    topology: int | None = None
    in_flight: list[tuple[str, str, int]] = []
    # Of links that calibration has changed, what they were: nodes, latency and bandwidth.
    changed: list[tuple[str, str, float, float]] = []
    notes: tuple[tuple[str, str], ...] = ()


def record_of(
    asked: Asked, devices: tuple[DeviceClass | None, ...], topology: int | None
) -> RecordedPlan:
    """What `asked_again` needs."""
    question = asked.question
    hardware_of = asked.hardware or ("",) * len(question.targets)
    profiles = list({id(one.profile): one.profile for one in question.targets}.values())
    places = {id(profile): place for place, profile in enumerate(profiles)}
    barred: dict[str, list[tuple[int, int]]] = {}
    for pair, reason in question.barred.items():
        barred.setdefault(reason.value, []).append(pair)
    return RecordedPlan(
        PLAN_VERSION,
        question.tokens,
        tuple(profiles),
        tuple(
            RecordedTarget(
                target.engine_id,
                target.generation,
                target.node,
                places[id(target.profile)],
                target.local_tokens,
                target.queue_depth,
                target.queued_prefill_tokens,
                target.running_decode_tokens,
                target.free_tokens,
                target.excluded,
                device,
                hardware,
            )
            for target, device, hardware in zip(question.targets, devices, hardware_of, strict=True)
        ),
        question.sources,
        tuple(RecordedOrigin(one.kind, one.name, one.generation) for one in asked.origins),
        question.bounds,
        question.deadline_us,
        question.explore,
        barred,
        topology,
        [(*nodes, running) for nodes, running in links_of(question).items()],
        changed_links_of(question),
        asked.notes,
    )


def recorded_of(one: Row[Any]) -> RecordedPlan:
    """Raises NOT_RERUNNABLE for a row that is no plan, or is of another version."""
    if one.kind != DecisionKind.PLAN:
        raise NexusError(ErrorCode.NOT_FOUND, "that decision is no plan")
    inputs = one.inputs if isinstance(one.inputs, dict) else {}
    try:
        found = msgspec.convert(inputs.get("plan"), RecordedPlan)
    except msgspec.ValidationError as error:
        raise not_rerunnable("its record is of another version", str(error)) from error
    if found.v != PLAN_VERSION:
        raise not_rerunnable("its record is of another version", str(found.v))
    return found


def asked_again(
    found: RecordedPlan, known: Links | None
) -> tuple[Asked, tuple[DeviceClass | None, ...]]:
    """The question as it was asked, and the targets' devices. `known`: the links of its topology.

    Raises NOT_RERUNNABLE.
    """
    if found.topology is not None and known is None:
        raise not_rerunnable(f"version {found.topology} of the topology is not stored", "")
    if not _holds_together(found):
        raise not_rerunnable("its record does not hold together", "")
    links = (known or NO_LINKS).copy()
    for source, target, latency_us, rate in found.changed:
        links.put(source, target, Link(latency_us, rate))
    for source, target, running in found.in_flight:
        links.begin(source, target, running)
    question = Question(
        found.tokens,
        tuple(_target(one, found.profiles) for one in found.targets),
        found.sources,
        links,
        found.deadline_us,
        found.bounds,
        found.explore,
        {
            (pair[0], pair[1]): PlanExclusion(reason)
            for reason, pairs in found.barred.items()
            for pair in pairs
        },
    )
    origins = tuple(
        Origin(one.kind, one.name, EngineKey(""), one.generation) for one in found.origins
    )
    notes = tuple(Note(*one) for one in found.notes)
    hardware = tuple(one.hardware for one in found.targets)
    return Asked(question, origins, notes, hardware), tuple(one.device for one in found.targets)


def _holds_together(found: RecordedPlan) -> bool:
    """Whether places are of what is there, and reasons those that keep a pair apart."""
    targets, sources, profiles = map(len, (found.targets, found.sources, found.profiles))
    barred = [pair for pairs in found.barred.values() for pair in pairs]
    return (
        len(found.origins) == sources
        and all(0 <= one.profile < profiles for one in found.targets)
        and all(0 <= at < targets and 0 <= place < sources for at, place in barred)
        and set(found.barred) <= set(PAIR_EXCLUSIONS)
    )


def _target(one: RecordedTarget, profiles: tuple[Profile, ...]) -> Target:
    fields = structs.asdict(one)
    del fields["device"], fields["hardware"]
    return Target(**fields | {"profile": profiles[one.profile]})


def not_rerunnable(why: str, internal: str) -> NexusError:
    """Of a plan; `internal` is for the log."""
    return NexusError(
        ErrorCode.NOT_RERUNNABLE, f"This plan cannot be made again: {why}", internal=internal
    )
