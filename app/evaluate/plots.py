"""Plots as SVG inside a page: made of numbers with fixed digits, so that they are the same bytes
everywhere, and of nothing from elsewhere.
"""

from collections.abc import Sequence
from html import escape
from math import ceil, floor, log10
from typing import Final

_COLOURS: Final = (
    "#7f7f7f", "#8c564b", "#d98c00", "#2ca02c", "#9467bd", "#1d5bb8", "#17a2b8", "#e377c2",
    "#111111",
)  # fmt: skip
_WIDTH, _HEIGHT, _MARGIN, _LEGEND = 640.0, 300.0, 44.0, 200.0
_POINTS: Final = 120


def bars(values: Sequence[tuple[str, float]], unit: str, digits: int) -> str:
    """One row each, as long as its value is of the largest; what is negative has no bar."""
    longest = max((value for _, value in values), default=0.0) or 1.0
    rows = "".join(
        f'<tr><th scope="row">{escape(name)}</th><td><svg width="420" height="18" role="img"'
        f' aria-label="{value:.{digits}f} {unit}"><rect height="14" y="2" fill="#1d5bb8"'
        f' width="{max(0.0, 400 * value / longest):.1f}"/></svg></td>'
        f"<td>{value:,.{digits}f} {unit}</td></tr>"
        for name, value in values
    )
    return f"<table>{rows}</table>"


def distributions(values: Sequence[tuple[str, Sequence[float]]], title: str) -> str:
    """What part of each one's values is at most so much, over a logarithmic axis; positive ones."""
    low = floor(log10(min(min(one) for _, one in values)))
    high = max(ceil(log10(max(max(one) for _, one in values))), low + 1)
    lines = []
    for place, (name, one) in enumerate(values):
        ordered, colour = sorted(one), _COLOURS[place % len(_COLOURS)]
        points = []
        for step in range(_POINTS + 1):
            value = ordered[min(len(ordered) - 1, step * len(ordered) // _POINTS)]
            x = _MARGIN + (_WIDTH - 2 * _MARGIN) * (log10(value) - low) / (high - low)
            points.append(f"{x:.1f},{_up(step / _POINTS):.1f}")
        text = 30 + 18 * place
        lines.append(
            f'<polyline fill="none" stroke="{colour}" stroke-width="1.6" points="'
            + " ".join(points)
            + f'"/><rect x="{_WIDTH:.0f}" y="{text - 9}" width="12" height="8" fill="{colour}"/>'
            f'<text x="{_WIDTH + 18:.0f}" y="{text}">{escape(name)}</text>'
        )
    return (
        f'<svg width="{_WIDTH + _LEGEND:.0f}" height="{_HEIGHT:.0f}" role="img" font-size="12"'
        f' aria-label="{escape(title)}">{_axes(low, high, title)}{"".join(lines)}</svg>'
    )


def _up(part: float) -> float:
    return _HEIGHT - _MARGIN - (_HEIGHT - 2 * _MARGIN) * part


def _axes(low: int, high: int, title: str) -> str:
    marks = []
    for power in range(low, high + 1):
        x = _MARGIN + (_WIDTH - 2 * _MARGIN) * (power - low) / (high - low)
        marks.append(
            f'<line x1="{x:.1f}" x2="{x:.1f}" y1="{_up(0):.1f}" y2="{_up(1):.1f}" stroke="#ddd"/>'
            f'<text x="{x:.1f}" y="{_up(0) + 16:.1f}" text-anchor="middle">{10.0**power:g}</text>'
        )
    for quarter in range(5):
        y = _up(quarter / 4)
        marks.append(
            f'<line x1="{_MARGIN:.1f}" x2="{_WIDTH - _MARGIN:.1f}" y1="{y:.1f}" y2="{y:.1f}"'
            f' stroke="#ddd"/><text x="{_MARGIN - 6:.1f}" y="{y + 4:.1f}" text-anchor="end">'
            f"{quarter / 4:.2f}</text>"
        )
    marks.append(f'<text x="{_MARGIN:.1f}" y="{_HEIGHT - 8:.1f}">{escape(title)}</text>')
    return "".join(marks)


def heat(ratio: float | None) -> str:
    """A colour: of nobody who is better, or the redder the less of our time another one takes."""
    if ratio is None:
        return "#dff0df"
    strength = min(max((1 - ratio) / 0.2, 0.0), 1.0)
    return f"rgb(255,{225 - round(110 * strength)},{205 - round(130 * strength)})"
