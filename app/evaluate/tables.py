"""What an evaluation says, in Markdown."""

from collections.abc import Sequence
from itertools import pairwise
from typing import Final, NamedTuple

from app.evaluate.matrix import Found, names
from app.evaluate.measures import Measures
from app.evaluate.run import SETTLED, WRONG, Recovery

NOTE: Final = (
    "Simulated: no figure here was measured on hardware. Baselines with knobs were tuned by grid"
    " search on this trace; NexusKV was not."
)
COLUMNS: Final = (
    ("ttft_p50_ms", "TTFT p50, ms", 0),
    ("ttft_p95_ms", "p95, ms", 0),
    ("ttft_p99_ms", "p99, ms", 0),
    ("goodput", "goodput", 3),
    ("gain_s", "gain, s", 0),
    ("regret", "regret", 4),
    ("reused_tokens", "reused", 3),
    ("useful_reuse", "useful", 3),
    ("unused_hits", "unused hits", 3),
    ("rejected_hits", "rejected hits", 3),
    ("no_hit_slowdown", "without a hit", 4),
    ("moved_tb", "moved, TB", 2),
    ("fairness", "fairness", 4),
    ("worst_tenant_p95_ms", "worst tenant p95, ms", 0),
)
ABLATION_COLUMNS: Final = (
    ("ttft_p50_ms", "TTFT p50, ms", 0),
    ("ttft_p95_ms", "p95, ms", 0),
    ("ttft_p99_ms", "p99, ms", 0),
    ("gain_s", "gain, s", 0),
    ("regret", "regret", 4),
    ("moved_tb", "moved, TB", 2),
    ("ahead_used", "moves used", 0),
    ("ahead_wasted", "moves wasted", 0),
)
MATRIX_TITLES: Final = (
    "prompts", "context", "reuse", "arrivals", "links", "profile", "regret", "better mean TTFT",
    "better p95",
)  # fmt: skip
Columns = Sequence[tuple[str, str, int]]
# Where another strategy is looked for: name, title, and whether less is better.
_COMPARED: Final = (
    ("ttft_p50_ms", "TTFT p50", True),
    ("ttft_p95_ms", "TTFT p95", True),
    ("ttft_p99_ms", "TTFT p99", True),
    ("goodput", "goodput", False),
    ("gain_s", "gain", False),
    ("fairness", "fairness", False),
)


class CellRow(NamedTuple):
    """One cell of the matrix as it is told. `mean` and `p95` are (strategy, its time over ours)
    where another one is better by more than 1 %, else None."""

    cell: tuple[str, ...]
    regret: float | None
    mean: tuple[str, float] | None
    p95: tuple[str, float] | None


def table(found: Sequence[Measures], columns: Columns = COLUMNS) -> str:
    """One strategy a line."""
    lines = ["| strategy | " + " | ".join(title for _, title, _ in columns) + " |"]
    lines.append("|---" * (len(columns) + 1) + "|")
    lines += [f"| {one.strategy} | " + " | ".join(cells(one, columns)) + " |" for one in found]
    return "\n".join(lines)


def recoveries(recovered: Sequence[Recovery]) -> str:
    """What calibration makes of profiles that are wrong."""
    lines = [
        f"| profile, {WRONG:g} times wrong | regret as it is | calibrated |",
        "|---|---|---|",
    ]
    for one, other in pairwise(recovered):
        if not one.calibrated:
            lines.append(f"| {one.wrong} | {one.regret:.4f} | {other.regret:.4f} |")
    lines.append(f"\nRegret of all but the first {SETTLED} requests.")
    return "\n".join(lines)


def ablations(found: Sequence[Measures]) -> str:
    """NexusKV with all of its parts, and without each one."""
    return table(found, ABLATION_COLUMNS)


def winners(found: Sequence[Measures]) -> str:
    """Where another strategy than ours is better, within 1 % being equal; the oracle is none."""
    ours = next(one for one in found if one.strategy == "NexusKV")
    others = [one for one in found if one.strategy not in {"NexusKV", "oracle"}]
    lines = []
    for name, title, lower in _COMPARED:
        mine = getattr(ours, name)
        for one in others:
            theirs = getattr(one, name)
            better = theirs < mine * 0.99 if lower else theirs > mine + abs(mine) * 0.01
            if better:
                lines.append(f"{one.strategy} is better at {title}: {theirs:.4g} to {mine:.4g}.")
    return "\n".join(lines) or "No other strategy is better at TTFT, goodput, gain or fairness."


def matrix_rows(matrix: Sequence[Found]) -> list[CellRow]:
    """One a cell, in their order."""
    return [
        CellRow(
            _told(one),
            one.ours.regret,
            _ahead(one, "ttft_mean_ms"),
            _ahead(one, "ttft_p95_ms"),
        )
        for one in matrix
    ]


def matrix_table(matrix: Sequence[Found]) -> str:
    """Every cell, and in how many of them another strategy is better."""
    rows = matrix_rows(matrix)
    lines = [lost(rows), ahead(matrix), "", "| " + " | ".join(MATRIX_TITLES) + " |"]
    lines.append("|---" * len(MATRIX_TITLES) + "|")
    for one in rows:
        regret = "–" if one.regret is None else f"{one.regret:.3f}"
        told = [*one.cell, regret, better(one.mean), better(one.p95)]
        lines.append("| " + " | ".join(told) + " |")
    return "\n".join(lines)


def lost(rows: Sequence[CellRow]) -> str:
    """In how many cells another strategy is better."""
    mean, p95 = sum(one.mean is not None for one in rows), sum(one.p95 is not None for one in rows)
    return (
        f"{len(rows)} cells of synthetic requests. Another strategy than NexusKV has a better mean"
        f" TTFT in {mean} of them, a better p95 in {p95}; within 1 % is equal. Figures are its time"
        " over NexusKV's."
    )


def ahead(matrix: Sequence[Found]) -> str:
    """What moves ahead of the next turn make of it; empty where no cell has turns."""
    found = [
        one.prefetching.ttft_mean_ms / one.ours.ttft_mean_ms for one in matrix if one.prefetching
    ]
    if not found:
        return ""
    return (
        f"With prefetch, the mean TTFT of the {len(found)} multi-turn cells is {min(found):.3f} to"
        f" {max(found):.3f} of what it is without."
    )


def better(found: tuple[str, float] | None) -> str:
    """Who is, and by how much."""
    return "–" if found is None else f"{found[0]}: {found[1]:.3f}"


def cells(one: Measures, columns: Columns) -> list[str]:
    """The figures of a strategy, as they are shown."""
    values = [(getattr(one, name), digits) for name, _, digits in columns]
    return ["–" if value is None else f"{value:,.{digits}f}" for value, digits in values]


def _told(found: Found) -> tuple[str, ...]:
    named = names(found.cell)
    return (
        named["kind"], f"{named['context_tokens'] // 1024}K", f"{named['reuse']:.0%}",
        named["arrivals"], named["links"], named["profile"],
    )  # fmt: skip


def _ahead(found: Found, name: str) -> tuple[str, float] | None:
    best = found.ahead(name)
    return (best.strategy, getattr(best, name) / getattr(found.ours, name)) if best else None
