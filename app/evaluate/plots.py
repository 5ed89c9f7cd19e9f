"""Plots as SVG, from figures alone: the same figures, the same bytes. Pure."""

import html
from collections.abc import Sequence
from typing import Final

_WIDTH: Final = 760
_COLOURS: Final = (
    "#8a93a3", "#c2a52c", "#d2774c", "#9c6b3f", "#b08bd0", "#1d5bb8", "#2aa7a0", "#13683c",
    "#c0506d", "#3f7fdc",
)  # fmt: skip
_ROW: Final = 24
_LABEL: Final = 260


def colour(place: int) -> str:
    """Of the series at a place."""
    return _COLOURS[place % len(_COLOURS)]


def bars(title: str, unit: str, values: Sequence[tuple[str, float | None]]) -> str:
    """A bar a row; one without a value says so. Below zero they go to the left of the axis."""
    known = [value for _, value in values if value is not None]
    low, high = min([0.0, *known]), max([0.0, *known])
    span = (high - low) or 1.0
    scale = (_WIDTH - _LABEL - 90) / span
    zero = _LABEL - low * scale
    rows = []
    for place, (name, value) in enumerate(values):
        at = place * _ROW
        rows.append(_text(0, at + 16, name))
        if value is None:
            rows.append(_text(zero + 6, at + 16, "–"))
            continue
        left, width = (
            (zero, value * scale) if value >= 0 else (zero + value * scale, -value * scale)
        )
        rows.append(
            f'<rect x="{left:.1f}" y="{at + 4}" width="{max(width, 0.5):.1f}" height="16"'
            f' fill="{colour(place)}"/>'
        )
        rows.append(_text(max(zero, left + width) + 6, at + 16, f"{value:,.4g} {unit}"))
    return _svg(title, len(values) * _ROW + 6, rows)


def curves(title: str, unit: str, series: Sequence[tuple[str, Sequence[float]]]) -> str:
    """Cumulative distributions on a logarithmic axis; each of its values in ascending order."""
    everything = [value for _, values in series for value in values if value > 0]
    if not everything:
        return ""
    low, high = _log10(min(everything)), _log10(max(everything))
    span, height = (high - low) or 1.0, 260
    rows = [
        f'<rect x="40" y="0" width="{_WIDTH - 60}" height="{height}" fill="none" stroke="#ccc"/>'
    ]
    for part in (0.0, 0.5, 0.95, 1.0):
        at = height * (1 - part)
        rows.append(f'<line x1="40" x2="{_WIDTH - 20}" y1="{at:.1f}" y2="{at:.1f}" stroke="#eee"/>')
        rows.append(_text(0, at + 4, f"{part:.2f}"))
    for power in range(int(low), int(high) + 2):
        at = 40 + (_WIDTH - 60) * (power - low) / span
        if 40 <= at <= _WIDTH - 20:
            rows.append(_text(at, height + 16, f"{10**power:,g} {unit}"))
    for place, (name, values) in enumerate(series):
        points = _points(values, low, span, height)
        rows.append(
            f'<polyline points="{points}" fill="none" stroke="{colour(place)}" stroke-width="1.5"/>'
        )
        rows.append(
            f'<rect x="40" y="{height + 28 + 18 * place}" width="12" height="12"'
            f' fill="{colour(place)}"/>'
        )
        rows.append(_text(58, height + 38 + 18 * place, name))
    return _svg(title, height + 34 + 18 * len(series), rows)


def _points(values: Sequence[float], low: float, span: float, height: int) -> str:
    """At most 200 of them."""
    step = max(1, len(values) // 200)
    chosen = [*range(0, len(values), step), len(values) - 1]
    return " ".join(
        f"{40 + (_WIDTH - 60) * (_log10(max(values[at], 1e-9)) - low) / span:.1f},"
        f"{height * (1 - (at + 1) / len(values)):.1f}"
        for at in chosen
    )


def _log10(value: float) -> float:
    """By its digits: the same on every machine."""
    mantissa, power = f"{value:.6e}".split("e")
    return int(power) + (float(mantissa) - 1) / 9


def _text(left: float, top: float, text: str) -> str:
    return f'<text x="{left:.1f}" y="{top:.1f}">{html.escape(text)}</text>'


def _svg(title: str, height: int, rows: Sequence[str]) -> str:
    return (
        f'<figure><figcaption>{html.escape(title)}</figcaption><svg viewBox="0 0 {_WIDTH} {height}"'
        f' width="{_WIDTH}" role="img" aria-label="{html.escape(title)}">{"".join(rows)}</svg>'
        "</figure>"
    )
