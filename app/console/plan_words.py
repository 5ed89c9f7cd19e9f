"""A plan in words, and its costs as parts of bars, for the console and the command line. Pure."""

from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple

from app.console.words import amount, duration, exact, plain
from app.lifecycle.plan_told import ToldPlan, ToldWay

# In the order in which they pass; a bar has them from left to right.
TERMS: Final = (
    "queue", "lookup", "transfer", "restore", "sync", "schedule", "recompute", "interference",
)  # fmt: skip


class Segment(NamedTuple):
    """A part of a bar: from where, how long, in thousandths of the longest bar."""

    name: str
    start: float
    length: float
    value_us: int


class Bar(NamedTuple):
    """One alternative. `low` and `high` are its total less and more its uncertainty, likewise."""

    label: str
    way: ToldWay
    segments: Sequence[Segment]
    low: float
    high: float


def bars(told: ToldPlan) -> list[Bar]:
    """The chosen one, computing instead, and the others, on one scale."""
    ways = [("chosen", told.chosen), ("fallback", told.fallback)]
    ways += [("", way) for way in told.alternatives]
    longest = max(way.total_us + way.uncertainty_us for _, way in ways) or 1
    return [_bar(label, way, longest) for label, way in ways]


def summary(told: ToldPlan) -> list[str]:
    """What is done, what it gains, and how sure that is."""
    chosen = told.chosen
    said = [f"{_does(chosen)} The first token is expected after {duration(chosen.total_us)}."]
    saved = told.fallback.total_us - chosen.total_us
    if saved > 0:
        said.append(
            f"Computing all {exact(told.tokens)} tokens there would take"
            f" {duration(told.fallback.total_us)}: that saves {duration(saved)}."
        )
    if chosen.gain_uncertainty_us:
        said.append(
            f"The gain is {duration(chosen.gain_us)}, give or take"
            f" {duration(chosen.gain_uncertainty_us)} (one standard deviation)."
        )
    if told.margin_us is not None and told.margin_us >= 0:
        said.append(f"The next best alternative takes {duration(told.margin_us)} longer.")
    if told.late:
        said.append("Nothing meets the deadline; this is the soonest.")
    if told.explored:
        said.append("Its gain is uncertain: it is taken to learn what it costs.")
    return said


def called(way: ToldWay) -> str:
    """A name for an alternative that tells it from the others."""
    target = _target(way)
    if way.source is None:
        return f"{plain(way.action)} at {target}"
    return f"{plain(way.action)} from {way.source.name} ({plain(way.source.tier)}) to {target}"


def _does(way: ToldWay) -> str:
    target, source = _target(way), way.source
    if source is None and way.reused_tokens:
        return (
            f"Run it at {target}, which has {exact(way.reused_tokens)} tokens of it, and compute"
            f" {exact(way.computed_tokens)}."
        )
    if source is None:
        return f"Run it at {target}, and compute all of it."
    backend = f" by {plain(source.backend)}" if source.backend else ""
    return (
        f"Run it at {target}: bring {amount(way.moved_bytes)} from {source.name}"
        f" ({plain(source.tier)} of {source.node}){backend}, and compute"
        f" {exact(way.computed_tokens)} tokens."
    )


def _target(way: ToldWay) -> str:
    return f"{way.engine_id}/{way.dp_rank}" if way.dp_rank else way.engine_id


def _bar(label: str, way: ToldWay, longest: int) -> Bar:
    scale = 1_000 / longest
    low = max(0, way.total_us - way.uncertainty_us) * scale
    high = (way.total_us + way.uncertainty_us) * scale
    return Bar(label, way, list(_segments(way, scale)), low, high)


def _segments(way: ToldWay, scale: float) -> Iterator[Segment]:
    known = {term.name: term.value_us for term in way.terms}
    start = 0.0
    for name in TERMS:
        value_us = known.get(name, 0)
        if value_us > 0:
            yield Segment(name, start, value_us * scale, value_us)
            start += value_us * scale
