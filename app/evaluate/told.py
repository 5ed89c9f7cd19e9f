"""Measures in words and tables."""

from collections.abc import Sequence
from typing import Final

from app.evaluate.measures import Measures

NOTE: Final = (
    "Simulated: no figure here was measured on hardware. Baselines with knobs were tuned by grid"
    " search on this trace; NexusKV was not. Tenants are dealt out to conversations."
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
    ("no_hit_slowdown", "without a hit", 4),
    ("fairness", "fairness", 4),
    ("moved_tb", "moved, TB", 2),
)


def table(found: Sequence[Measures]) -> str:
    """In Markdown, one strategy a line."""
    lines = ["| strategy | " + " | ".join(title for _, title, _ in COLUMNS) + " |"]
    lines.append("|---" * (len(COLUMNS) + 1) + "|")
    lines += [f"| {one.strategy} | " + " | ".join(cells(one)) + " |" for one in found]
    return "\n".join(lines)


def cells(one: Measures) -> list[str]:
    """Of a row, in the order of COLUMNS."""
    values = [(getattr(one, name), digits) for name, _, digits in COLUMNS]
    return ["–" if value is None else f"{value:,.{digits}f}" for value, digits in values]


def winners(found: Sequence[Measures]) -> str:
    """Where another strategy than ours is better, within 1 % being equal; the oracle is none."""
    ours = next(one for one in found if one.strategy == "NexusKV")
    others = [one for one in found if one.strategy not in {"NexusKV", "oracle"}]
    lines = []
    for name, title, lower in (
        ("ttft_p50_ms", "TTFT p50", True), ("ttft_p95_ms", "TTFT p95", True),
        ("ttft_p99_ms", "TTFT p99", True), ("goodput", "goodput", False),
        ("gain_s", "gain", False), ("fairness", "fairness", False),
    ):  # fmt: skip
        mine = getattr(ours, name)
        for one in others:
            theirs = getattr(one, name)
            if mine is None or theirs is None:
                continue
            better = theirs < mine * 0.99 if lower else theirs > mine + abs(mine) * 0.01
            if better:
                lines.append(f"{one.strategy} is better at {title}: {theirs:.4g} to {mine:.4g}.")
    return "\n".join(lines) or "No other strategy is better at TTFT, goodput, gain or fairness."
