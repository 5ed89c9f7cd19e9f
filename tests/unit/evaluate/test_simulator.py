"""The simulated fleet, from cases worked out by hand."""

from pathlib import Path
from typing import Any

import msgspec
import pytest
from msgspec import structs

from app.clock import seeded_random
from app.contract.enums import TierKind
from app.errors import NexusError
from app.evaluate.caches import Caches
from app.evaluate.fleet import Fleet, FleetLink, load_fleet
from app.evaluate.measures import ttft_us, without_hit
from app.evaluate.requests import Request, draw
from app.evaluate.simulator import Choice, Job, Simulator
from app.evaluate.strategies import Blind
from app.planner.profile import Path as PathOf
from app.policy.text import parse_document

ROOT = Path(__file__).resolve().parents[3]
PREFILL = {"schedule_us": 100, "per_token_us": 10, "per_pair_us": 0, "uncertainty": 0}
FLEET = load_fleet(
    {
        "schema_version": "nexuskv.fleet.v1",
        "name": "two",
        "source": "made up",
        "engines": 2,
        "device_tokens": 1_000,
        "host_tokens": 1_000,
        "block_tokens": 100,
        "decode_us_per_token": 1_000,
        "utilisation": 0.9,
        "slo_ttft_us": 10_000,
        "prefill_noise": 0,
        "transfer_noise": 0,
        "profile": {
            "schema_version": "nexuskv.cost_profile.v1",
            "name": "two",
            "source": "made up",
            "prefill": PREFILL,
            "restore_us": 7,
            "default_bytes_per_token": 1_000,
            "paths": [
                {"tier": "device", "remote": True, "latency_us": 50, "bytes_per_us": 1_000,
                 "uncertainty": 0},
                {"tier": "host_dram", "latency_us": 20, "bytes_per_us": 2_000, "uncertainty": 0},
            ],
        },
    }
)  # fmt: skip


class Scripted(Blind):
    """Does what it was told, request by request."""

    name = "scripted"

    def __init__(self, *choices: Choice) -> None:
        self._choices = iter(choices)

    def choose(self, _request: Request, _world: Simulator) -> Choice:
        return next(self._choices)


def request(number: int, at_us: float, *blocks: int, tokens: int = 0) -> Request:
    return Request(number, at_us, tokens or 100 * len(blocks), 10, blocks, 1.0, 1.0)


def run(requests: list[Request], *choices: Choice, **changes: Any) -> list[Job]:
    return Simulator(structs.replace(FLEET, **changes), Scripted(*choices)).run(requests)


def test_a_prefill_takes_what_the_profile_says_and_the_next_one_waits() -> None:
    jobs = run([request(0, 0, 1, 2), request(1, 500, 3)], Choice(0), Choice(0))
    assert [job.first_token_us for job in jobs] == [100 + 2_000, 2_100 + 100 + 1_000]
    assert ttft_us(jobs[1]) == 3_200 - 500


def test_what_an_engine_has_is_not_computed_again_but_the_last_token() -> None:
    jobs = run([request(0, 0, 1, 2), request(1, 9_000, 1, 2)], Choice(0), Choice(0))
    assert jobs[1].reused_tokens == 199
    assert ttft_us(jobs[1]) == 100 + 10
    again = run([request(0, 0, 1, 2), request(1, 9_000, 1, 2)], Choice(0), Choice(0, reuse=False))
    assert (again[1].reused_tokens, ttft_us(again[1])) == (0, 2_100)


def test_state_is_brought_from_another_device() -> None:
    """100 tokens of 1,000 bytes at 1,000 a microsecond, behind 50; restoring takes 7."""
    brought = Choice(1, (0, TierKind.DEVICE), 100)
    jobs = run([request(0, 0, 1), request(1, 9_000, 1, 2)], Choice(0), brought)
    assert jobs[1].moved_bytes == 100_000
    assert ttft_us(jobs[1]) == (50 + 100 + 7) + 100 + 1_000


@pytest.mark.parametrize(
    ("tier", "took_us"),
    # 100,000 bytes at 500, behind 30: memory is behind the link alone, an SSD the slower of both.
    [(TierKind.HOST_DRAM, 30 + 200 + 7), (TierKind.LOCAL_SSD, 10 + 1_000 + 7)],
)
def test_a_link_of_the_fleet_takes_the_place_of_a_path(tier: TierKind, took_us: float) -> None:
    link = FleetLink("node-00", "node-01", 30, 500, "made up")
    ssd = PathOf(TierKind.LOCAL_SSD, 10, 100, 0)
    profile = structs.replace(FLEET.profile, paths=(*FLEET.profile.paths, ssd))
    world = Simulator(structs.replace(FLEET, links=(link,), profile=profile), Scripted())
    assert world.transfer_us(request(0, 0, 1), Choice(1, (0, tier), 100), 100) == took_us


def test_engines_of_a_node_are_not_remote() -> None:
    """No path between devices of a node is known, and none to another node's memory is needed."""
    world = Simulator(structs.replace(FLEET, engines_per_node=2), Scripted())
    moved = request(0, 0, 1)
    assert world.transfer_us(moved, Choice(1, (0, TierKind.DEVICE), 100), 100) == float("inf")
    assert world.transfer_us(moved, Choice(1, (0, TierKind.HOST_DRAM), 100), 100) == 20 + 50 + 7


def test_transfers_on_a_link_share_it() -> None:
    requests = [request(0, 0, 1), request(1, 9_000, 1, 2), request(2, 9_000, 1, 3)]
    brought = Choice(1, (0, TierKind.DEVICE), 100)
    jobs = run(requests, Choice(0), brought, brought)
    # The second one gets half; both are computed one after the other.
    assert jobs[1].ready_us == 9_000 + 157
    assert jobs[2].ready_us == 9_000 + 50 + 200 + 7


def test_who_waits_for_state_lets_others_pass() -> None:
    requests = [request(0, 0, 1), request(1, 9_000, 1, 2), request(2, 9_000, 9)]
    jobs = run(requests, Choice(0), Choice(1, (0, TierKind.DEVICE), 100), Choice(1))
    assert [job.request.number for job in jobs] == [0, 2, 1]


def test_blocks_that_leave_a_device_go_to_memory_and_then_are_gone() -> None:
    caches = Caches(2, 2, 2)
    caches.add(0, [1, 2])
    assert caches.prefixes([1, 2, 3]) == [[2, 0], [2, 0]]
    caches.add(0, [7, 8])
    assert caches.prefixes([1, 2, 3]) == [[0, 0], [2, 0]]
    caches.add(0, [1, 2])
    caches.add(0, [5, 6])
    caches.add(0, [3, 4])
    assert caches.prefixes([1, 2]) == [[0, 0], [0, 0]]
    assert caches.device_prefix(0, [3, 4, 9]) == 2


def test_arrivals_are_scaled_to_the_utilisation() -> None:
    trace = [(float(at), 1_000, 1, tuple(range(10))) for at in range(100)]
    requests = draw(FLEET, trace, seeded_random(1))
    work_us = 100 * (100 + 10 * 1_000)
    assert requests[-1].arrival_us == pytest.approx(work_us / (2 * 0.9))
    assert without_hit(requests, 100) == {0}


def test_the_shipped_fleet_is_read_and_says_where_it_is_from() -> None:
    fleet = load_fleet(parse_document((ROOT / "fleets" / "default.yaml").read_bytes()))
    assert isinstance(fleet, Fleet)
    assert len(fleet.source) > 200


@pytest.mark.parametrize(
    "changes",
    [{"engines": 0}, {"utilisation": 0}, {"profile": {}}, {"colour": 1}, {"device_tokens": "many"}],
)
def test_a_fleet_that_is_none_is_refused(changes: dict[str, Any]) -> None:
    with pytest.raises(NexusError):
        load_fleet(msgspec.json.decode(msgspec.json.encode(FLEET)) | changes)
