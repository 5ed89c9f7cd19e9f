"""`DELETE /v1/transfers/ID` at each point of a transfer, held there.

Whatever it answers is so: after `cancelled`, or 202, the transfer does not complete, whoever waits
for it is told, and no copy is left that the tenant is not charged for.
"""

from collections.abc import Iterator

import httpx
import pytest

from tests.fixtures.database import TestServer, drop_or_fail
from tests.process.waiting import until
from tests.transfers.conftest import NOTHING
from tests.transfers.killing import BIG_BYTES, Move, Rig, running_rig
from tests.worker.rig import MIB

AWAY = "preferred_backend_unavailable"
MOVED = "nexuskv_worker_received_bytes_total"
_EXPIRE = (
    "UPDATE transfer_session SET expires_at = now() - interval '1 minute' WHERE tenant = $1"
    " RETURNING tenant"
)


@pytest.fixture(scope="module")
def cancelling(test_server: TestServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Rig]:
    name, url = test_server.clone()
    with running_rig(url, tmp_path_factory.mktemp("cancelled")) as rig:
        yield rig
    drop_or_fail(test_server, name)


@pytest.fixture
def rig(cancelling: Rig) -> Iterator[Rig]:
    """After each test nothing is held on any worker."""
    yield cancelling
    for worker in cancelling.fleet.workers.values():
        until(
            lambda worker=worker: not worker.leaks(),
            lambda worker=worker: f"{worker.node} lets go; {worker.leaks()}",
        )


def told(answer: httpx.Response) -> tuple[int, str]:
    return answer.status_code, answer.json().get("status")


def moved_bytes(rig: Rig) -> float:
    return rig.fleet.b.metrics()[MOVED]


def planning(rig: Rig) -> Move:
    """Held between its begin and its route."""
    one = rig.moving("prefetch")
    rig.control.hold_answers()
    one.start()
    rig.control.wait_answers(1)
    return one


def assert_cancelled(one: Move, *, stays: bool = False) -> dict:
    """Whoever waited is told so, nothing is left but a copy of before, and it can be tried anew."""
    answer = one.answer()
    assert told(answer) == (200, "cancelled"), answer.text
    view = answer.json()
    assert (view["fallback_reason"], view["locator"], view["bytes_transferred"]) == (AWAY, None, 0)
    assert one.outcome(view, ["fell_back"]) == "unavailable"
    assert told(one.cancel()) == (200, "cancelled")
    assert one.arrived() == stays
    assert one.story.charged() == (one.one if stays else NOTHING)
    one.assert_whole(one.again())
    one.assert_left_alone()
    return view


def test_before_its_route(rig: Rig) -> None:
    one, moved = planning(rig), moved_bytes(rig)
    assert told(one.cancel()) == (200, "cancelled")
    rig.control.let_go()
    assert told(one.answer()) == (200, "cancelled")
    assert moved_bytes(rig) == moved
    assert_cancelled(one)


def test_after_its_route(rig: Rig) -> None:
    """The worker was told to stop what it had no order for."""
    one, moved = rig.moving("store").to_charge().start(), moved_bytes(rig)
    one.wait_locked()
    assert told(one.cancel()) == (202, "in_flight")
    one.go_on()
    assert told(one.answer()) == (200, "cancelled")
    assert moved_bytes(rig) == moved
    assert_cancelled(one)


@pytest.mark.parametrize("first", ["the route", "the end"])
def test_while_its_route_is_written(rig: Rig, first: str) -> None:
    """Both saw it without a route; who comes first decides how it ends, and it does."""
    one = planning(rig)
    one.to_wait_for(one.last_row())
    assert one.lock is not None
    if first == "the route":
        rig.control.let_go()
        one.lock.wait_queue(1)
        cancelled = one.start_cancel()
    else:
        cancelled = one.start_cancel()
        one.lock.wait_queue(1)
        rig.control.let_go()
    one.lock.wait_queue(2)
    one.go_on()
    assert told(cancelled.result()) in ((200, "cancelled"), (202, "in_flight"))
    assert_cancelled(one)


def test_while_bytes_move(rig: Rig) -> None:
    one = rig.moving("prefetch", BIG_BYTES).carrying(MIB)
    one.wait_carrying()
    assert told(one.cancel()) in ((200, "cancelled"), (202, "in_flight"))
    assert told(one.answer()) == (200, "cancelled")
    one.go_on()
    assert_cancelled(one)


def arriving(one: Move) -> Move:
    """Held with the first byte; what ends it can be written by nobody."""
    return one.carrying(0).to_close()


@pytest.mark.parametrize("expired", [False, True])
@pytest.mark.parametrize("copied", [False, True])
def test_when_its_bytes_arrived(rig: Rig, copied: bool, expired: bool) -> None:
    """The cancellation is written before its end, and the worker has nothing to stop any more.

    A copy that was there before stays; so does its charge.
    """
    one = rig.moving("store")
    if copied:
        body = one.body() | {"transfer_id": "move-0"}
        assert told(rig.fleet.client.post(one.path, json=body)) == (200, "completed")
    one.carrying(0).wait_carrying()
    if expired:
        assert rig.postgres.fetch(_EXPIRE, one.story.tenant)
    one.to_close()
    assert one.lock is not None
    cancelled = one.start_cancel()
    one.wait_locked()
    one.let_bytes_pass()
    one.lock.wait_queue(2)
    assert one.arrived()
    one.go_on()
    assert told(cancelled.result()) in ((200, "cancelled"), (202, "in_flight"))
    view = assert_cancelled(one, stays=copied)
    if not expired:
        assert view["detail"].endswith("it stays there" if copied else "it is deleted")


def test_when_its_bytes_arrived_and_the_target_is_gone(rig: Rig) -> None:
    """What cannot be deleted stays charged until its worker is heard without it."""
    one = rig.moving("prefetch")
    one.carrying(0).to_close()
    assert one.lock is not None
    cancelled = one.start_cancel()
    one.wait_locked()
    one.let_bytes_pass()
    one.lock.wait_queue(2)
    rig.fleet.b.kill()
    one.go_on()
    answer = one.answer()
    assert told(answer) == (200, "cancelled")
    assert answer.json()["detail"].endswith("it stays there")
    # It could not be told, or had nothing to be told any more.
    assert cancelled.result().status_code in (503, 200)
    assert one.story.charged() == one.one
    rig.fleet.start_worker("node-b")
    until(lambda: one.story.charged() == NOTHING, "the charge is given back")
    assert_cancelled(one)


def test_after_its_end_was_written(rig: Rig) -> None:
    """First or last in the queue: what completed stays so."""
    one = rig.moving("store")
    arriving(one).let_bytes_pass()
    assert one.lock is not None
    one.wait_locked()
    cancelled = one.start_cancel()
    one.lock.wait_queue(2)
    one.go_on()
    assert told(cancelled.result()) == (200, "completed")
    one.assert_whole(one.answer().json())
    assert told(one.cancel()) == (200, "completed")
    one.assert_left_alone()
