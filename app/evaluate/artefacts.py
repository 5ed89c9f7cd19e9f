"""What an evaluation leaves: a folder from which anyone runs it again, byte for byte."""

import html
import json
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any, Final

from app.evaluate.measures import Measures, row
from app.evaluate.run import SETTLED, WRONG, Recovery

_NOTE: Final = (
    "Simulated: no figure here was measured on hardware. Baselines with knobs were tuned by grid"
    " search on this trace; NexusKV was not."
)
_COLUMNS: Final = (
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
    ("moved_tb", "moved, TB", 2),
)


def write(
    directory: Path,
    config: dict[str, Any],
    found: Sequence[Measures],
    recovered: Sequence[Recovery],
) -> list[Path]:
    """`config.json`, `strategies.jsonl`, `calibration.jsonl`, `table.md` and `report.html`.

    Raises OSError.
    """
    directory.mkdir(parents=True, exist_ok=True)
    told = [table(found), _NOTE, winners(found), *([recoveries(recovered)] if recovered else [])]
    contents = {
        "config.json": json.dumps(config, indent=2, sort_keys=True) + "\n",
        "strategies.jsonl": "".join(json.dumps(row(one)) + "\n" for one in found),
        "calibration.jsonl": "".join(json.dumps(one._asdict()) + "\n" for one in recovered),
        "table.md": "\n\n".join(told) + "\n",
        "report.html": _page(config, found, recovered),
    }
    written = []
    for name, content in contents.items():
        path = directory / name
        path.write_text(content, encoding="utf-8")
        written.append(path)
    return written


def table(found: Sequence[Measures]) -> str:
    """In Markdown, one strategy a line."""
    lines = ["| strategy | " + " | ".join(title for _, title, _ in _COLUMNS) + " |"]
    lines.append("|---" * (len(_COLUMNS) + 1) + "|")
    lines += [f"| {one.strategy} | " + " | ".join(_cells(one)) + " |" for one in found]
    return "\n".join(lines)


def recoveries(recovered: Sequence[Recovery]) -> str:
    """What calibration makes of profiles that are wrong, in Markdown."""
    lines = [
        f"| profile, {WRONG:g} times wrong | regret as it is | calibrated |",
        "|---|---|---|",
    ]
    for one, other in pairwise(recovered):
        if not one.calibrated:
            lines.append(f"| {one.wrong} | {one.regret:.4f} | {other.regret:.4f} |")
    lines.append(f"\nRegret of all but the first {SETTLED} requests.")
    return "\n".join(lines)


def winners(found: Sequence[Measures]) -> str:
    """Where another strategy than ours is better, within 1 % being equal; the oracle is none."""
    ours = next(one for one in found if one.strategy == "NexusKV")
    others = [one for one in found if one.strategy not in {"NexusKV", "oracle"}]
    lines = []
    for name, title, lower in (
        ("ttft_p50_ms", "TTFT p50", True), ("ttft_p95_ms", "TTFT p95", True),
        ("ttft_p99_ms", "TTFT p99", True), ("goodput", "goodput", False),
        ("gain_s", "gain", False),
    ):  # fmt: skip
        mine = getattr(ours, name)
        for one in others:
            theirs = getattr(one, name)
            better = theirs < mine * 0.99 if lower else theirs > mine + abs(mine) * 0.01
            if better:
                lines.append(f"{one.strategy} is better at {title}: {theirs:.4g} to {mine:.4g}.")
    return "\n".join(lines) or "No other strategy is better at TTFT, goodput or gain."


def _cells(one: Measures) -> list[str]:
    values = [(getattr(one, name), digits) for name, _, digits in _COLUMNS]
    return ["–" if value is None else f"{value:,.{digits}f}" for value, digits in values]


def _page(config: dict[str, Any], found: Sequence[Measures], recovered: Sequence[Recovery]) -> str:
    """One file, without anything from elsewhere: bars of the p95, and the table."""
    longest = max(one.ttft_p95_ms for one in found)
    bars = "".join(
        f'<tr><th scope="row">{html.escape(one.strategy)}</th><td><svg width="420" height="18"'
        f' role="img" aria-label="{one.ttft_p95_ms:.0f} ms"><rect width='
        f'"{400 * one.ttft_p95_ms / longest:.1f}" height="14" y="2" fill="#1d5bb8"/></svg></td>'
        f"<td>{one.ttft_p95_ms:,.0f} ms</td></tr>"
        for one in found
    )
    head = "".join(f"<th scope='col'>{title}</th>" for _, title, _ in _COLUMNS)
    body = "".join(
        f"<tr><th scope='row'>{html.escape(one.strategy)}</th>"
        + "".join(f"<td>{cell}</td>" for cell in _cells(one))
        + "</tr>"
        for one in found
    )
    learnt = "".join(
        f"<tr><th scope='row'>{one.wrong}{', calibrated' if one.calibrated else ''}</th>"
        f"<td>{one.regret:.4f}</td></tr>"
        for one in recovered
    )
    return (
        '<!doctype html><html lang="en"><meta charset="utf-8"><title>NexusKV evaluation</title>'
        "<style>body{font:14px/1.5 system-ui,sans-serif;margin:2em;max-width:80em}"
        "td,th{padding:4px 10px;text-align:right;border-top:1px solid #ccc}"
        "th[scope=row]{text-align:left}pre{background:#f5f6f8;padding:1em;overflow:auto}</style>"
        f"<h1>NexusKV evaluation</h1><p>{_NOTE}</p><h2>TTFT p95</h2><table>{bars}</table>"
        f"<h2>All figures</h2><table><tr><th scope='row'>strategy</th>{head}</tr>{body}</table>"
        f"<p>{html.escape(winners(found))}</p>"
        f"<h2>Regret with a profile {WRONG:g} times wrong</h2><table>{learnt}</table>"
        f"<p>Of all but the first {SETTLED} requests.</p><h2>Made from</h2>"
        f"<pre>{html.escape(json.dumps(config, indent=2, sort_keys=True))}</pre></html>\n"
    )
