"""What is counted of transfers that plans have chosen, until they should be over."""

import pytest

from app.lifecycle import reservations
from app.lifecycle.reservations import Reservations
from app.planner.links import NO_LINKS, Link, Links
from tests.lifecycle.in_process import AheadClock


class StoppedClock(AheadClock):
    """Time that passes where a test says so."""

    def monotonic_us(self) -> int:
        return self.ahead_us


@pytest.fixture
def clock() -> StoppedClock:
    return StoppedClock()


def topology(*nodes: str) -> Links:
    known = {(one, two): Link(5.0, 100.0, 0, 4) for one in nodes for two in nodes if one != two}
    return Links(nodes, known)


def test_a_transfer_has_its_link_until_it_should_be_over(clock: StoppedClock) -> None:
    taken, known = Reservations(clock), topology("a", "b")
    assert taken.links(known).running == {}
    assert taken.take("t", "a", "b", 3_000_000)
    assert taken.take("t", "a", "b", 1_000_000)
    assert taken.take("u", "b", "a", 2_000_000)
    assert taken.links(known).running == {("a", "b"): 2, ("b", "a"): 1}
    assert (taken.running("t"), taken.running("u"), len(taken)) == (2, 1, 3)
    clock.advance(0.999_999)
    assert taken.running("t") == 2
    clock.advance(0.000_001)
    assert (taken.running("t"), taken.links(known).running[("a", "b")]) == (1, 1)
    clock.advance(2)
    assert (taken.links(known).running, len(taken)) == ({}, 0)
    assert (taken.running("t"), taken.running("u")) == (0, 0)
    # What the topology says is as it was.
    assert known.running == {}


def test_another_topology_has_what_runs(clock: StoppedClock) -> None:
    taken = Reservations(clock)
    before, after = topology("a", "b"), topology("b", "a", "c")
    taken.links(before)
    taken.take("t", "a", "b", 1_000_000)
    taken.take("t", "a", "elsewhere", 1_000_000)
    assert taken.links(after).running == {("a", "b"): 1}
    taken.take("t", "c", "b", 2_000_000)
    assert taken.links(after).running == {("a", "b"): 1, ("c", "b"): 1}
    assert taken.links(NO_LINKS).running == {}
    clock.advance(1)
    assert taken.links(after).running == {("c", "b"): 1}
    # Off the map, and the tenant's all the same.
    assert taken.running("t") == 1


def test_there_are_not_more_than_so_many(
    clock: StoppedClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reservations, "MAX_RESERVATIONS", 2)
    taken, known = Reservations(clock), topology("a", "b")
    taken.links(known)
    assert [taken.take("t", "a", "b", 1_000_000 * n) for n in (1, 2, 3)] == [True, True, False]
    assert (taken.refused, len(taken)) == (1, 2)
    assert taken.links(known).running == {("a", "b"): 2}
    clock.advance(1)
    assert taken.take("t", "a", "b", 1)
    assert taken.refused == 1
