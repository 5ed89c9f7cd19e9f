"""The cost of one alternative, term by term, in microseconds. Pure.

    T_cache   = lookup + queue + visible transfer + restore + sync + schedule + recompute(tail)
                + interference
    T_compute = queue + schedule + recompute(all that the target has not) + interference
    visible transfer = max(0, transfer - what of it passes while the request waits in the queue)

Prefill beside running decodes is slower by a part for each of their tokens (interference). Standard
deviations add up as squares: terms are taken to err independently, but for the queue and the
schedule, which two alternatives on one target share and whose difference they leave.
"""

from math import sqrt
from typing import Final, NamedTuple

from app.planner.cost import Provenance
from app.planner.links import Link
from app.planner.profile import Path
from app.planner.question import PlanExclusion, Question, Source, Target

# Of a figure that nobody gave, and of a link that carries other transfers too.
_UNKNOWN: Final = 1.0
_QUEUE_GUESS: Final = 0.5
_CONTENDED: Final = 0.25
MAX_US: Final = 1e15
_PROFILE: Final = Provenance.PROFILE


class Part(NamedTuple):
    """One addend of a cost and its standard deviation."""

    name: str
    value_us: float
    deviation_us: float
    provenance: Provenance


class Priced(NamedTuple):
    """An alternative with its cost. `gain_us`: of what is brought, against computing on the same
    target what that has not; of what the target has, against computing all.

    `moved_bytes` go over the link; `tail_tokens` are computed.
    """

    total_us: float
    gain_us: float
    gain_deviation_us: float
    moved_bytes: float
    tail_tokens: int
    parts: tuple[Part, ...]
    # All of it, also what the queue hides.
    transfer_us: float = 0.0


class Waiting(NamedTuple):
    """How long a request waits at a target, by what prefill is slower there, and how much of the
    wait is known: only that hides a transfer, and can be called too long.
    """

    queue: Part
    slowdown: float
    known_us: float


def waiting(target: Target) -> Waiting:
    """Prefills before it, at the target's own speed."""
    profile, depth = target.profile, target.queue_depth
    queued, provenance, relative = target.queued_prefill_tokens, Provenance.PROFILE, 0.0
    decoding = target.running_decode_tokens
    slowdown = 1 + profile.decode_slowdown * (decoding or 0)
    if queued is None:
        queued, relative = round((depth or 0) * profile.queued_tokens), _QUEUE_GUESS
        provenance = Provenance.DEFAULT if depth is not None else Provenance.UNKNOWN
    # One after the other: as so many of equal length, since attention is within each alone.
    each = queued / max(depth or 0, 1)
    busy_us = queued / each * profile.prefill.recompute_us(each, 0) * slowdown if queued else 0.0
    busy_us += (depth or 0) * profile.prefill.schedule_us
    if depth is None and target.queued_prefill_tokens is None:
        # An idle one and a full one look alike. As one request would be: at nothing, silent
        # engines would draw all requests.
        one_us = profile.prefill.recompute_us(profile.queued_tokens, 0)
        return Waiting(Part("queue", one_us, _UNKNOWN * one_us, provenance), slowdown, 0.0)
    uncertainty = relative + profile.prefill.uncertainty
    queue = Part("queue", busy_us, uncertainty * busy_us, provenance)
    return Waiting(queue, slowdown, busy_us)


def computing_us(question: Question, target: Target, wait: Waiting) -> float:
    """What `computing` comes to."""
    prefill = target.profile.prefill
    have = min(target.local_tokens, question.tokens - 1)
    recompute = prefill.recompute_us(question.tokens - have, have) * wait.slowdown
    return wait.queue.value_us + prefill.schedule_us + recompute


def computing(question: Question, target: Target, wait: Waiting) -> Priced:
    """What the target has not is computed."""
    prefill = target.profile.prefill
    have = min(target.local_tokens, question.tokens - 1)
    parts = (
        wait.queue,
        Part("schedule", prefill.schedule_us, 0.0, Provenance.PROFILE),
        *_prefilling(target, wait, question.tokens - have, have),
    )
    total = computing_us(question, target, wait)
    saved = prefill.recompute_us(have, 0) * wait.slowdown
    deviation = prefill.uncertainty * saved
    return Priced(total, saved, deviation, 0.0, question.tokens - have, parts)


def usable(question: Question, target: Target, source: Source) -> int:
    """How many leading tokens would be there: one is always computed, and blocks must be free."""
    tokens = min(source.tokens, question.tokens - 1)
    if target.free_tokens is not None and source.partial:
        tokens = min(tokens, target.local_tokens + target.free_tokens)
    return tokens if source.partial or tokens == source.tokens else 0


def bringing(
    question: Question, target: Target, wait: Waiting, source: Source, compute: Priced
) -> Priced | PlanExclusion:
    """What the source has more than the target is brought, the tail computed; or why not."""
    excluded = source.excluded or target.excluded
    if excluded is not None:
        return excluded
    have, tokens = min(target.local_tokens, question.tokens - 1), usable(question, target, source)
    if tokens <= have:
        return _no_more(question, target, source)
    remote = source.node != target.node
    path = target.profile.path(source.tier, remote=remote)
    link = question.links.get(source.node, target.node)
    if path is None and not link.bytes_per_us:
        return PlanExclusion.NO_PATH
    if link.max_in_flight and link.in_flight >= link.max_in_flight:
        return PlanExclusion.LINK_BUSY
    moved = source.fixed_bytes + source.bytes_per_token * (tokens - have)
    transfer = _transfer(path, link, moved, known=source.bytes_known)
    return _priced(question, target, wait, compute, (tokens, have), moved, transfer)


def _no_more(question: Question, target: Target, source: Source) -> PlanExclusion:
    """Why nothing is to be had of it."""
    longer = min(source.tokens, question.tokens - 1) > min(target.local_tokens, question.tokens - 1)
    return PlanExclusion.NO_CAPACITY if longer and source.partial else PlanExclusion.NOT_LONGER


def _transfer(
    path: Path | None, link: Link, moved: float, *, known: bool
) -> tuple[float, float, Provenance]:
    """Time, deviation and where both are from: latency and bytes over bandwidth, which those that
    run already take their share of.
    """
    if link.bytes_per_us:
        rate, latency_us = link.bytes_per_us, link.latency_us
        relative = path.uncertainty if path is not None else _CONTENDED
        provenance = Provenance.MEASURED
    else:
        assert path is not None
        rate, latency_us, relative = path.bytes_per_us, path.latency_us, path.uncertainty
        provenance = Provenance.MEASURED if path.measured else _PROFILE
    if not known:
        relative, provenance = relative + _UNKNOWN, Provenance.DEFAULT
    share = 1 + link.in_flight
    if share > 1:
        relative += _CONTENDED
    took = min(latency_us + moved * share / rate, MAX_US)
    return took, relative * took, provenance


def _priced(  # noqa: PLR0917 - of one caller, which has them all
    question: Question,
    target: Target,
    wait: Waiting,
    compute: Priced,
    reach: tuple[int, int],
    moved: float,
    transfer: tuple[float, float, Provenance],
) -> Priced:
    profile, queue = target.profile, wait.queue
    prefill, (tokens, have) = profile.prefill, reach
    took, took_deviation, provenance = transfer
    tail_tokens = question.tokens - tokens
    tail = prefill.recompute_us(tail_tokens, tokens) * wait.slowdown
    visible = took - min(took, wait.known_us)
    parts = (
        Part("lookup", profile.lookup_us, 0.0, _PROFILE),
        queue,
        Part("transfer", visible, took_deviation, provenance),
        Part("restore", profile.restore_us, 0.0, _PROFILE),
        Part("sync", profile.sync_us, 0.0, _PROFILE),
        Part("schedule", prefill.schedule_us, 0.0, _PROFILE),
        *_prefilling(target, wait, tail_tokens, tokens),
    )
    total = queue.value_us + visible + profile.overhead_us + tail
    saved = prefill.recompute_us(tokens - have, have) * wait.slowdown
    deviation = sqrt(took_deviation**2 + (prefill.uncertainty * saved) ** 2)
    return Priced(total, compute.total_us - total, deviation, moved, tail_tokens, parts, took)


def _prefilling(target: Target, wait: Waiting, tokens: int, context: int) -> tuple[Part, Part]:
    """Computing so many tokens in such a context, and by how much decodes make it slower."""
    prefill = target.profile.prefill
    alone = prefill.recompute_us(tokens, context)
    source = Provenance.MEASURED if prefill.measured else _PROFILE
    known = target.running_decode_tokens is not None
    slower = alone * (wait.slowdown - 1)
    return (
        Part("recompute", alone, prefill.uncertainty * alone, source),
        Part(
            "interference",
            slower,
            prefill.uncertainty * slower,
            source if known else Provenance.UNKNOWN,
        ),
    )
