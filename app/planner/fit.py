"""Profiles from measurements: the terms that come nearest to measured points. Pure.

Errors count by their part of the measured value, since a planner compares times of any length.
"""

from collections.abc import Sequence
from itertools import combinations
from math import isfinite, sqrt
from typing import NamedTuple

from app.planner.profile import Path, Prefill

_TINY = 1e-18


class Fitted(NamedTuple):
    """Coefficients, none negative, and the root mean square of the relative errors they leave."""

    coefficients: tuple[float, ...]
    error: float


class Point(NamedTuple):
    """`size` in tokens or bytes, and the measured time."""

    size: float
    took_us: float


def fit_prefill(points: Sequence[Point], *, schedule_us: float | None = None) -> Prefill:
    """From prefills without context: schedule + a n + b n^2 / 2. Raises ValueError without two
    points of different sizes. `schedule_us` where it is known.
    """
    _check(points, 2)
    known = schedule_us or 0.0
    rows = [(point.size, point.size**2 / 2) for point in points]
    if schedule_us is None:
        rows_with = [(1.0, *row) for row in rows]
        fitted = nonnegative([list(row) for row in rows_with], [p.took_us for p in points])
        known, per_token, per_pair = fitted.coefficients
    else:
        fitted = nonnegative([list(row) for row in rows], [p.took_us - known for p in points])
        per_token, per_pair = fitted.coefficients
    return Prefill(known, per_token, per_pair, fitted.error)


def fit_path(points: Sequence[Point], like: Path) -> Path:
    """Latency and bandwidth from transfers; what else a path says is that of `like`.

    Raises ValueError without two points of different sizes, or where longer ones take no longer.
    """
    _check(points, 2)
    rows = [[1.0, point.size] for point in points]
    fitted = nonnegative(rows, [point.took_us for point in points])
    latency_us, us_per_byte = fitted.coefficients
    if us_per_byte <= _TINY:
        raise ValueError("longer transfers take no longer: there is no bandwidth to fit")
    return Path(like.tier, latency_us, 1 / us_per_byte, fitted.error, like.remote, like.backend)


def nonnegative(rows: Sequence[Sequence[float]], values: Sequence[float]) -> Fitted:
    """Least squares of relative errors with no coefficient below zero: of all subsets of columns,
    the best one whose own solution has none. Raises ValueError where there is none.
    """
    width = len(rows[0])
    weights = [1 / abs(value) if value else 1.0 for value in values]
    found: list[Fitted] = []
    for count in range(1, min(width, len(rows)) + 1):
        for chosen in combinations(range(width), count):
            solved = _solved([[row[n] for n in chosen] for row in rows], values, weights)
            if solved is None or any(one < 0 for one in solved):
                continue
            whole = [0.0] * width
            for place, one in zip(chosen, solved, strict=True):
                whole[place] = one
            found.append(Fitted(tuple(whole), _error(rows, values, weights, whole)))
    if not found:
        raise ValueError("no coefficients fit")
    return min(found, key=lambda one: one.error)


def _solved(
    rows: Sequence[Sequence[float]], values: Sequence[float], weights: Sequence[float]
) -> list[float] | None:
    """The normal equations by elimination, with columns scaled to the same size."""
    width = len(rows[0])
    scales = [max(abs(row[n]) for row in rows) or 1.0 for n in range(width)]
    scaled = [
        [row[n] / scales[n] * weight for n in range(width)]
        for row, weight in zip(rows, weights, strict=True)
    ]
    right = [value * weight for value, weight in zip(values, weights, strict=True)]
    matrix = [
        [sum(row[i] * row[j] for row in scaled) for j in range(width)]
        + [sum(row[i] * value for row, value in zip(scaled, right, strict=True))]
        for i in range(width)
    ]
    for column in range(width):
        pivot = max(range(column, width), key=lambda n: abs(matrix[n][column]))
        if abs(matrix[pivot][column]) < _TINY:
            return None
        matrix[column], matrix[pivot] = matrix[pivot], matrix[column]
        for other in range(width):
            if other != column:
                factor = matrix[other][column] / matrix[column][column]
                matrix[other] = [
                    one - factor * two
                    for one, two in zip(matrix[other], matrix[column], strict=True)
                ]
    solved = [matrix[n][width] / matrix[n][n] / scales[n] for n in range(width)]
    return solved if all(map(isfinite, solved)) else None


def _error(
    rows: Sequence[Sequence[float]],
    values: Sequence[float],
    weights: Sequence[float],
    coefficients: Sequence[float],
) -> float:
    squares = [
        ((sum(a * b for a, b in zip(row, coefficients, strict=True)) - value) * weight) ** 2
        for row, value, weight in zip(rows, values, weights, strict=True)
    ]
    return sqrt(sum(squares) / len(squares))


def _check(points: Sequence[Point], least: int) -> None:
    usable = [point for point in points if isfinite(point.size) and isfinite(point.took_us)]
    if len({point.size for point in usable if point.size > 0}) < least or len(usable) < len(points):
        raise ValueError(
            f"at least {least} points of different sizes, with finite times, are needed"
        )
