"""What is measured of a simulated run. Times are simulated, and are never called measured."""

from collections.abc import Sequence
from typing import Any, Final

from msgspec import Struct

from app.evaluate.fleet import Fleet
from app.evaluate.moves import Counts
from app.evaluate.requests import Request
from app.evaluate.simulator import Job

_US_PER_MS: Final = 1e3
_NO_HIT_PART: Final = 0.05


class Measures(Struct, frozen=True):
    """Of one strategy. Times to the first token in milliseconds, `gain_s` against recomputing
    always, `regret` against the oracle as a part of the oracle's gain; None where there is none, or
    where the oracle gains less than 1 % of all time.

    `goodput` is the part within the objective; `useful_reuse` of tokens brought for a
    request, those that its prefill used; of requests with state at hand anywhere, `unused_hits`
    are those that used none, `rejected_hits` those that used less than the longest there was;
    `no_hit_slowdown` is the mean time of requests without a hit over that of recomputing always,
    less 1. `fairness` is Jain's index of the tenants' slowdowns, each the sum of its times over
    that of its prefills computed whole on idle engines: 1 where all are alike, one over their
    number where one suffers for all.

    `ahead_used` and `ahead_wasted` are moves ahead that a turn used, and those cancelled or
    demoted; `moved_tb` counts their bytes, too.
    """

    strategy: str
    ttft_p50_ms: float
    ttft_p95_ms: float
    ttft_p99_ms: float
    ttft_mean_ms: float
    goodput: float
    reused_tokens: float
    moved_tb: float
    useful_reuse: float | None
    unused_hits: float | None
    rejected_hits: float | None
    gain_s: float | None = None
    regret: float | None = None
    no_hit_slowdown: float | None = None
    prediction_error_p50: float | None = None
    fairness: float = 1.0
    worst_tenant_p95_ms: float = 0.0
    ahead_used: int = 0
    ahead_wasted: int = 0
    evidence: str = "simulated"


def measured(name: str, jobs: Sequence[Job], fleet: Fleet, ahead: Counts) -> Measures:
    """Without what needs another run."""
    each, slo_us = fleet.profile.default_bytes_per_token, fleet.slo_ttft_us
    times = sorted(ttft_us(job) for job in jobs)
    brought = sum(job.moved_bytes for job in jobs)
    used = sum(_used_tokens(job, each) for job in jobs if job.moved_bytes)
    with_state = [job for job in jobs if job.at_hand_tokens]
    unused = sum(not job.reused_tokens for job in with_state)
    rejected = sum(
        job.reused_tokens < min(job.at_hand_tokens, job.request.tokens - 1) for job in with_state
    )
    errors = sorted(
        ttft_us(job) / job.choice.predicted_us for job in jobs if job.choice.predicted_us
    )
    tenants = by_tenant(jobs)
    return Measures(
        name,
        quantile(times, 0.5) / _US_PER_MS,
        quantile(times, 0.95) / _US_PER_MS,
        quantile(times, 0.99) / _US_PER_MS,
        sum(times) / len(times) / _US_PER_MS,
        sum(one <= slo_us for one in times) / len(times),
        sum(job.reused_tokens for job in jobs) / sum(job.request.tokens for job in jobs),
        (brought + ahead.moved_bytes) / 1e12,
        used * each / brought if brought else None,
        unused / len(with_state) if with_state else None,
        rejected / len(with_state) if with_state else None,
        prediction_error_p50=quantile(errors, 0.5) if errors else None,
        fairness=jain([_slowdown(one, fleet) for one in tenants]),
        worst_tenant_p95_ms=max(
            quantile(sorted(ttft_us(job) for job in one), 0.95) / _US_PER_MS for one in tenants
        ),
        ahead_used=ahead.used,
        ahead_wasted=ahead.cancelled + ahead.demoted,
    )


def _used_tokens(job: Job, bytes_per_token: float) -> float:
    """Of the tokens that were brought for it, those that its prefill used: one is always computed,
    and others may have left the device, or come there by themselves, before it began."""
    moved_tokens = job.moved_bytes / bytes_per_token
    had_tokens = job.choice.reach_tokens - moved_tokens
    return min(max(job.reused_tokens - had_tokens, 0.0), moved_tokens)


def by_tenant(jobs: Sequence[Job]) -> list[list[Job]]:
    """The jobs of each tenant, in the order of the tenants."""
    found: dict[int, list[Job]] = {}
    for job in jobs:
        found.setdefault(job.request.tenant, []).append(job)
    return [found[tenant] for tenant in sorted(found)]


def jain(values: Sequence[float]) -> float:
    """Jain's index of fairness (1984): the square of the sum over n times the sum of squares; 1 for
    equal values, and where there is nothing to divide."""
    squares = sum(value * value for value in values)
    return sum(values) ** 2 / (len(values) * squares) if squares else 1.0


def _slowdown(jobs: Sequence[Job], fleet: Fleet) -> float:
    prefill = fleet.profile.prefill
    alone_us = sum(
        (prefill.schedule_us + prefill.recompute_us(job.request.tokens, 0))
        * job.request.prefill_factor
        for job in jobs
    )
    return total_us(jobs) / alone_us if alone_us else 1.0


def ttft_us(job: Job) -> float:
    """From its arrival to its first token."""
    return job.first_token_us - job.request.arrival_us


def total_us(jobs: Sequence[Job]) -> float:
    return sum(ttft_us(job) for job in jobs)


def without_hit(requests: Sequence[Request], block_tokens: int) -> set[int]:
    """Numbers of the requests that nobody could have served from a cache: of whose tokens nobody
    had sent more than a twentieth before, such as the first block that every prompt begins with."""
    seen: set[int] = set()
    found = set()
    for request in requests:
        known = 0
        for block in request.blocks:
            if block not in seen:
                break
            known += block_tokens
        if known <= _NO_HIT_PART * request.tokens:
            found.add(request.number)
        seen.update(request.blocks)
    return found


def row(found: Measures) -> dict[str, Any]:
    """For a table or a file: in a fixed order, with as many digits as mean something."""
    return {
        name: round(value, 6) if isinstance(value, float) else value
        for name, value in ((name, getattr(found, name)) for name in found.__struct_fields__)
    }


def quantile(ordered: Sequence[float], part: float) -> float:
    """Of values in ascending order, at least one."""
    return ordered[min(len(ordered) - 1, int(part * len(ordered)))]
