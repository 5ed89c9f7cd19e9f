"""The simulated fleet, from cases worked out by hand."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
import pytest
from msgspec import structs

from app.clock import seeded_random
from app.contract.enums import TierKind
from app.errors import NexusError
from app.evaluate.caches import Caches
from app.evaluate.fleet import Fleet, load_fleet
from app.evaluate.measures import measured, ttft_us, without_hit
from app.evaluate.simulator import Ahead, Choice, Job, Request, Simulator, draw
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


class Scripted:
    """Does what it was told, request by request."""

    name = "scripted"

    def __init__(self, *choices: Choice, ahead: Sequence[Ahead] = ()) -> None:
        self._choices = iter(choices)
        self._ahead = list(ahead)

    def choose(self, _request: Request, _world: Simulator) -> Choice:
        return next(self._choices)

    def observe(self, _job: Job) -> None:
        """It knows already."""

    def ahead(self, _job: Job, _world: Simulator) -> Sequence[Ahead]:
        return [self._ahead.pop(0)] if self._ahead else []


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
    assert caches.prefixes([1, 2, 3]) == ([2, 0], [2, 0])
    caches.add(0, [7, 8])
    assert caches.prefixes([1, 2, 3]) == ([0, 0], [2, 0])
    caches.add(0, [1, 2])
    caches.add(0, [5, 6])
    caches.add(0, [3, 4])
    assert caches.prefixes([1, 2]) == ([0, 0], [0, 0])
    assert caches.device_prefix(0, [3, 4, 9]) == 2


def test_what_is_brought_ahead_is_there_for_the_next_and_makes_nobody_wait() -> None:
    """300 tokens to the other engine: 50 us and 300 us, after the first was answered."""
    first, second = request(0, 0, 1, 2, 3), request(1, 50_000, 1, 2, 3)
    ahead = Ahead((0, TierKind.DEVICE), 1, (1, 2, 3), until_us=1e9)
    world = Simulator(FLEET, Scripted(Choice(0), Choice(1), ahead=[ahead]))
    jobs = world.run([first, second])
    assert (jobs[1].reused_tokens, ttft_us(jobs[1])) == (299, 110)
    assert world.ahead_bytes == 300 * 1_000


def test_what_would_come_too_late_is_not_begun() -> None:
    first, second = request(0, 0, 1, 2, 3), request(1, 50_000, 1, 2, 3)
    late = Ahead((0, TierKind.DEVICE), 1, (1, 2, 3), until_us=13_200)
    world = Simulator(FLEET, Scripted(Choice(0), Choice(1), ahead=[late]))
    jobs = world.run([first, second])
    assert (world.ahead_late, world.ahead_bytes, jobs[1].reused_tokens) == (1, 0.0, 0)


def test_tenants_that_wait_alike_are_treated_fairly() -> None:
    jobs = run([request(n, 20_000 * n, 10 * n, 10 * n + 1) for n in range(8)], *[Choice(0)] * 8)
    alone_us = [2_100.0] * 8
    alike = measured(
        "x", jobs, slo_us=1e9, bytes_per_token=1, tenants=[0, 1] * 4, alone_us=alone_us
    )
    assert alike.fairness == pytest.approx(1)
    # One tenant's requests come all at once, and wait for each other.
    at_once = run(
        [*(request(n, 0, 10 * n, 10 * n + 1) for n in range(4)),
         *(request(n, 90_000 * n, 10 * n, 10 * n + 1) for n in range(4, 8))],
        *[Choice(0)] * 8,
    )  # fmt: skip
    apart = measured(
        "x", at_once, slo_us=1e9, bytes_per_token=1, tenants=[0] * 4 + [1] * 4, alone_us=alone_us
    )
    assert apart.fairness == pytest.approx(3.5**2 / (2 * (2.5**2 + 1)))
    assert apart.worst_tenant_p95_ms == pytest.approx(4 * 2.1)


def test_arrivals_are_scaled_to_the_utilisation() -> None:
    trace = [(float(at), 1_000, 1, tuple(range(10))) for at in range(100)]
    requests = draw(FLEET, trace, seeded_random(1))
    work_us = 100 * (100 + 10 * 1_000)
    assert requests[-1].arrival_us == pytest.approx(work_us / (2 * 0.9))
    assert without_hit(requests) == {0}


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
