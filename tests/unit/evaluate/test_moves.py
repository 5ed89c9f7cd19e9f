"""Moves ahead of a turn: they help the turn that they are for, and no request waits for one."""

from collections.abc import Callable
from typing import Any

import pytest
from msgspec import structs

from app.contract.enums import TierKind
from app.evaluate.moves import Ahead
from app.evaluate.requests import Request
from app.evaluate.simulator import Choice, Job, Simulator
from app.evaluate.strategies import Blind
from app.evaluate.turns import Turns
from tests.unit.evaluate.test_simulator import FLEET, request

# Large enough that a move of two blocks is within its part of the device.
WIDE = structs.replace(FLEET, device_tokens=6_400)
BLOCKS = (1, 2)
MOVE_US = 50 + 200_000 / 1_000


class Mover(Blind):
    """Computes at the first engine, and moves the state to the second one as it is told."""

    name = "mover"

    def __init__(self, *choices: Choice, at_us: float, deadline_us: float) -> None:
        self._choices = iter(choices)
        self._at_us, self._deadline_us = at_us, deadline_us

    def choose(self, _request: Request, _world: Simulator) -> Choice:
        return next(self._choices)

    def answered(self, job: Job, _world: Simulator) -> float | None:
        return self._at_us if job.request.number == 0 else None

    def ahead(self, _job: Job, _world: Simulator) -> Ahead | None:
        return Ahead(1, (0, TierKind.DEVICE), BLOCKS, self._deadline_us)


def simulated(
    requests: list[Request], *choices: Choice, at_us: float = 20_000, deadline_us: float = 90_000
) -> Simulator:
    world = Simulator(WIDE, Mover(*choices, at_us=at_us, deadline_us=deadline_us))
    world.run(requests)
    return world


def counts(world: Simulator) -> tuple[int, int, int, int]:
    found = world.moves.counts
    return found.begun, found.used, found.cancelled, found.demoted


def test_a_move_in_time_spares_the_transfer() -> None:
    world = simulated([request(0, 0, *BLOCKS), request(1, 50_000, 1, 2, 3)], Choice(0), Choice(1))
    assert counts(world) == (1, 1, 0, 0)
    assert world.done[1].reused_tokens == 200
    assert world.done[1].first_token_us == 50_000 + 100 + 1_000
    assert world.moves.counts.moved_bytes == 200_000


def test_a_turn_that_comes_first_cancels_the_move_and_does_not_wait() -> None:
    soon_us = 20_000 + MOVE_US / 2
    world = simulated([request(0, 0, *BLOCKS), request(1, soon_us, 1, 2, 3)], Choice(0), Choice(1))
    assert counts(world) == (1, 0, 1, 0)
    assert world.done[1].first_token_us == soon_us + 100 + 3_000
    assert world.moves.counts.moved_bytes == pytest.approx(100_000)


def test_a_move_gives_way_to_a_requests_transfer() -> None:
    brought = Choice(1, (0, TierKind.DEVICE), 100)
    requests = [request(0, 0, *BLOCKS), request(1, 20_100, 1, 7)]
    world = simulated(requests, Choice(0), brought)
    assert counts(world) == (1, 0, 1, 0)
    assert world.done[1].ready_us == 20_100 + 50 + 100 + 7


def test_a_move_does_not_begin_on_a_busy_link() -> None:
    brought = Choice(1, (0, TierKind.DEVICE), 100)
    requests = [request(0, 0, *BLOCKS), request(1, 19_999, 1, 7)]
    assert counts(simulated(requests, Choice(0), brought)) == (0, 0, 0, 0)


def test_what_nobody_used_by_the_deadline_leaves_the_device() -> None:
    requests = [request(0, 0, *BLOCKS), request(1, 95_000, 9)]
    world = simulated(requests, Choice(0), Choice(0))
    assert counts(world) == (1, 0, 0, 1)
    assert world.caches.prefixes(BLOCKS) == [[2, 0], [2, 2]]


def test_a_move_that_would_end_too_late_is_dropped() -> None:
    world = simulated([request(0, 0, *BLOCKS)], Choice(0), deadline_us=20_001)
    assert counts(world) == (1, 0, 1, 0)
    assert world.caches.prefixes(BLOCKS) == [[2, 0], [2, 0]]


def test_a_move_beyond_its_part_of_the_device_is_refused() -> None:
    mover = Mover(Choice(0), at_us=20_000, deadline_us=90_000)
    world = Simulator(structs.replace(FLEET, device_tokens=1_000), mover)
    world.run([request(0, 0, *BLOCKS)])
    assert world.moves.counts.refused == 1
    assert world.moves.counts.begun == 0


@pytest.mark.parametrize("next_us", [20_000.0, 20_050.0, 20_249.0, 20_251.0, 60_000.0, 99_000.0])
def test_no_turn_is_later_for_a_move(next_us: float) -> None:
    def run(strategy: Callable[..., Any], **told: float) -> float:
        requests = [request(0, 0, *BLOCKS), request(1, next_us, 1, 2, 3)]
        world = Simulator(WIDE, strategy(Choice(0), Choice(1), **told))
        return world.run(requests)[1].first_token_us

    moved = run(Mover, at_us=20_000, deadline_us=90_000)
    assert moved <= run(Mover, at_us=1e9, deadline_us=2e9)


def test_turns_are_expected_as_they_have_come() -> None:
    turns, now_us, found = Turns(), 0.0, None
    for number in range(40):
        found = turns.answered(number, now_us)
        assert turns.waits(number)
        turns.asked(number, now_us + 100)
        assert not turns.waits(number)
        now_us += 1_000
    assert found is not None
    assert (found.early_us, found.late_us) == (now_us - 900, now_us - 900)
    assert found.p_use == pytest.approx(0.65 / 0.75)
