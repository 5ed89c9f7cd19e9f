"""What is measured of a simulated run. Times are simulated, and are never called measured."""

from collections.abc import Sequence
from typing import Any, Final

from msgspec import Struct, structs

from app.evaluate.simulator import Job, Request

_US_PER_MS: Final = 1e3
TENANTS: Final = 8


class Measures(Struct, frozen=True):
    """Of one strategy. Times to the first token in milliseconds, `gain_s` against recomputing
    always, `regret` against the oracle as a part of the oracle's gain; None where there is none.

    `goodput` is the part within the objective; `useful_reuse` of tokens brought, those that a
    prefill used; `unused_hits` of requests with state at hand, those that used none;
    `fairness` is over tenants that conversations were dealt out to.
    `no_hit_slowdown` is the mean time of requests without a hit over that of recomputing always,
    less 1.
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
    gain_s: float | None = None
    regret: float | None = None
    no_hit_slowdown: float | None = None
    prediction_error_p50: float | None = None
    # Jain's index of tenants' mean slowdowns, 1 where all are alike; and the worst tenant's p95.
    fairness: float | None = None
    worst_tenant_p95_ms: float | None = None
    ahead_tb: float = 0.0
    evidence: str = "simulated"


def measured(
    name: str,
    jobs: Sequence[Job],
    *,
    slo_us: float,
    bytes_per_token: float,
    tenants: Sequence[int] = (),
    alone_us: Sequence[float] = (),
) -> Measures:
    """Without what needs another run. By a request's number: its tenant, and how long its prefill
    takes with nothing else there.
    """
    times = sorted(ttft_us(job) for job in jobs)
    brought = sum(job.moved_bytes for job in jobs)
    used = sum(min(job.reused_tokens, job.choice.reach_tokens) for job in jobs if job.moved_bytes)
    with_state = [job for job in jobs if job.choice.source is not None or job.reused_tokens]
    errors = sorted(
        ttft_us(job) / job.choice.predicted_us for job in jobs if job.choice.predicted_us
    )
    found = Measures(
        name,
        _quantile(times, 0.5) / _US_PER_MS,
        _quantile(times, 0.95) / _US_PER_MS,
        _quantile(times, 0.99) / _US_PER_MS,
        sum(times) / len(times) / _US_PER_MS,
        sum(one <= slo_us for one in times) / len(times),
        sum(job.reused_tokens for job in jobs) / sum(job.request.tokens for job in jobs),
        brought / 1e12,
        min(1.0, used * bytes_per_token / brought) if brought else None,
        sum(not job.reused_tokens for job in with_state) / len(with_state) if with_state else None,
        prediction_error_p50=_quantile(errors, 0.5) if errors else None,
    )
    return found if not tenants else structs.replace(found, **_fairness(jobs, tenants, alone_us))


def tenants_of(requests: Sequence[Request]) -> list[int]:
    """By a request's number one of TENANTS: a trace names none, so conversations are dealt out.

    Those with the same second block are one conversation; the first is often the same for all.
    """
    tenants = [0] * (max((one.number for one in requests), default=-1) + 1)
    for request in requests:
        key = request.blocks[1] if len(request.blocks) > 1 else request.number
        tenants[request.number] = key % TENANTS
    return tenants


def _fairness(
    jobs: Sequence[Job], tenants: Sequence[int], alone_us: Sequence[float]
) -> dict[str, float]:
    slowdowns: dict[int, list[float]] = {}
    times: dict[int, list[float]] = {}
    for job in jobs:
        number = job.request.number
        slowdowns.setdefault(tenants[number], []).append(ttft_us(job) / alone_us[number])
        times.setdefault(tenants[number], []).append(ttft_us(job))
    means = [sum(each) / len(each) for each in slowdowns.values()]
    worst = max(_quantile(sorted(each), 0.95) for each in times.values())
    return {
        "fairness": sum(means) ** 2 / (len(means) * sum(mean**2 for mean in means)),
        "worst_tenant_p95_ms": worst / _US_PER_MS,
    }


def ttft_us(job: Job) -> float:
    """From its arrival to its first token."""
    return job.first_token_us - job.request.arrival_us


def total_us(jobs: Sequence[Job]) -> float:
    return sum(ttft_us(job) for job in jobs)


def without_hit(requests: Sequence[Request]) -> set[int]:
    """Numbers of the requests whose first block nobody had sent before."""
    seen: set[int] = set()
    found = set()
    for request in requests:
        if not request.blocks or request.blocks[0] not in seen:
            found.add(request.number)
        seen.update(request.blocks)
    return found


def row(found: Measures) -> dict[str, Any]:
    """For a table or a file: in a fixed order, with as many digits as mean something."""
    return {
        name: round(value, 6) if isinstance(value, float) else value
        for name, value in ((name, getattr(found, name)) for name in found.__struct_fields__)
    }


def _quantile(ordered: Sequence[float], part: float) -> float:
    return ordered[min(len(ordered) - 1, int(part * len(ordered)))]
