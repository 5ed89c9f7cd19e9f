"""An evaluation: every strategy on the same fleet and trace, the baselines at their best."""

from collections.abc import Callable, Sequence
from typing import Final, NamedTuple

from msgspec import structs

from app.evaluate.fleet import Fleet
from app.evaluate.measures import Measures, measured, total_us, ttft_us, without_hit
from app.evaluate.simulator import Job, Request, Simulator, Strategy
from app.evaluate.strategies import (
    BLOCK_WEIGHTS,
    TIER_WEIGHTS,
    Calibrated,
    EngineLocal,
    HitDriven,
    Oracle,
    Planned,
    RecomputeAlways,
)
from app.planner.profile import Profile
from app.planner.question import CostBounds

Progress = Callable[[str], None]
# By what factor a profile is wrong, and after how many requests it must be right again.
WRONG: Final = 4.0
SETTLED: Final = 500


class Recovery(NamedTuple):
    """Regret after SETTLED requests, as a part of the oracle's gain, of a wrong profile."""

    wrong: str
    calibrated: bool
    regret: float


def evaluate(fleet: Fleet, requests: Sequence[Request], tell: Progress) -> list[Measures]:
    """One row a strategy; the baselines with knobs are tuned on this very trace, ours is not."""
    return compare(fleet, requests, strategies(fleet, requests, tell), tell)


def strategies(fleet: Fleet, requests: Sequence[Request], tell: Progress) -> list[Strategy]:
    """What is compared: the first is the one that gains are against, the last the oracle."""
    profile = fleet.profile
    return [
        RecomputeAlways(),
        EngineLocal(),
        HitDriven(),
        _best(fleet, requests, BLOCK_WEIGHTS, tell),
        _best(fleet, requests, TIER_WEIGHTS, tell),
        Planned(profile),
        Planned(profile, CostBounds(deviations=0.0), "NexusKV without uncertainty"),
        Oracle(),
    ]


def compare(
    fleet: Fleet, requests: Sequence[Request], listed: Sequence[Strategy], tell: Progress
) -> list[Measures]:
    """Their measures, with gain and regret from the first and the last of them."""
    runs: list[tuple[Strategy, list[Job]]] = []
    for strategy in listed:
        tell(f"simulating {strategy.name}")
        runs.append((strategy, Simulator(fleet, strategy).run(requests)))
    base_us, least_us = total_us(runs[0][1]), total_us(runs[-1][1])
    new = without_hit(requests)
    new_us = _mean_us(runs[0][1], new)
    each = fleet.profile.default_bytes_per_token
    found = []
    for strategy, jobs in runs:
        plain = measured(strategy.name, jobs, slo_us=fleet.slo_ttft_us, bytes_per_token=each)
        spent_us = total_us(jobs)
        oracle_gain_us = base_us - least_us
        found.append(
            structs.replace(
                plain,
                gain_s=(base_us - spent_us) / 1e6,
                regret=(spent_us - least_us) / oracle_gain_us if oracle_gain_us > 0 else None,
                no_hit_slowdown=_mean_us(jobs, new) / new_us - 1 if new_us else None,
            )
        )
    return found


def recover(fleet: Fleet, requests: Sequence[Request], tell: Progress) -> list[Recovery]:
    """Profiles that are wrong by WRONG, with calibration and without it; against the oracle."""
    oracle = Simulator(fleet, Oracle()).run(requests)
    always = Simulator(fleet, RecomputeAlways()).run(requests)
    found = []
    for what, profile in _wrong(fleet.profile):
        listed: tuple[Planned, ...] = (Planned(profile), Calibrated(profile, "calibrated"))
        for strategy in listed:
            tell(f"simulating {what}, {'calibrated' if strategy is listed[1] else 'as it is'}")
            jobs = Simulator(fleet, strategy).run(requests)
            late_us = [_total_after(run, SETTLED) for run in (jobs, oracle, always)]
            regret = (late_us[0] - late_us[1]) / max(late_us[2] - late_us[1], 1.0)
            found.append(Recovery(what, strategy is listed[1], regret))
    return found


def _wrong(profile: Profile) -> list[tuple[str, Profile]]:
    """The profile with its prefill, or its transfers, too slow or too quick."""
    found = []
    for word, factor in (("slow", WRONG), ("quick", 1 / WRONG)):
        prefill = profile.prefill
        told = structs.replace(
            prefill,
            schedule_us=prefill.schedule_us * factor,
            per_token_us=prefill.per_token_us * factor,
            per_pair_us=prefill.per_pair_us * factor,
        )
        found.append((f"prefill too {word}", structs.replace(profile, prefill=told)))
        paths = tuple(
            structs.replace(
                path, latency_us=path.latency_us * factor, bytes_per_us=path.bytes_per_us / factor
            )
            for path in profile.paths
        )
        found.append((f"transfers too {word}", structs.replace(profile, paths=paths)))
    return found


def _total_after(jobs: Sequence[Job], number: int) -> float:
    return sum(ttft_us(job) for job in jobs if job.request.number >= number)


def _best(
    fleet: Fleet, requests: Sequence[Request], grid: Sequence[Strategy], tell: Progress
) -> Strategy:
    """Of a grid the one with the least mean time to the first token."""
    tell(f"tuning {len(grid)} of {grid[0].name.partition(' (')[0]}")
    return min(grid, key=lambda one: total_us(Simulator(fleet, one).run(requests)))


def _mean_us(jobs: Sequence[Job], numbers: set[int]) -> float:
    times = [ttft_us(job) for job in jobs if job.request.number in numbers]
    return sum(times) / len(times) if times else 0.0
