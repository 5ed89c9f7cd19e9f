"""All pairs of a target and a source at once, by the compiled loop. Pure.

What `app.planner.pricing` says of one pair, without its terms: for the best it is asked again.
"""

from array import array
from collections import Counter
from collections.abc import Sequence
from typing import Final, NamedTuple

from app.contract.enums import TierKind
from app.planner.pricing import Waiting
from app.planner.question import PAIR_EXCLUSIONS, PlanExclusion, Question, Source, Target
from nexuskv_core import best_sources

_TIERS: Final = {tier: place for place, tier in enumerate(TierKind)}
# In the order of the outcomes of the loop.
_OUTCOMES: Final = (
    PlanExclusion.SLOWER,
    PlanExclusion.NOT_LONGER,
    PlanExclusion.NO_PATH,
    PlanExclusion.LINK_BUSY,
    PlanExclusion.NO_CAPACITY,
    PlanExclusion.OVERLOADED,
    PlanExclusion.DEADLINE,
    PlanExclusion.GAIN_UNCERTAIN,
    *PAIR_EXCLUSIONS,
)


class BestPairs(NamedTuple):
    """Of one target: place and cost of the best source that may be used, of the best one that is
    only late or overloaded, and of the best of the others, with the reason. -1 for none.
    """

    usable: int
    usable_us: float
    late: int
    late_us: float
    late_lost: PlanExclusion
    other: int
    other_us: float
    lost: PlanExclusion


_NONE: Final = BestPairs(-1, -1.0, -1, -1.0, PlanExclusion.SLOWER, -1, -1.0, PlanExclusion.SLOWER)


def priced_pairs(
    question: Question,
    targets: Sequence[Target],
    waits: Sequence[Waiting],
    computes_us: Sequence[float],
) -> tuple[list[BestPairs], Counter[PlanExclusion]]:
    """For each target its best pairs; and how many pairs ended how, usable ones as SLOWER."""
    counts: Counter[PlanExclusion] = Counter()
    for source in question.sources:
        if source.excluded is not None:
            counts[source.excluded] += len(targets)
    if not targets or not question.sources:
        return [_NONE] * len(targets), counts
    profiles = {id(target.profile): target.profile for target in targets}
    places = {name: place for place, name in enumerate(profiles)}
    paths = array("d")
    for profile in profiles.values():
        paths.extend(profile.path_rows)
    links, bounds = question.links, question.bounds
    nodes = _Nodes(links.place)
    best, outcomes = best_sources(
        _target_rows(targets, waits, computes_us, places, nodes),
        _source_rows(question.sources, nodes),
        paths,
        links.table,
        len(links.place),
        question.tokens,
        -1.0 if question.deadline_us is None else question.deadline_us,
        bounds.deviations,
        bounds.min_gain_us,
        bounds.max_queue_us,
        _barred(question, targets),
    )
    for outcome, count in zip(_OUTCOMES, outcomes, strict=True):
        if count:
            counts[outcome] += count
    told = [BestPairs(*one[:4], _OUTCOMES[one[4]], *one[5:7], _OUTCOMES[one[7]]) for one in best]
    return told, counts


def _target_rows(
    targets: Sequence[Target],
    waits: Sequence[Waiting],
    computes_us: Sequence[float],
    profiles: dict[int, int],
    nodes: "_Nodes",
) -> "array[float]":
    rows = array("d")
    for target, wait, compute_us in zip(targets, waits, computes_us, strict=True):
        profile = target.profile
        prefill = profile.prefill
        rows.extend(
            (
                target.local_tokens,
                -1 if target.free_tokens is None else target.free_tokens,
                wait.queue.value_us,
                wait.slowdown,
                prefill.per_token_us,
                prefill.per_pair_us,
                prefill.uncertainty,
                profile.overhead_us,
                compute_us,
                nodes[target.node],
                profiles[id(profile)],
                wait.known_us,
            )
        )
    return rows


def _source_rows(sources: Sequence[Source], nodes: "_Nodes") -> "array[float]":
    rows = array("d")
    for source in sources:
        rows.extend(
            (
                source.tokens,
                source.bytes_per_token,
                source.fixed_bytes,
                source.bytes_known,
                source.partial,
                source.excluded is not None,
                nodes[source.node],
                _TIERS[source.tier],
            )
        )
    return rows


def _barred(question: Question, targets: Sequence[Target]) -> bytes:
    """An outcome for each pair of a target that may be used and a source; empty without any."""
    if not question.barred:
        return b""
    places = {id(target): at for at, target in enumerate(targets)}
    found = bytearray(len(targets) * len(question.sources))
    for (at, source), exclusion in question.barred.items():
        place = places.get(id(question.targets[at]))
        if place is not None:
            found[place * len(question.sources) + source] = _OUTCOMES.index(exclusion)
    return bytes(found)


class _Nodes(dict[str, int]):
    """The places of nodes among the links; of others a number below zero each."""

    def __missing__(self, name: str) -> int:
        place = self[name] = -1 - len(self)
        return place
