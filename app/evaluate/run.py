"""An evaluation: every strategy on the same fleet and trace, the baselines at their best."""

from collections.abc import Callable, Sequence
from typing import Final, NamedTuple

from msgspec import structs

from app.evaluate.fleet import Fleet
from app.evaluate.measures import (
    Measures,
    measured,
    tenants_of,
    total_us,
    ttft_us,
    without_hit,
)
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
# Where the oracle gains less than this part, regret is noise over noise.
LEAST_GAIN: Final = 0.01


class Run(NamedTuple):
    """What one strategy made of the trace, in the order of the first tokens; and what it brought
    ahead of its use."""

    strategy: Strategy
    jobs: list[Job]
    ahead_bytes: float


class Recovery(NamedTuple):
    """Regret after SETTLED requests, as a part of the oracle's gain, of a wrong profile."""

    wrong: str
    calibrated: bool
    regret: float


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
    runs = simulate(fleet, requests, listed, tell)
    return measures(fleet, requests, runs)


def simulate(
    fleet: Fleet, requests: Sequence[Request], listed: Sequence[Strategy], tell: Progress
) -> list[Run]:
    """One run of each strategy."""
    runs = []
    for strategy in listed:
        tell(f"simulating {strategy.name}")
        world = Simulator(fleet, strategy)
        runs.append(Run(strategy, world.run(requests), world.ahead_bytes))
    return runs


def measures(fleet: Fleet, requests: Sequence[Request], runs: Sequence[Run]) -> list[Measures]:
    """One row a run, with gain and regret from the first and the last of them."""
    base_us, least_us = total_us(runs[0].jobs), total_us(runs[-1].jobs)
    tenants, alone_us = tenants_of(requests), _alone_us(fleet, requests)
    new = without_hit(requests)
    new_us = _mean_us(runs[0].jobs, new)
    each = fleet.profile.default_bytes_per_token
    found = []
    for strategy, jobs, ahead_bytes in runs:
        plain = measured(
            strategy.name,
            jobs,
            slo_us=fleet.slo_ttft_us,
            bytes_per_token=each,
            tenants=tenants,
            alone_us=alone_us,
        )
        spent_us = total_us(jobs)
        oracle_gain_us = base_us - least_us
        found.append(
            structs.replace(
                plain,
                gain_s=(base_us - spent_us) / 1e6,
                regret=(spent_us - least_us) / oracle_gain_us
                if oracle_gain_us > LEAST_GAIN * base_us
                else None,
                no_hit_slowdown=_mean_us(jobs, new) / new_us - 1 if new_us else None,
                ahead_tb=ahead_bytes / 1e12,
            )
        )
    return found


def recover(fleet: Fleet, requests: Sequence[Request], tell: Progress) -> list[Recovery]:
    """Profiles that are wrong by WRONG, with calibration and without it; against the oracle."""
    oracle = Simulator(fleet, Oracle()).run(requests)
    always = Simulator(fleet, RecomputeAlways()).run(requests)
    found = []
    for what, profile in wrong_profiles(fleet.profile):
        listed: tuple[Planned, ...] = (Planned(profile), Calibrated(profile, "calibrated"))
        for strategy in listed:
            tell(f"simulating {what}, {'calibrated' if strategy is listed[1] else 'as it is'}")
            jobs = Simulator(fleet, strategy).run(requests)
            late_us = [_total_after(run, SETTLED) for run in (jobs, oracle, always)]
            regret = (late_us[0] - late_us[1]) / max(late_us[2] - late_us[1], 1.0)
            found.append(Recovery(what, strategy is listed[1], regret))
    return found


def wrong_profiles(profile: Profile) -> list[tuple[str, Profile]]:
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


def _alone_us(fleet: Fleet, requests: Sequence[Request]) -> list[float]:
    """By a request's number: its prefill with nothing else there, and nothing reused."""
    prefill = fleet.profile.prefill
    found = [1.0] * (max((one.number for one in requests), default=-1) + 1)
    for one in requests:
        found[one.number] = prefill.schedule_us + prefill.recompute_us(one.tokens, 0)
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
