"""Whole runs: nothing is lost on the way, parts that are left out are left out, and a strategy that
is bad on purpose is found to be.
"""

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import structs

from app.clock import seeded_random
from app.evaluate.fleet import Fleet, load_fleet
from app.evaluate.matrix import Cell, cells, fleet_of, names, rows, run_matrix
from app.evaluate.measures import total_us
from app.evaluate.requests import Request, draw
from app.evaluate.run import ablate, compare, evaluate
from app.evaluate.simulator import Choice, Simulator
from app.evaluate.strategies import Blind, Oracle, Planned, RecomputeAlways
from app.evaluate.variants import Assembled, Parts
from app.evaluate.workloads import Arrivals, Kind, Workload, make
from app.policy.text import parse_document

FLEETS = Path(__file__).resolve().parents[3] / "fleets"
TIERS = load_fleet(parse_document((FLEETS / "tiers.yaml").read_bytes()))
DEFAULT = load_fleet(parse_document((FLEETS / "default.yaml").read_bytes()))


def drawn(fleet: Fleet, workload: Workload, count: int = 60) -> list[Request]:
    chance = seeded_random(5)
    return draw(fleet, make(workload, count, fleet.block_tokens, chance), chance)


def silent(_message: str) -> None:
    """Nobody reads it."""


TURNS = Workload(Kind.MULTI_TURN, 16_384, 0.7, Arrivals.POISSON)


@settings(max_examples=8, deadline=None)
@given(
    st.sampled_from(list(Kind)),
    st.sampled_from(list(Arrivals)),
    st.sampled_from([0.0, 0.5, 1.0]),
    st.booleans(),
)
def test_every_request_ends_once_and_tokens_add_up(
    kind: Kind, arrivals: Arrivals, reuse: float, small: bool
) -> None:
    tiers = [structs.replace(one, tokens=60_000) for one in TIERS.tiers]
    tight = structs.replace(TIERS, device_tokens=40_000, host_tokens=40_000, tiers=tuple(tiers))
    fleet = tight if small else TIERS
    requests = drawn(fleet, Workload(kind, 8_192, reuse, arrivals), 40)
    for strategy in (Oracle(), Planned(fleet.profile), everything(fleet)):
        world = Simulator(fleet, strategy)
        jobs = world.run(requests)
        assert sorted(job.request.number for job in jobs) == list(range(len(requests)))
        for job in jobs:
            assert 0 <= job.reused_tokens < job.request.tokens
            assert job.request.arrival_us <= job.ready_us <= job.first_token_us
        assert all(engine.decoding_tokens == 0 for engine in world.engines)
        assert not any(engine.waiting or engine.serving for engine in world.engines)
        nodes = fleet.nodes()
        assert all(not world.links.get(one, two).in_flight for one in nodes for two in nodes)
        most = [fleet.device_tokens, fleet.host_tokens, *(one.tokens for one in fleet.tiers)]
        for tokens, held in zip(most, world.caches.held_blocks(), strict=True):
            assert max(held) * fleet.block_tokens <= tokens


def everything(fleet: Fleet) -> Assembled:
    return Assembled(fleet.profile, "all", Parts(), fleet.slo_ttft_us)


def test_deeper_tiers_are_read_from() -> None:
    fleet = structs.replace(TIERS, device_tokens=30_000, host_tokens=30_000)
    requests = drawn(fleet, Workload(Kind.SHARED_PROMPT, 8_192, 0.75, Arrivals.POISSON), 150)
    jobs = Simulator(fleet, Planned(fleet.profile)).run(requests)
    tiers = {job.choice.source[1].value for job in jobs if job.choice.source is not None}
    assert tiers & {"local_ssd", "remote_shared"}


class OneForAll(Blind):
    """Every request to the first engine, and nothing reused."""

    name = "one for all"

    def choose(self, _request: Request, _world: Simulator) -> Choice:
        return Choice(0, reuse=False)


def test_a_bad_strategy_is_found_to_be_one() -> None:
    requests = drawn(DEFAULT, TURNS)
    listed = [RecomputeAlways(), OneForAll(), Planned(DEFAULT.profile), Oracle()]
    always, bad, ours, best = [one.measures for one in compare(DEFAULT, requests, listed, silent)]
    assert bad.ttft_p95_ms > always.ttft_p95_ms > ours.ttft_p95_ms
    assert bad.gain_s is not None
    assert bad.gain_s < 0
    assert bad.regret is not None
    assert bad.regret > 1
    assert best.regret == 0


def test_what_the_fleet_adds_is_used_by_all_strategies() -> None:
    found = [one.measures for one in evaluate(TIERS, drawn(TIERS, TURNS), silent)]
    ours = next(one for one in found if one.strategy == "NexusKV")
    assert all(ours.ttft_mean_ms <= one.ttft_mean_ms * 1.01 for one in found[:-1])


def test_each_part_can_be_left_out() -> None:
    found = ablate(DEFAULT, drawn(DEFAULT, TURNS, 40), silent)
    assert [one.strategy for one in found[:7]] == [
        "all parts",
        *(f"without {part}" for part in Parts._fields),
    ]
    assert [one.strategy for one in found[7:]] == [
        f"{one.strategy}, wrong profile" for one in found[:7]
    ]


def test_without_interference_links_look_idle_and_decodes_are_free() -> None:
    left = Assembled(TIERS.profile, "x", Parts(interference=False), TIERS.slo_ttft_us)
    world = Simulator(TIERS, left)
    world.links.begin("node-00", "node-03")
    question = left.question(1_000, (), world)
    assert question.links.get("node-00", "node-03").in_flight == 0
    assert question.links.get("node-00", "node-03").bytes_per_us == 2_500
    assert all(one.profile.decode_slowdown == 0 for one in question.targets)
    assert world.links.get("node-00", "node-03").in_flight == 1


def test_without_overlap_a_queue_hides_no_transfer() -> None:
    requests = drawn(DEFAULT, Workload(Kind.SHARED_PROMPT, 32_768, 0.5, Arrivals.BURST))
    times = [
        total_us(Simulator(DEFAULT, Assembled(DEFAULT.profile, "x", parts, 1e12)).run(requests))
        for parts in (Parts(calibration=False), Parts(calibration=False, overlap=False))
    ]
    assert times[0] != times[1]


def test_with_admission_no_more_is_brought_than_has_room() -> None:
    left = everything(DEFAULT)
    world = Simulator(DEFAULT, left)
    world.engines[0].decoding_tokens = DEFAULT.device_tokens - 100
    assert left.target(world, 0, 0).free_tokens == 100
    world.engines[0].decoding_tokens = DEFAULT.device_tokens + 100
    assert left.target(world, 0, 0).free_tokens == 0
    assert left.bounds.max_queue_us == DEFAULT.slo_ttft_us


def test_the_matrix_covers_what_it_says() -> None:
    listed = [names(one) for one in cells()]
    assert {one["context_tokens"] for one in listed} == {8_192, 32_768, 131_072, 1_048_576}
    assert {one["reuse"] for one in listed} == {0.0, 0.25, 0.5, 0.75, 1.0}
    for name in ("kind", "arrivals", "links", "profile"):
        assert len({one[name] for one in listed}) == {
            "kind": 5, "arrivals": 3, "links": 2, "profile": 3,
        }[name]  # fmt: skip
    assert len(set(cells())) == len(cells())
    long = fleet_of(DEFAULT, Cell(Workload(Kind.RAG, 1_048_576, 0.5, Arrivals.BURST), "slow"))
    assert long.device_tokens >= 4 * 1_048_576
    assert 1_048_576 / long.block_tokens <= 256


def test_some_cells_of_the_matrix() -> None:
    listed = [one for one in cells() if one.workload.context_tokens == 32_768][::8]
    gaps_ms = [0.0, 5.0, 1.0]
    found = run_matrix(DEFAULT, listed, seeded_random, gaps_ms, silent, requests=40)
    again = run_matrix(DEFAULT, listed, seeded_random, gaps_ms, silent, requests=40)
    assert [rows(one) for one in found] == [rows(one) for one in again]
    for one in found:
        assert one.measures[0].strategy == "recompute always"
        assert one.measures[-1].strategy == "oracle"
        assert all(row["evidence"] == "simulated" for row in rows(one))


@pytest.mark.parametrize("kind", list(Kind))
@pytest.mark.parametrize("arrivals", list(Arrivals))
def test_requests_are_made_as_asked(kind: Kind, arrivals: Arrivals) -> None:
    workload = Workload(kind, 32_768, 0.5, arrivals)
    lines = make(workload, 200, 512, seeded_random(1), [0.0, 3.0])
    assert [at for at, *_ in lines] == sorted(at for at, *_ in lines)
    parents: dict[int, int] = {}
    for _, tokens, output, ids in lines:
        assert tokens == 512 * len(ids)
        assert output > 0
        for before, one in zip([-1, *ids], ids, strict=False):
            assert parents.setdefault(one, before) == before
    whole = sum(len(ids) for *_, ids in lines)
    shared = 1 - len(parents) / whole
    # A question of a corpus of documents shares only what stands first.
    least = {Kind.CONTROL: 0.0, Kind.RAG: 0.1}.get(kind, 0.3)
    assert least <= shared <= (0.0 if kind is Kind.CONTROL else 0.6)
