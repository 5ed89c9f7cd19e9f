"""Many small evaluations: kinds of prompts, contexts, reuse, arrivals, links, wrong profiles."""

from collections.abc import Callable, Sequence
from typing import Any, Final, NamedTuple

from msgspec import structs

from app.evaluate.fleet import Fleet
from app.evaluate.measures import Measures, row
from app.evaluate.requests import Chance, draw
from app.evaluate.run import (
    PREFETCHING,
    WRONG,
    Progress,
    baselines,
    compare,
    prefetching,
    wrong_profile,
)
from app.evaluate.simulator import Strategy
from app.evaluate.strategies import Calibrated, Oracle, Planned
from app.evaluate.workloads import Arrivals, Kind, Workload, make

REQUESTS: Final = 300
# What counts as equal.
TIE: Final = 0.01
_MOST_BLOCKS: Final = 256
_K: Final = 1_024
CONTEXTS: Final = (8 * _K, 32 * _K, 128 * _K, 1_024 * _K)
REUSES: Final = (0.0, 0.25, 0.5, 0.75, 1.0)
_MIDDLE: Final = (32 * _K, 0.5)
# To another node: bytes a microsecond and microseconds. Four fifths of 400 and of 10 Gb/s Ethernet;
# the latencies are of RDMA with a rendezvous, and of a pull over TCP as it was published.
LINKS: Final = {"fast": (40_000.0, 2_000.0), "slow": (1_000.0, 25_000.0)}
# By what factor prefills and transfers are taken to be longer than they are.
PROFILES: Final = {
    "true": (1.0, 1.0),
    "reuse too dear": (1 / WRONG, WRONG),
    "reuse too cheap": (WRONG, 1 / WRONG),
}


class Cell(NamedTuple):
    """One evaluation. `links` and `profile` are names of LINKS and PROFILES."""

    workload: Workload
    links: str
    profile: str = "true"


class Found(NamedTuple):
    """What a cell came to; the first of the measures is recomputing always, the last the oracle."""

    cell: Cell
    measures: list[Measures]

    @property
    def ours(self) -> Measures:
        return next(one for one in self.measures if one.strategy == "NexusKV")

    @property
    def others(self) -> list[Measures]:
        return [one for one in self.measures if not one.strategy.startswith(("NexusKV", "oracle"))]

    @property
    def prefetching(self) -> Measures | None:
        """With prefetch, where prompts have next turns."""
        return next((one for one in self.measures if one.strategy == PREFETCHING), None)

    def ahead(self, name: str) -> Measures | None:
        """The best of the others at a time, where it is better than ours by more than TIE."""
        best: Measures = min(self.others, key=lambda one: float(getattr(one, name)))
        better = getattr(best, name) < (1 - TIE) * getattr(self.ours, name)
        return best if better else None


def cells() -> list[Cell]:
    """All of them: contexts by reuse, kinds by arrivals, and kinds by wrong profiles, each on fast
    and on slow links."""
    found = [
        Cell(Workload(Kind.SHARED_PROMPT, context, reuse, Arrivals.POISSON), links)
        for context in CONTEXTS
        for reuse in REUSES
        for links in LINKS
    ]
    found += [
        Cell(Workload(kind, *_of(kind), arrivals), links)
        for kind in Kind
        for arrivals in Arrivals
        for links in LINKS
    ]
    found += [
        Cell(Workload(kind, *_of(kind), Arrivals.POISSON), links, profile)
        for kind in Kind
        for links in LINKS
        for profile in list(PROFILES)[1:]
    ]
    return list(dict.fromkeys(found))


def run_matrix(
    base: Fleet,
    listed: Sequence[Cell],
    chances: Callable[[int], Chance],
    gaps_ms: Sequence[float],
    tell: Progress,
    *,
    requests: int = REQUESTS,
) -> list[Found]:
    """Each cell on a fleet like `base`, with chance of its own by its number: `chances(number)`."""
    found = []
    for number, cell in enumerate(listed):
        tell(f"matrix {number + 1} of {len(listed)}: {', '.join(map(str, names(cell).values()))}")
        chance, fleet = chances(number), fleet_of(base, cell)
        lines = make(cell.workload, requests, fleet.block_tokens, chance, gaps_ms)
        drawn = draw(fleet, lines, chance)
        strategies = [*baselines(fleet, drawn, _silent), *_ours(fleet, cell), Oracle()]
        compared = compare(fleet, drawn, strategies, _silent)
        found.append(Found(cell, [one.measures for one in compared]))
    return found


def names(cell: Cell) -> dict[str, Any]:
    """What a cell is, for a row."""
    workload = cell.workload
    return {
        "kind": workload.kind.value,
        "context_tokens": workload.context_tokens,
        "reuse": workload.reuse,
        "arrivals": workload.arrivals.value,
        "links": cell.links,
        "profile": cell.profile,
    }


def rows(found: Found) -> list[dict[str, Any]]:
    """One a strategy."""
    return [names(found.cell) | row(one) for one in found.measures]


def fleet_of(base: Fleet, cell: Cell) -> Fleet:
    """Blocks so long that a prompt has few hundred; a device that holds four contexts, a memory
    that holds sixteen, an objective that three prefills on an idle engine meet, where the base is
    smaller. Other links are left out."""
    context, prefill = cell.workload.context_tokens, base.profile.prefill
    bytes_per_us, latency_us = LINKS[cell.links]
    alone_us = prefill.schedule_us + prefill.recompute_us(context, 0)
    return structs.replace(
        base,
        block_tokens=max(base.block_tokens, context // _MOST_BLOCKS),
        device_tokens=max(base.device_tokens, 4 * context),
        host_tokens=max(base.host_tokens, 16 * context),
        slo_ttft_us=max(base.slo_ttft_us, 3 * alone_us),
        links=(),
        profile=structs.replace(
            base.profile,
            paths=tuple(
                structs.replace(path, latency_us=latency_us, bytes_per_us=bytes_per_us)
                if path.remote
                else path
                for path in base.profile.paths
            ),
        ),
    )


def _ours(fleet: Fleet, cell: Cell) -> list[Strategy]:
    """Not tuned to any cell: the planner as it is, calibrated where its profile is wrong; and with
    prefetch where there are next turns."""
    (prefill, transfers), profile = PROFILES[cell.profile], fleet.profile
    if cell.profile != "true":
        wrong = wrong_profile(profile, prefill=prefill, transfers=transfers)
        return [Calibrated(wrong, "NexusKV")]
    if cell.workload.kind is not Kind.MULTI_TURN:
        return [Planned(profile)]
    return [Planned(profile), prefetching(fleet)]


def _of(kind: Kind) -> tuple[int, float]:
    return (_MIDDLE[0], 0.0) if kind is Kind.CONTROL else _MIDDLE


def _silent(_message: str) -> None:
    """Of a cell's strategies nobody wants to read each."""
