"""What an outcome says of costs: what was predicted without calibration, and what was observed.

Pure. Of a transfer, its worker's clock; of a prefill, what the runtime reports as `prefill_us` of a
plan. What does not say enough says nothing.
"""

from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final, NamedTuple

from app.calibration.parts import PREFILL, PartKey, link_basis, link_part, path_part
from app.contract.enums import TierKind
from app.planner.cost import node_of
from app.planner.links import Link, Links
from app.planner.profile import Profile

Base = Callable[[str, str], Profile]
# What is smaller takes its time for other things than bandwidth and arithmetic: one factor for the
# whole of it would make large ones absurd.
LEAST_BYTES: Final = 4 * 1024 * 1024
LEAST_TOKENS: Final = 64


class Happened(NamedTuple):
    """An outcome with what matters of its decision."""

    status: str
    transfer_us: int | None
    bytes_transferred: int | None
    detail: Mapping[str, Any]
    kind: str
    model: str
    inputs: Mapping[str, Any]
    estimate: Mapping[str, Any]
    query_tokens: int | None


class Observation(NamedTuple):
    """Of one part: `basis` is what the prediction was made by."""

    key: PartKey
    basis: str
    predicted_us: float
    observed_us: float


def observations(happened: Happened, base: Base, links: Links) -> Iterator[Observation]:
    """At most one of a transfer and one of a prefill. `base` and `links`: the profiles and the
    topology's links without calibration.
    """
    try:
        if happened.kind == "plan":
            yield from _of_plan(happened, base, links)
        elif happened.transfer_us and happened.bytes_transferred:
            yield from _of_transfer(happened, base, links)
    except (KeyError, TypeError, ValueError, AttributeError):
        # A record of another version, or a report whose detail is something else.
        return


def _of_transfer(happened: Happened, base: Base, links: Links) -> Iterator[Observation]:
    inputs, moved = happened.inputs, happened.bytes_transferred
    assert moved is not None
    assert happened.transfer_us is not None
    if moved < LEAST_BYTES:
        return
    situation = inputs["situation"]
    source, target = node_of(situation["locator"]) or "", situation["target_residency"]
    way = _Way(TierKind(situation["tier"]), source, target, inputs.get("link"))
    target_of = (happened.model, str(inputs.get("hardware", "")))
    yield _moving(target_of, (base, links), way, (moved, happened.transfer_us))


class _Way(NamedTuple):
    """From where to where; `used` is the link that it was priced by, if it was by one."""

    tier: TierKind
    source: str
    target: str
    used: list[float] | None


def _moving(
    target_of: tuple[str, str], bases: tuple[Base, Links], way: _Way, measured: tuple[int, float]
) -> Observation:
    (base, links), (moved, took_us), (tier, source, target, used) = bases, measured, way
    if used is not None:
        link = links.get(source, target)
        if not link.bytes_per_us:
            raise ValueError("the topology has no such link now")
        in_flight = used[Link._fields.index("in_flight")]
        predicted = link.latency_us + moved * (1 + in_flight) / link.bytes_per_us
        key = PartKey("", "", link_part(source, target))
        return Observation(key, link_basis(link), predicted, took_us)
    profile, remote = base(*target_of), source != target
    path = profile.path(tier, remote=remote)
    if path is None:
        raise ValueError("no path")
    predicted = path.latency_us + moved / path.bytes_per_us
    key = PartKey(*target_of, path_part(tier, remote=remote))
    return Observation(key, profile.version, predicted, took_us)


def _of_plan(happened: Happened, base: Base, links: Links) -> Iterator[Observation]:
    chosen, detail = happened.estimate, happened.detail
    target_of = (happened.model, _hardware(happened))
    profile = base(*target_of)
    prefill_us = _time(detail.get("prefill_us"))
    if prefill_us is not None:
        terms = {term["name"]: term["value_us"] for term in chosen["terms"]}
        slowdown = 1 + terms.get("interference", 0) / max(terms.get("recompute", 0), 1)
        tokens, context = chosen["computed_tokens"], chosen["reused_tokens"]
        if happened.status == "recomputed":
            tokens, context = happened.query_tokens, 0
        computed = profile.prefill.recompute_us(tokens, context) * slowdown
        key = PartKey(*target_of, PREFILL)
        predicted = profile.prefill.schedule_us + computed
        if tokens >= LEAST_TOKENS:
            yield Observation(key, profile.version, predicted, prefill_us)
    transfer_us = _time(detail.get("transfer_us"))
    moved = happened.bytes_transferred or chosen["moved_bytes"]
    if transfer_us is not None and chosen["source"] is not None and moved >= LEAST_BYTES:
        source = chosen["source"]
        used = happened.inputs.get("link")
        way = _Way(TierKind(source["tier"]), source["node"], chosen["residency"], used)
        yield _moving(target_of, (base, links), way, (moved, transfer_us))


def _hardware(happened: Happened) -> str:
    """Of the chosen target."""
    chosen = happened.estimate
    rank = f"/{chosen['dp_rank']}" if chosen["dp_rank"] else ""
    name = f"{chosen['engine_id']}{rank}"
    targets = happened.inputs["plan"]["targets"]
    return str(next(one.get("hardware", "") for one in targets if one["engine_id"] == name))


def _time(value: Any) -> float | None:
    """Microseconds above zero, at most a day; None for anything else."""
    usable = isinstance(value, int | float) and not isinstance(value, bool)
    return float(value) if usable and 0 < value <= 86_400_000_000 else None
