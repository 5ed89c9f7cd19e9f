"""The matrix of workloads: each cell a small evaluation, and who is best in it."""

from collections.abc import Callable, Iterator, Sequence
from typing import Final, NamedTuple

from msgspec import Struct, structs

from app.evaluate.fleet import Fleet
from app.evaluate.measures import Measures
from app.evaluate.run import Progress, compare, strategies
from app.evaluate.simulator import draw
from app.evaluate.workloads import Arrivals, Chance, Kind, Workload, made

EQUAL: Final = 0.01
OURS: Final = "NexusKV"
ORACLE: Final = "oracle"
CELL_REQUESTS: Final = 300
# Of the largest prompts: a request is a thousand blocks and more.
_LONG_TOKENS: Final = 200_000
_LONG_REQUESTS: Final = 60
_CONTEXTS: Final = (8_000, 32_000, 128_000, 1_000_000)
_REUSES: Final = (0.0, 0.25, 0.5, 0.9, 1.0)
# By what the bandwidth of links between nodes is multiplied.
_LINKS: Final = {"slow links": 0.05, "fast links": 5.0}


class Cell(Struct, frozen=True):
    """One workload on one fleet, with the measures of every strategy."""

    name: str
    kind: str
    context_tokens: int
    reuse: float
    arrivals: str
    links: str
    requests: int
    rows: tuple[Measures, ...]

    def of(self, strategy: str) -> Measures:
        return next(one for one in self.rows if one.strategy == strategy)

    def best(self, measure: str) -> list[str]:
        """The strategies that nobody beats by more than EQUAL, the oracle aside."""
        rows = [one for one in self.rows if one.strategy != ORACLE]
        least = min(getattr(one, measure) for one in rows)
        return [one.strategy for one in rows if getattr(one, measure) <= least * (1 + EQUAL)]


class Asked(NamedTuple):
    """A cell to be run."""

    workload: Workload
    links: str = "links as given"


def cells() -> list[Asked]:
    """Contexts by reuse; kinds by arrivals; kinds on slow and on fast links."""
    asked = [
        Asked(Workload(Kind.MULTI_TURN, context, reuse, Arrivals.POISSON))
        for context in _CONTEXTS
        for reuse in _REUSES
    ]
    asked += [
        Asked(Workload(kind, 32_000, 0.0 if kind is Kind.NO_REUSE else 0.5, arrivals))
        for kind in Kind
        for arrivals in Arrivals
        if (kind, arrivals) != (Kind.MULTI_TURN, Arrivals.POISSON)
    ]
    asked += [
        Asked(Workload(kind, 32_000, 0.5, Arrivals.POISSON), links)
        for kind in Kind
        if kind is not Kind.NO_REUSE
        for links in _LINKS
    ]
    return asked


def run_matrix(  # noqa: PLR0917 - in the order of what is used
    fleet: Fleet,
    chance: Callable[[], Chance],
    gaps_ms: Sequence[float],
    tell: Progress,
    asked: Sequence[Asked] | None = None,
    requests: int = CELL_REQUESTS,
) -> Iterator[Cell]:
    """Every cell with the same chance; baselines are tuned in each of them, ours is not."""
    listed = list(asked if asked is not None else cells())
    for number, (workload, links) in enumerate(listed, 1):
        tell(f"cell {number} of {len(listed)}: {workload.name}, {links}")
        here = _with_links(fleet, _LINKS.get(links, 1.0))
        long = workload.context_tokens > _LONG_TOKENS
        trace = made(
            workload,
            requests=min(requests, _LONG_REQUESTS) if long else requests,
            block_tokens=here.block_tokens,
            chance=chance(),
            gaps_ms=gaps_ms,
        )
        drawn = draw(here, trace, chance())
        rows = compare(here, drawn, strategies(here, drawn, _quiet), _quiet)
        yield Cell(
            f"{workload.name}, {links}",
            workload.kind.value,
            workload.context_tokens,
            workload.reuse,
            workload.arrivals.value,
            links,
            len(drawn),
            tuple(rows),
        )


def _quiet(_: str) -> None:
    """Of a cell only its name is told."""


def _with_links(fleet: Fleet, factor: float) -> Fleet:
    """Only between nodes."""
    paths = tuple(
        structs.replace(path, bytes_per_us=path.bytes_per_us * factor) if path.remote else path
        for path in fleet.profile.paths
    )
    return structs.replace(fleet, profile=structs.replace(fleet.profile, paths=paths))
