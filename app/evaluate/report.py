"""The page of an evaluation: one file, with nothing from elsewhere."""

import html
import json
from collections.abc import Sequence
from typing import Any, Final

from app.evaluate.matrix import ORACLE, OURS, Cell
from app.evaluate.measures import Measures
from app.evaluate.plots import bars, curves
from app.evaluate.told import COLUMNS, NOTE, cells, winners

_STYLE: Final = (
    "body{font:14px/1.5 system-ui,sans-serif;margin:2em;max-width:80em}"
    "td,th{padding:4px 10px;text-align:right;border-top:1px solid #ccc}"
    "th[scope=row]{text-align:left;font-weight:normal}"
    "pre{background:#f5f6f8;padding:1em;overflow:auto}"
    "svg{font:12px system-ui,sans-serif;max-width:100%}figure{margin:1em 0}"
    "figcaption{font-weight:600}.ours{background:#e2f3e9}.theirs{background:#faefd9}"
    "div.wide{overflow-x:auto}"
)


def page(  # noqa: PLR0917 - what the page has, from top to bottom
    config: dict[str, Any],
    found: Sequence[Measures],
    times: Sequence[tuple[str, Sequence[float]]],
    ablations: Sequence[Measures],
    recovered: str,
    matrix: Sequence[Cell],
) -> str:
    """HTML. `times` are of each strategy in ms, ascending; `recovered` is a table as text."""
    parts = [
        '<!doctype html><html lang="en"><meta charset="utf-8"><title>NexusKV evaluation</title>',
        f"<style>{_STYLE}</style><h1>NexusKV evaluation</h1><p>{NOTE}</p>",
        "<h2>Strategies</h2>",
        curves("Time to the first token: part of requests within", "ms", times),
        bars("TTFT p95", "ms", [(one.strategy, one.ttft_p95_ms) for one in found]),
        bars("Gain against recomputing always", "s", [(one.strategy, one.gain_s) for one in found]),
        bars("Regret against the oracle", "", [(one.strategy, one.regret) for one in found]),
        _table(found),
        f"<p>{html.escape(winners(found))}</p>",
    ]
    if ablations:
        parts += [
            "<h2>Ablations, and prefetch</h2>",
            bars("Regret", "", [(one.strategy, one.regret) for one in ablations]),
            _table(ablations),
        ]
    if recovered:
        parts.append(f"<h2>Profiles that are wrong</h2><pre>{html.escape(recovered)}</pre>")
    if matrix:
        parts += ["<h2>Workloads</h2>", _matrix(matrix)]
    told = html.escape(json.dumps(config, indent=2, sort_keys=True))
    parts.append(f"<h2>Made from</h2><pre>{told}</pre></html>\n")
    return "".join(parts)


def _table(found: Sequence[Measures]) -> str:
    head = "".join(f"<th scope='col'>{title}</th>" for _, title, _ in COLUMNS)
    body = "".join(
        f"<tr><th scope='row'>{html.escape(one.strategy)}</th>"
        + "".join(f"<td>{cell}</td>" for cell in cells(one))
        + "</tr>"
        for one in found
    )
    return (
        f"<div class='wide'><table><tr><th scope='row'>strategy</th>{head}</tr>{body}</table></div>"
    )


def _matrix(matrix: Sequence[Cell]) -> str:
    """The mean time of every strategy over ours; ours in green where nobody is better."""
    names = [one.strategy for one in matrix[0].rows if one.strategy not in {OURS, ORACLE}]
    plain = [name.partition(" (")[0] for name in names]
    head = "".join(f"<th scope='col'>{html.escape(name)}</th>" for name in plain)
    rows = []
    for cell in matrix:
        ours = cell.of(OURS).ttft_mean_ms
        best = OURS in cell.best("ttft_mean_ms")
        others = [one for one in cell.rows if one.strategy not in {OURS, ORACLE}]
        rows.append(
            f"<tr class='{'ours' if best else 'theirs'}'>"
            f"<th scope='row'>{html.escape(cell.name)}</th>"
            f"<td>{ours:,.0f}</td>"
            + "".join(f"<td>{one.ttft_mean_ms / ours:.2f}</td>" for one in others)
            + "</tr>"
        )
    return (
        "<p>Mean TTFT of NexusKV in ms, and of the others as a multiple of it; below 1 they are"
        " better. Green: within 1 % of the best, or the best.</p><div class='wide'><table>"
        f"<tr><th scope='row'>workload</th><th scope='col'>NexusKV, ms</th>{head}</tr>"
        f"{''.join(rows)}</table></div>"
    )
