"""The API, the source or the target killed at each step of a materialize, a prefetch and a store,
and started again.

Each kill finds several tenants under way, every one held at a step of its own. After it nothing is
left pinned, filling, charged or running; whoever repeats a request is answered as documented; and
what is on record as done is there.
"""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from tests.fixtures.database import TestServer, drop_or_fail
from tests.process.waiting import until
from tests.transfers.conftest import NOTHING
from tests.transfers.killing import BIG_BYTES, NODE, Import, Move, Request, Rig, running_rig
from tests.worker.rig import MIB

AWAY = "preferred_backend_unavailable"


@pytest.fixture(scope="module")
def killing(test_server: TestServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Rig]:
    name, url = test_server.clone()
    with running_rig(url, tmp_path_factory.mktemp("killed")) as rig:
        yield rig
    drop_or_fail(test_server, name)


@pytest.fixture
def rig(killing: Rig) -> Iterator[Rig]:
    """After each kill, nothing is held on any worker that lives."""
    yield killing
    for worker in killing.fleet.workers.values():
        until(
            lambda worker=worker: not worker.leaks(),
            lambda worker=worker: f"{worker.node} lets go; {worker.leaks()}",
        )


def hold(
    rig: Rig,
    *,
    carry: list[Request],
    close: list[Request],
    charge: list[Request],
    plan: list[Move],
    begin: list[Move] | None = None,
) -> None:
    """Returns with all of them held: who carries, who has but to close, who is to be charged, who
    plans, who begins.

    A statement waits for a lock for five seconds only, so everything slow comes before.
    """
    for one in carry:
        one.carrying(MIB if len(one.story.data) > MIB else 0)
    for one in close:
        one.carrying(0)
    for one in carry:
        one.wait_carrying()
    for one in close:
        one.to_close()
    for one in charge:
        one.to_charge()
    locked = [*charge, *(one.to_open() for one in begin or [])]
    for one in locked:
        one.start()
    for one in locked:
        one.wait_locked()
    rig.control.hold_answers()
    for one in plan:
        one.start()
    rig.control.wait_answers(len(plan))
    for one in close:
        one.let_bytes_pass()
    for one in close:
        one.wait_locked()


def test_the_api_is_killed_at_every_step(rig: Rig) -> None:
    fleet = rig.fleet
    stored, moved, reserving = (rig.importing() for _ in range(3))
    charged, filling = rig.importing(), rig.importing(BIG_BYTES)
    moves = {
        step: rig.moving(action, BIG_BYTES if step.startswith("carried") else 4096)
        for step, action in {
            "opened": "prefetch",
            "planned by one": "prefetch",
            "planned by the other": "store",
            "charged": "store",
            "carried by one": "prefetch",
            "carried by the other": "store",
            "closed by one": "prefetch",
            "closed by the other": "store",
            "answered": "store",
        }.items()
    }
    stored.never_read()
    moves["answered"].never_read()
    hold(
        rig,
        carry=[charged, filling, moves["carried by one"], moves["carried by the other"]],
        close=[moved, moves["closed by one"], moves["closed by the other"]],
        charge=[reserving, moves["charged"]],
        plan=[moves["planned by one"], moves["planned by the other"]],
        begin=[moves["opened"]],
    )
    fleet.service.kill()
    assert [one.state() for one in (charged, filling)] == ["filling", "filling"]
    assert [one.state() for one in (reserving, moved)] == ["open", "complete"]
    for one in (charged, filling, moves["carried by one"], moves["closed by one"]):
        assert one.charges() == ["payload", "transfer"]
    for one in (reserving, moves["opened"], moves["planned by one"], moves["charged"]):
        assert one.charges() == []
    imports = [stored, moved, reserving, charged, filling]
    assert all(one.broken_off() for one in (*imports, *moves.values()))
    # Nobody is left who could cancel: the target ends them by their own deadline.
    for one in (charged, filling):
        until(lambda one=one: one.state() == "open", "the sink is given up")
    until(lambda: not fleet.b.leaks(), lambda: f"the target lets go; {fleet.b.leaks()}")
    for one in (*imports, *moves.values()):
        one.go_on()
    rig.control.let_go(drop=True)
    fleet.restart_api()
    fleet.wait_heard()
    # Nothing is said to be done that is not.
    statuses = {step: one.status() for step, one in moves.items()}
    assert statuses["opened"] is None
    assert {status for step, status in statuses.items() if "planned" in step} == {"initiated"}
    assert statuses["answered"] == "completed"
    assert {statuses[step] for step in statuses if step.split()[0] in STARTED} == {"in_flight"}
    there = {step for step, one in moves.items() if one.arrived()}
    assert there == {"closed by one", "closed by the other", "answered"}
    # What a runtime took back meanwhile is not filled any more, although its bytes had arrived.
    taken_back = filling
    taken_back.story.target.finish(taken_back.sink, "discard")
    for one in imports:
        if one is taken_back:
            one.sink = one.story.sink()
        assert_imported(one, replayed=one is stored)
    for step, one in moves.items():
        assert_moved(one, replayed=step == "answered")


STARTED = ("charged", "carried", "closed")


def assert_imported(one: Import, *, replayed: bool) -> None:
    answer = one.again()
    one.assert_whole(answer)
    one.assert_left_alone()
    if replayed:
        newest = one.story.decisions(1, kind="materialize", outcome="replayed")[0]
        assert newest["decision_id"] == answer.headers["x-nexuskv-decision-id"]
        return
    # Also where the bytes were there before: whose sink it was, is who answered with it.
    found = one.story.history(answer, ["completed", "discarded"])
    assert found["outcome"] == "materialized"
    assert found["outcomes"][0]["bytes_transferred"] == len(one.story.data)


def assert_moved(one: Move, *, replayed: bool = False) -> None:
    view = one.again()
    one.assert_whole(view)
    if replayed:
        one.story.decisions(1, kind=one.action, outcome="replayed")
    else:
        assert one.outcome(view, ["completed"]) == "transferred"
    one.assert_left_alone()


def test_the_source_is_killed_at_every_step(rig: Rig) -> None:
    fleet = rig.fleet
    moved, reserving, filling = rig.importing(), rig.importing(), rig.importing(BIG_BYTES)
    closing = [rig.moving("prefetch"), rig.moving("store")]
    planning = [rig.moving("prefetch"), rig.moving("store")]
    charging = rig.moving("prefetch")
    carrying = [rig.moving("prefetch", BIG_BYTES), rig.moving("store", BIG_BYTES)]
    hold(
        rig,
        carry=[filling, *carrying],
        close=[moved, *closing],
        charge=[reserving, charging],
        plan=planning,
    )
    fleet.workers[NODE].kill()
    rig.control.let_go(drop=True)
    for one in (moved, reserving, filling, *closing, charging, *carrying):
        one.go_on()
    # What had arrived was verified, wherever it came from.
    moved.assert_whole(moved.answer())
    for one in closing:
        one.assert_whole(one.answer().json())
    for one in (reserving, filling):
        answer = one.answer()
        assert answer.status_code == 503, answer.text
        found = one.story.history(answer, ["fell_back"])
        assert found["fallback_reason"] == AWAY
        assert (one.state(), one.story.charged(), one.claims()) == ("open", NOTHING, [])
    begun = [*planning, charging, *carrying]
    for one in begun:
        assert_failed(one)
    fleet.wait_silent(NODE)
    for one in begun:
        view = one.post().json()
        assert (view["status"], view["fallback_reason"]) == ("fallback", "cache_miss")
    for one in (reserving, filling):
        assert one.story.lookup().headers["x-nexuskv-match"] == "unavailable"
        assert one.post().status_code == 503
    rig.start_source()
    for one in (reserving, filling, *begun):
        # Another process: what the first one held is not there.
        assert one.story.lookup().headers["x-nexuskv-match"] == "unavailable"
        one.story.ready()
        until(one.story.hit, "the state is a hit again")
    for one in (reserving, filling):
        one.assert_whole(one.again())
    for one in begun:
        assert_moved(one)
    for one in (moved, reserving, filling, *closing):
        one.assert_left_alone()


def assert_failed(one: Move) -> None:
    answer = one.answer()
    assert answer.status_code == 200, answer.text
    view = answer.json()
    assert (view["status"], view["fallback_reason"]) == ("failed", AWAY), answer.text
    assert (view["locator"], view["bytes_transferred"], view["copy_present"]) == (None, 0, None)
    assert one.outcome(view, ["fell_back"]) == "unavailable"
    assert (one.status(), one.story.charged()) == ("failed", NOTHING)


def test_the_target_is_killed_at_every_step(rig: Rig) -> None:
    fleet = rig.fleet
    done, copied = rig.importing(), rig.moving("store")
    moved, reserving, filling = rig.importing(), rig.importing(), rig.importing(BIG_BYTES)
    closing = [rig.moving("prefetch"), rig.moving("store")]
    planning = [rig.moving("prefetch"), rig.moving("store")]
    charging = rig.moving("store")
    carrying = [rig.moving("prefetch", BIG_BYTES), rig.moving("store", BIG_BYTES)]
    done.assert_whole(receipt := done.post())
    copied.assert_whole(copy := copied.post().json())
    hold(
        rig,
        carry=[filling, *carrying],
        close=[moved, *closing],
        charge=[reserving, charging],
        plan=planning,
    )
    fleet.b.kill()
    rig.control.let_go()
    for one in (moved, reserving, filling, *closing, charging, *carrying):
        one.go_on()
    # It held the bytes when it said so; that it is dead now, its runtime knows.
    assert moved.answer().json()["evidence"]["physical_transfer_verified"] is True
    for one in closing:
        assert one.answer().json()["status"] == "completed"
    for one in (reserving, filling):
        answer = one.answer()
        assert answer.status_code == 503, answer.text
        found = one.story.history(answer, ["fell_back"])
        assert found["fallback_reason"] == AWAY
        assert (one.story.charged(), one.claims()) == (NOTHING, [])
    begun = [*planning, charging, *carrying]
    for one in begun:
        assert_failed(one)
    # Whether a copy is still there, nobody can say now.
    assert copied.post().json() == copy | {"copy_present": None}
    assert moved.story.charged() == moved.one
    until(lambda: not fleet.workers[NODE].leaks(), "the source lets go")
    fleet.start_worker("node-b")
    # It is another process: what the first one held is charged to nobody.
    for one in (done, copied, moved, *closing):
        until(lambda one=one: one.story.charged() == NOTHING, "the charges are given back")
    assert done.post().json() == receipt.json()
    assert done.story.charged() == NOTHING
    for one in (reserving, filling):
        refused = one.post()
        assert refused.status_code == 503
        assert "sink_missing" in refused.json()["error"]["message"]
        one.sink = one.story.sink()
        one.assert_whole(one.again())
        one.assert_left_alone()
    # Whoever wants a copy there gets it, also one that had been there.
    for one in (copied, *closing, *begun):
        assert_moved(one)


def test_a_transfer_that_nobody_ended_is_taken_over_once(rig: Rig) -> None:
    """Its caller asks again, several times at once, while the first attempt is still held."""
    one = rig.moving("prefetch").carrying(0)
    one.wait_carrying()
    with ThreadPoolExecutor(4) as pool:
        views = [answer.json() for answer in pool.map(lambda _: one.post(), range(4))]
    assert {view["status"] for view in views} == {"in_flight"}
    one.go_on()
    one.assert_whole(one.answer().json())
    one.assert_left_alone()


def to_receipt(rig: Rig) -> Import:
    """The bytes are in the sink, and its receipt waits for a lock."""
    one = rig.importing().carrying(0)
    one.to_close()
    one.let_bytes_pass()
    one.wait_locked()
    return one


def test_a_runtime_that_is_faster_than_the_receipt_is_heard(rig: Rig) -> None:
    one = to_receipt(rig)
    one.story.target.finish(one.sink, "consume")
    rig.fleet.wait_beats("node-b", 2)
    one.go_on()
    answer = one.answer()
    assert answer.status_code == 200, answer.text
    one.story.history(answer, ["completed", "consumed"])
    until(lambda: one.story.charged() == NOTHING, lambda: f"charges end; {one.story.charged()}")


def test_what_the_runtime_said_while_the_api_was_dead_is_heard(rig: Rig) -> None:
    one = to_receipt(rig)
    rig.fleet.service.kill()
    assert one.broken_off()
    one.story.target.finish(one.sink, "consume")
    assert one.lock is not None
    one.lock.wait_given_up()
    one.go_on()
    rig.fleet.restart_api()
    rig.fleet.wait_heard()
    one.story.history(one.again(), ["completed", "consumed"])
    until(lambda: one.story.charged() == NOTHING, lambda: f"charges end; {one.story.charged()}")
