"""An evaluation: every strategy on the same fleet and trace, the baselines at their best."""

from collections.abc import Callable, Sequence
from typing import Final, NamedTuple

from msgspec import structs

from app.evaluate.fleet import Fleet
from app.evaluate.measures import Measures, measured, total_us, ttft_us, without_hit
from app.evaluate.requests import Request
from app.evaluate.simulator import Job, Simulator, Strategy
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
from app.evaluate.variants import Assembled, Parts, variants
from app.planner.profile import Profile
from app.planner.question import CostBounds

Progress = Callable[[str], None]
# By what factor a profile is wrong, and after how many requests it must be right again.
WRONG: Final = 4.0
SETTLED: Final = 500
PREFETCHING: Final = "NexusKV with prefetch"
_NOTABLE: Final = 0.01


class Recovery(NamedTuple):
    """Regret after SETTLED requests, as a part of the oracle's gain, of a wrong profile."""

    wrong: str
    calibrated: bool
    regret: float


class Result(NamedTuple):
    """What one strategy came to, and every request of it."""

    measures: Measures
    jobs: list[Job]


def evaluate(fleet: Fleet, requests: Sequence[Request], tell: Progress) -> list[Result]:
    """One a strategy; the baselines with knobs are tuned on this very trace, ours is not."""
    return compare(fleet, requests, strategies(fleet, requests, tell), tell)


def strategies(fleet: Fleet, requests: Sequence[Request], tell: Progress) -> list[Strategy]:
    """What is compared: the first is the one that gains are against, the last the oracle."""
    profile = fleet.profile
    return [
        *baselines(fleet, requests, tell),
        Planned(profile),
        Planned(profile, CostBounds(deviations=0.0), "NexusKV without uncertainty"),
        prefetching(fleet),
        Oracle(),
    ]


def prefetching(fleet: Fleet) -> Strategy:
    """The planner as it is, and moves ahead of the next turn."""
    parts = Parts(calibration=False, admission=False)
    return Assembled(fleet.profile, PREFETCHING, parts, fleet.slo_ttft_us)


def baselines(fleet: Fleet, requests: Sequence[Request], tell: Progress) -> list[Strategy]:
    """The others, those with knobs at their best on these requests."""
    return [
        RecomputeAlways(),
        EngineLocal(),
        HitDriven(),
        _best(fleet, requests, BLOCK_WEIGHTS, tell),
        _best(fleet, requests, TIER_WEIGHTS, tell),
    ]


def ablate(fleet: Fleet, requests: Sequence[Request], tell: Progress) -> list[Measures]:
    """NexusKV with all of its parts and without each of them, on the profile as it is and on one
    that makes reuse look WRONG squared times as good as it is."""
    profile = fleet.profile
    wrong = wrong_profile(profile, prefill=WRONG, transfers=1 / WRONG)
    listed: list[Strategy] = [
        RecomputeAlways(),
        *variants(profile, fleet.slo_ttft_us, ""),
        *variants(wrong, fleet.slo_ttft_us, ", wrong profile"),
        Oracle(),
    ]
    return [one.measures for one in compare(fleet, requests, listed, tell)][1:-1]


def compare(
    fleet: Fleet, requests: Sequence[Request], listed: Sequence[Strategy], tell: Progress
) -> list[Result]:
    """Their measures, with gain and regret from the first and the last of them."""
    runs: list[tuple[Strategy, Simulator]] = []
    for strategy in listed:
        tell(f"simulating {strategy.name}")
        world = Simulator(fleet, strategy)
        world.run(requests)
        runs.append((strategy, world))
    base_us, least_us = total_us(runs[0][1].done), total_us(runs[-1][1].done)
    oracle_gain_us = base_us - least_us
    # A part of next to nothing says nothing.
    notable = oracle_gain_us > _NOTABLE * base_us
    new = without_hit(requests, fleet.block_tokens)
    new_us = _mean_us(runs[0][1].done, new)
    found = []
    for strategy, world in runs:
        plain = measured(strategy.name, world.done, fleet, world.moves.counts)
        spent_us = total_us(world.done)
        told = structs.replace(
            plain,
            gain_s=(base_us - spent_us) / 1e6,
            regret=(spent_us - least_us) / oracle_gain_us if notable else None,
            no_hit_slowdown=_mean_us(world.done, new) / new_us - 1 if new_us else None,
        )
        found.append(Result(told, world.done))
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
        found += [
            (f"prefill too {word}", wrong_profile(profile, prefill=factor)),
            (f"transfers too {word}", wrong_profile(profile, transfers=factor)),
        ]
    return found


def wrong_profile(profile: Profile, *, prefill: float = 1.0, transfers: float = 1.0) -> Profile:
    """The profile with times so many times as long."""
    computing = profile.prefill
    return structs.replace(
        profile,
        prefill=structs.replace(
            computing,
            schedule_us=computing.schedule_us * prefill,
            per_token_us=computing.per_token_us * prefill,
            per_pair_us=computing.per_pair_us * prefill,
        ),
        paths=tuple(
            structs.replace(
                path,
                latency_us=path.latency_us * transfers,
                bytes_per_us=path.bytes_per_us / transfers,
            )
            for path in profile.paths
        ),
    )


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
