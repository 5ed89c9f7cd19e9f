"""Histograms of fixed bounds: what rollups keep of latencies and of prediction errors.

Counts of equal bounds add up, so that quantiles of any span and group come from sums; a quantile is
exact to the width of its bucket.
"""

from bisect import bisect_left
from collections.abc import Sequence
from typing import Final

_STEPS_A_DOUBLING: Final = 4


def _geometric(first: float, doublings: int) -> tuple[float, ...]:
    return tuple(
        first * 2 ** (step / _STEPS_A_DOUBLING) for step in range(doublings * _STEPS_A_DOUBLING + 1)
    )


# Upper bounds, inclusive; one bucket more holds what is above the last. 8 us to 134 s, each 19 %
# above the one before.
LATENCY_BOUNDS_US: Final = _geometric(8, 24)
# Observed over predicted: a 64th to 64 times.
ERROR_BOUNDS: Final = _geometric(1 / 64, 12)


def bucket_of(bounds: Sequence[float], value: float) -> int:
    """The number of the bucket, 0 to len(bounds)."""
    return bisect_left(bounds, value)


def quantile(bounds: Sequence[float], counts: Sequence[int], q: float) -> float | None:
    """The value below which a fraction q, 0 to 1, lies; None where nothing was counted.

    Within its bucket values are taken as spread evenly. What lies beyond the last bound is that
    bound, as nothing more is known of it. `counts` may be shorter than the bounds.
    """
    total = sum(counts)
    if not total:
        return None
    wanted, seen = q * total, 0
    for number, count in enumerate(counts):
        if count and seen + count >= wanted:
            if number >= len(bounds):
                return float(bounds[-1])
            low = bounds[number - 1] if number else 0.0
            return low + (bounds[number] - low) * max(0.0, wanted - seen) / count
        seen += count
    return float(bounds[-1])
