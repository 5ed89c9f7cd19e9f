"""The planner's inner loop in plain Python: what `_plans.pyx` has to say."""

from collections.abc import Sequence
from math import sqrt

TARGET_FIELDS, SOURCE_FIELDS, PATH_FIELDS, LINK_FIELDS, TIERS = 12, 8, 3, 4, 5
USABLE, NOT_LONGER, NO_PATH, LINK_BUSY, NO_CAPACITY, OVERLOADED, DEADLINE, GAIN_UNCERTAIN = range(8)
_OUTCOMES = 11
_NONE = (-1.0, -1, USABLE)
_UNKNOWN, _CONTENDED, _MAX_US = 1.0, 0.25, 1e15

Row = Sequence[float]


def best_sources(  # noqa: C901, PLR0912, PLR0917 - the compiled one to the letter
    targets: Sequence[float],
    sources: Sequence[float],
    paths: Sequence[float],
    links: Sequence[float],
    nodes: int,
    prompt: float,
    deadline_us: float,
    deviations: float,
    min_gain_us: float,
    max_queue_us: float,
    barred: Sequence[int],
) -> tuple[list[tuple[int, float, int, float, int, int, float, int]], list[int]]:
    """As `_plans.best_sources`, which tells of the fields."""
    counts, best = [0] * _OUTCOMES, []
    path_rows, link_rows = _rows(paths, PATH_FIELDS), _rows(links, LINK_FIELDS)
    source_rows = _rows(sources, SOURCE_FIELDS)
    if nodes < 0 or len(links) != nodes * nodes * LINK_FIELDS:
        raise ValueError("links are not from each node to each")
    target_rows = _rows(targets, TARGET_FIELDS)
    if barred and len(barred) != len(target_rows) * len(source_rows):
        raise ValueError("pairs are not each target with each source")
    if any(outcome >= _OUTCOMES for outcome in barred):
        raise ValueError("no such outcome")
    for at, target in enumerate(target_rows):
        if not (target[9] < nodes and 0 <= target[10] < len(path_rows) // (2 * TIERS)):
            raise ValueError("no such node or profile")
        found: dict[int, tuple[float, int, int]] = {}
        for place, source in enumerate(source_rows):
            if not (source[6] < nodes and 0 <= source[7] < TIERS):
                raise ValueError("no such node or tier")
            if source[5]:
                continue
            if barred and (ended := barred[at * len(source_rows) + place]):
                counts[ended] += 1
                continue
            remote = source[6] != target[9]
            path = path_rows[2 * (TIERS * int(target[10]) + int(source[7])) + remote]
            known = source[6] >= 0 and target[9] >= 0
            link = link_rows[int(source[6]) * nodes + int(target[9])] if known else (0.0,) * 4
            outcome, total_us, gain_us, deviation_us = _priced(prompt, target, source, path, link)
            if outcome == USABLE:
                if not gain_us - deviations * deviation_us > min_gain_us:
                    outcome = GAIN_UNCERTAIN
                elif 0 <= deadline_us < total_us:
                    outcome = DEADLINE
                elif 0 < max_queue_us < target[11]:
                    outcome = OVERLOADED
            counts[outcome] += 1
            kind = {USABLE: USABLE, OVERLOADED: DEADLINE, DEADLINE: DEADLINE}.get(outcome, -1)
            if total_us >= 0 and (kind not in found or total_us < found[kind][0]):
                found[kind] = total_us, place, outcome
        usable_us, usable_place, _ = found.get(USABLE, _NONE)
        late_us, late_place, late = found.get(DEADLINE, _NONE)
        other_us, other_place, other = found.get(-1, _NONE)
        best.append(
            (usable_place, usable_us, late_place, late_us, late, other_place, other_us, other)
        )
    return best, counts


def _priced(
    prompt: float, target: Row, source: Row, path: Row, link: Row
) -> tuple[int, float, float, float]:
    """Outcome, cost (-1 without one), gain and its deviation of one pair."""
    have, free, queue, slowdown, per_token, per_pair, uncertainty, overhead, compute = target[:9]
    reach, per_byte_token, fixed, known, partial = source[:5]
    last, whole = prompt - 1, reach
    have_now, reach = min(have, last), min(reach, last)
    tokens = min(reach, have + free) if free >= 0 and partial else reach
    if not partial and tokens != whole:
        tokens = 0
    if tokens <= have_now:
        return (NO_CAPACITY if reach > have_now and partial else NOT_LONGER), -1, 0, 0
    if path[1] <= 0 and link[1] <= 0:
        return NO_PATH, -1, 0, 0
    if 0 < link[3] <= link[2]:
        return LINK_BUSY, -1, 0, 0
    if link[1] > 0:
        rate, latency, relative = link[1], link[0], path[2] if path[1] > 0 else _CONTENDED
    else:
        rate, latency, relative = path[1], path[0], path[2]
    share = 1 + link[2]
    relative += _UNKNOWN * (not known) + _CONTENDED * (share > 1)
    took = min(latency + (fixed + per_byte_token * (tokens - have_now)) * share / rate, _MAX_US)
    rest, more = prompt - tokens, tokens - have_now
    tail = rest * (per_token + per_pair * (tokens + rest / 2)) * slowdown
    saved = more * (per_token + per_pair * (have_now + more / 2)) * slowdown
    total = queue + took - min(took, target[11]) + overhead + tail
    deviation = sqrt((relative * took) ** 2 + (uncertainty * saved) ** 2)
    return USABLE, total, compute - total, deviation


def _rows(flat: Sequence[float], width: int) -> list[Row]:
    return [flat[at : at + width] for at in range(0, len(flat) // width * width, width)]
