"""An evaluation as one HTML file, without anything from elsewhere."""

import json
from collections.abc import Sequence
from html import escape
from typing import Any, NamedTuple

from app.evaluate.matrix import Found
from app.evaluate.measures import Measures, ttft_us
from app.evaluate.plots import bars, distributions, heat
from app.evaluate.run import SETTLED, WRONG, Recovery, Result
from app.evaluate.tables import (
    ABLATION_COLUMNS,
    COLUMNS,
    MATRIX_TITLES,
    NOTE,
    Columns,
    ahead,
    better,
    cells,
    lost,
    matrix_rows,
    winners,
)


class Evaluation(NamedTuple):
    """All that came of one. `recovered`, `ablated` and `matrix` are empty where nobody asked."""

    config: dict[str, Any]
    results: Sequence[Result]
    recovered: Sequence[Recovery] = ()
    ablated: Sequence[Measures] = ()
    matrix: Sequence[Found] = ()

    @property
    def measures(self) -> list[Measures]:
        return [one.measures for one in self.results]


def page(found: Evaluation) -> str:
    """The whole file."""
    measures = found.measures
    times = [
        (one.measures.strategy, [max(ttft_us(job), 1.0) / 1e3 for job in one.jobs])
        for one in found.results
    ]
    parts = [
        f"<h1>NexusKV evaluation</h1><p>{NOTE}</p><h2>Time to the first token</h2>",
        distributions(times, "part of requests by TTFT, ms"),
        "<h2>TTFT p95</h2>",
        bars([(one.strategy, one.ttft_p95_ms) for one in measures], "ms", 0),
        "<h2>Gain against recomputing always</h2>",
        bars([(one.strategy, one.gain_s or 0.0) for one in measures], "s", 0),
        "<h2>Regret against the oracle</h2>",
        bars([(one.strategy, one.regret) for one in measures if one.regret is not None], "", 4),
        "<h2>All figures</h2>",
        _table(measures, COLUMNS),
        f"<p>{escape(winners(measures)).replace(chr(10), '<br>')}</p>",
    ]
    if found.recovered:
        parts.append(_recovered(found.recovered))
    if found.ablated:
        parts += [
            "<h2>Without each part</h2>",
            bars([(one.strategy, one.regret or 0.0) for one in found.ablated], "regret", 4),
            _table(found.ablated, ABLATION_COLUMNS),
        ]
    if found.matrix:
        parts.append(_matrix(found.matrix))
    config = escape(json.dumps(found.config, indent=2, sort_keys=True))
    parts.append(f"<h2>Made from</h2><pre>{config}</pre>")
    return (
        '<!doctype html><html lang="en"><meta charset="utf-8"><title>NexusKV evaluation</title>'
        "<style>body{font:14px/1.5 system-ui,sans-serif;margin:2em;max-width:96em}"
        "td,th{padding:4px 10px;text-align:right;border-top:1px solid #ccc}"
        "th[scope=row]{text-align:left}pre{background:#f5f6f8;padding:1em;overflow:auto}</style>"
        + "".join(parts)
        + "</html>\n"
    )


def _table(found: Sequence[Measures], columns: Columns) -> str:
    head = "".join(f"<th scope='col'>{title}</th>" for _, title, _ in columns)
    body = "".join(
        f"<tr><th scope='row'>{escape(one.strategy)}</th>"
        + "".join(f"<td>{cell}</td>" for cell in cells(one, columns))
        + "</tr>"
        for one in found
    )
    return f"<table><tr><th scope='row'>strategy</th>{head}</tr>{body}</table>"


def _recovered(recovered: Sequence[Recovery]) -> str:
    named = [
        (f"{one.wrong}{', calibrated' if one.calibrated else ''}", one.regret) for one in recovered
    ]
    return (
        f"<h2>Regret with a profile {WRONG:g} times wrong</h2>{bars(named, '', 4)}"
        f"<p>Of all but the first {SETTLED} requests.</p>"
    )


def _matrix(matrix: Sequence[Found]) -> str:
    rows = matrix_rows(matrix)
    head = "".join(f"<th scope='col'>{title}</th>" for title in MATRIX_TITLES)
    body = "".join(
        "<tr>"
        + "".join(f"<td>{escape(cell)}</td>" for cell in one.cell)
        + f"<td>{'–' if one.regret is None else f'{one.regret:.3f}'}</td>"
        + "".join(
            f'<td style="background:{heat(other[1] if other else None)}">'
            f"{escape(better(other))}</td>"
            for other in (one.mean, one.p95)
        )
        + "</tr>"
        for one in rows
    )
    return f"<h2>Matrix</h2><p>{lost(rows)} {ahead(matrix)}</p><table><tr>{head}</tr>{body}</table>"
