"""`/v1/transfers`: a state's payload comes to another worker once, or the answer says why not."""

import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import httpx
import pytest

from app.control.keys import Scope
from app.transfer.frames import trailer
from app.transfer.wire import PayloadFacts
from tests.process.waiting import until
from tests.transfers.announced import FalseSource
from tests.transfers.conftest import NOTHING
from tests.transfers.fleet import Fleet, Story
from tests.transfers.scripted import ScriptedTarget
from tests.worker.evil import stating
from tests.worker.rig import checksum

MOVED = "nexuskv_worker_received_bytes_total"


class Moves:
    """What one tenant asks of `/v1/transfers`; copies at the target are deleted at the end."""

    def __init__(self, story: Story) -> None:
        self.story = story
        self.client = story.fleet.client

    def post(self, transfer_id: str = "move-1", **changes) -> httpx.Response:
        body = {
            "transfer_id": transfer_id,
            "action": "prefetch",
            "tenant": self.story.tenant,
            "entry_id": "state-1",
            "target_worker": "node-b",
            **changes,
        }
        return self.client.post("/v1/transfers", json=body)

    def done(self, transfer_id: str = "move-1", **changes) -> dict:
        answer = self.post(transfer_id, **changes)
        assert answer.status_code == 200, answer.text
        return answer.json()

    def get(self, transfer_id: str = "move-1", tenant: str | None = None) -> httpx.Response:
        params = {"tenant": tenant or self.story.tenant}
        return self.client.get(f"/v1/transfers/{transfer_id}", params=params)

    def cancel(self, transfer_id: str = "move-1") -> httpx.Response:
        params = {"tenant": self.story.tenant}
        return self.client.delete(f"/v1/transfers/{transfer_id}", params=params)

    def decision(self, view: dict, outcomes: list[str]) -> dict:
        headers = {"x-nexuskv-decision-id": view["decision_id"]}
        return self.story.history(httpx.Response(200, headers=headers), outcomes)

    def moved_bytes(self) -> float:
        return self.story.target.metrics()[MOVED]


@pytest.fixture
def moves(story: Story) -> Iterator[Moves]:
    yield Moves(story)
    story.target.delete(story.payload_id)


@pytest.fixture
def false_source(fleet: Fleet, story: Story) -> Iterator[FalseSource]:
    """A worker that says it has the story's payload; the state is registered again, to be there."""
    with FalseSource(fleet, "node-false", story.data) as source:
        story.register(generation=2, locator=f"node://node-false/state/{story.payload_id}")
        yield source


def problem(answer: httpx.Response) -> tuple[int, str]:
    return answer.status_code, answer.json()["code"]


@pytest.mark.parametrize("action", ["prefetch", "store"])
def test_the_bytes_are_at_the_target(moves: Moves, action: str) -> None:
    story = moves.story
    view = moves.done(action=action)
    assert story.target.get(story.payload_id).content == story.data
    assert (view["status"], view["bytes_transferred"]) == ("completed", len(story.data))
    assert view["locator"] == f"node://node-b/state/{story.payload_id}"
    assert (view["backend"], view["degraded"]) == ("nexuskv.worker.baseline_transport", False)
    assert (view["fallback_reason"], view["rejected"]) == (None, [])
    assert (view["result"]["requested_kind"], view["result"]["executed_kind"]) == (action, action)
    assert view["copy_present"] is True
    # What is stored is what happened; nobody looks again for it.
    assert moves.get().json() == view | {"copy_present": None}
    found = moves.decision(view, ["completed"])
    assert (found["kind"], found["outcome"], found["entry_id"]) == (
        action,
        "transferred",
        "state-1",
    )
    assert found["path"][-2:] == ["materialized", "observed"]
    (completed,) = found["outcomes"]
    assert (completed["physical"], completed["bytes_transferred"]) == (True, len(story.data))
    # The copy is charged for until its worker has it no more.
    assert story.charged() == {"payload_bytes": len(story.data), "entries": 1, "transfers": 0}
    story.target.delete(story.payload_id)
    until(lambda: story.charged() == NOTHING, "the copy's charge is given back")


def test_the_same_id_again_moves_nothing_and_another_body_is_refused(moves: Moves) -> None:
    first = moves.done()
    moved = moves.moved_bytes()
    assert moves.done() == first
    assert moves.moved_bytes() == moved
    for other in ({"action": "store"}, {"payload_id": "other"}, {"target_worker": "node-a"}):
        assert problem(moves.post(**other)) == (409, "transfer_conflict")
    assert moves.get().json() == first | {"copy_present": None}
    assert moves.story.charged()["entries"] == 1
    kinds = {(one["kind"], one["outcome"]) for one in moves.story.decisions(5)}
    assert {("prefetch", "transferred"), ("prefetch", "replayed"), ("store", "rejected")} <= kinds


@pytest.mark.parametrize("how", ["deleted", "replaced"])
def test_a_completed_transfer_whose_copy_is_gone_is_carried_out_anew(
    moves: Moves, how: str
) -> None:
    story, first = moves.story, moves.done()
    if how == "deleted":
        assert story.target.delete(story.payload_id).status_code == 200
    else:
        assert story.target.put(story.payload_id, bytes(len(story.data))).status_code == 200
    assert moves.get().json()["status"] == "completed"
    moved = moves.moved_bytes()
    # One of them brings it, whoever comes meanwhile is told so.
    with ThreadPoolExecutor(4) as pool:
        answers = list(pool.map(lambda _: moves.post(), range(4)))
    assert {answer.status_code for answer in answers} <= {200, 202}
    again = moves.done()
    assert (again["status"], again["copy_present"]) == ("completed", True)
    assert again["decision_id"] != first["decision_id"]
    assert moves.moved_bytes() - moved == len(story.data)
    assert story.target.get(story.payload_id).content == story.data
    assert story.charged() == {"payload_bytes": len(story.data), "entries": 1, "transfers": 0}
    # Each attempt keeps what came of it.
    for view in (first, again):
        assert moves.decision(view, ["completed"])["outcome"] == "transferred"


def test_a_copy_that_cannot_be_brought_again_is_not_said_to_be_there(moves: Moves) -> None:
    story = moves.story
    moves.done()
    story.target.delete(story.payload_id)
    story.source.delete(story.payload_id)
    view = moves.done()
    assert (view["fallback_reason"], view["copy_present"]) == ("cache_miss", False)
    assert (view["locator"], view["bytes_transferred"]) == (None, 0)
    until(lambda: story.charged() == NOTHING, "the copy's charge is given back")
    story.ready()
    view = moves.done()
    assert (view["status"], view["copy_present"]) == ("completed", True)


def test_a_copy_whose_worker_cannot_be_asked_is_neither_there_nor_gone(moves: Moves) -> None:
    story = moves.story
    with ScriptedTarget(story.fleet) as target:
        held = checksum(story.data)
        target.on_order = lambda call: call.say(call.completed(checksum=held))
        first = moves.done(target_worker=target.name)
        assert (first["status"], first["copy_present"]) == ("completed", True)
        facts = PayloadFacts(story.payload_id, story.tenant, len(story.data), held)
        for say, seen in (
            (lambda call: call.raw(b""), None),
            (lambda call: call.say(facts), True),
        ):
            target.on_sink = say
            assert moves.done(target_worker=target.name) == first | {"copy_present": seen}
        assert len(target.orders) == 1


def test_what_cannot_be_tried_at_all(moves: Moves, fleet: Fleet) -> None:
    story = moves.story
    assert problem(moves.post(entry_id="state-9")) == (404, "not_found")
    assert problem(moves.get()) == (404, "not_found")
    assert problem(moves.cancel()) == (404, "not_found")
    moves.done()
    assert problem(moves.get(tenant="tenant-elsewhere")) == (404, "not_found")
    # Each sees its own only, and only with the scope.
    foreign = fleet.service.key(Scope.TRANSFERS_WRITE, tenants=("tenant-elsewhere",))
    for key, status, code in (
        (foreign, 403, "tenant_forbidden"),
        (story.key(Scope.STATES_WRITE, Scope.BRIDGE), 403, "forbidden"),
        (story.key(Scope.TRANSFERS_WRITE), 200, None),
    ):
        with fleet.service.client(key) as client:
            body = json.loads(moves.post().request.content)
            path, params = "/v1/transfers/move-1", {"tenant": story.tenant}
            answers = (
                client.post("/v1/transfers", json=body),
                client.get(path, params=params),
                client.delete(path, params=params),
            )
        for answer in answers:
            assert answer.status_code == status, answer.text
            assert answer.json().get("code") == code


def test_tenants_share_ids_and_nothing_else(moves: Moves, fleet: Fleet) -> None:
    mine, other = moves.story, fleet.story("tenant-beside", payload_id=moves.story.payload_id)
    other.ready()
    moves.done()
    view = Moves(other).done()
    assert view["status"] == "completed"
    assert mine.target.get(mine.payload_id).content == mine.data
    assert other.target.get(mine.payload_id).content == other.data != mine.data
    other.target.delete(mine.payload_id)
    mine.target.delete(mine.payload_id)
    # Told once nobody has the id any more, and for everybody.
    until(lambda: other.charged() == NOTHING, "the other tenant's charge is given back")


def test_a_copy_may_have_another_name_as_long_as_any(moves: Moves) -> None:
    name = "p" * 255
    view = moves.done(payload_id=name)
    assert view["locator"] == f"node://node-b/state/{name}"
    assert moves.story.target.get(name).content == moves.story.data
    moves.story.target.delete(name)


def test_a_payload_that_was_never_there(moves: Moves) -> None:
    moves.story.register(generation=2, locator="node://node-a/state/never-uploaded")
    view = moves.done()
    assert (view["status"], view["fallback_reason"]) == ("missing", "cache_miss")
    assert (view["locator"], view["bytes_transferred"]) == (None, 0)
    found = moves.decision(view, ["fell_back"])
    assert (found["outcome"], found["fallback_reason"]) == ("unavailable", "cache_miss")
    assert found["path"] == ["described", "skipped", "observed"]
    # Nothing was used up: with the payload there the same transfer is tried anew.
    moves.story.source.put("never-uploaded", moves.story.data)
    assert moves.done()["status"] == "completed"
    moves.story.target.delete("never-uploaded")


def test_workers_that_are_away(moves: Moves, fleet: Fleet) -> None:
    view = moves.done(target_worker="node-elsewhere")
    assert (view["status"], view["fallback_reason"]) == ("fallback", "no_transfer_path")
    with FalseSource(fleet, "node-gone", b"") as away:
        away.fall_silent()
        fleet.wait_silent("node-gone")
        view = moves.done("move-2", target_worker="node-gone")
        assert (view["status"], view["fallback_reason"]) == (
            "fallback",
            "preferred_backend_unavailable",
        )
        assert view["rejected"] == [
            {
                "registration": f"node-gone/{backend}",
                "reason": "preferred_backend_unavailable",
                "detail": "is not available",
            }
            for backend in ("baseline_transport", "staged_copy")
        ]
        found = moves.decision(view, ["fell_back"])
        assert [one["reason"] for one in found["excluded"]] == ["preferred_backend_unavailable"] * 2
        # A state on a silent worker is out of reach, whatever the target.
        moves.story.register(generation=2, locator="node://node-gone/state/p")
        view = moves.done("move-3")
        assert (view["status"], view["fallback_reason"]) == ("fallback", "cache_miss")
    assert moves.story.charged() == NOTHING


def test_a_wanted_backend_that_nobody_has_is_replaced_and_it_says_so(moves: Moves) -> None:
    view = moves.done(backend="rdma")
    assert (view["status"], view["degraded"]) == ("completed", True)
    assert view["backend"] == "nexuskv.worker.baseline_transport"
    assert view["result"]["transfer_session"]["request"]["degraded_from"] == "rdma"
    other = moves.done("move-2", backend="staged_copy")
    assert (other["backend"], other["degraded"]) == ("nexuskv.worker.staged_copy", False)


def test_a_failed_transfer_is_tried_anew(moves: Moves, false_source: FalseSource) -> None:
    data = moves.story.data
    wrong = bytes(len(data))
    false_source.follow(
        lambda connection: connection.sendall(stating(data) + wrong + trailer("0" * 32))
    )
    view = moves.done()
    assert (view["status"], view["fallback_reason"]) == ("failed", "cache_miss")
    assert view["detail"].startswith("checksum_mismatch")
    assert view["result"]["final_disposition"] == "skip"
    assert moves.story.target.get(moves.story.payload_id).status_code == 404
    assert moves.story.charged() == NOTHING
    false_source.be_honest()
    assert moves.done()["status"] == "completed"
    assert moves.story.target.get(moves.story.payload_id).content == data


def test_who_waits_for_a_cancelled_transfer_is_told(
    moves: Moves, false_source: FalseSource
) -> None:
    false_source.hang()
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(moves.post)
        assert false_source.reached.wait(10)
        assert moves.get().json()["status"] == "in_flight"
        told = moves.cancel()
        view = waiting.result().json()
    assert (told.status_code, told.json()["status"]) in ((202, "in_flight"), (200, "cancelled"))
    assert (view["status"], view["fallback_reason"]) == (
        "cancelled",
        "preferred_backend_unavailable",
    )
    assert moves.story.charged() == NOTHING
    # One that ended is answered as it is, and may be asked for again.
    assert (moves.cancel().status_code, moves.cancel().json()) == (200, view)
    false_source.be_honest()
    assert moves.done()["status"] == "completed"
    assert moves.cancel().json()["status"] == "completed"


def test_a_transfer_cancelled_before_it_was_ordered_is_never_ordered(
    moves: Moves, false_source: FalseSource
) -> None:
    false_source.open.clear()
    moved = moves.moved_bytes()
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(moves.post)
        assert false_source.asked.wait(10)
        told = moves.cancel()
        assert (told.status_code, told.json()["status"]) == (200, "cancelled")
        false_source.open.set()
        assert waiting.result().json()["status"] == "cancelled"
    assert moves.moved_bytes() == moved
    assert moves.done()["status"] == "completed"


def test_racing_requests_of_one_id_move_once(moves: Moves, false_source: FalseSource) -> None:
    false_source.open.clear()
    moved = moves.moved_bytes()
    with ThreadPoolExecutor(8) as pool:
        first = pool.submit(moves.post)
        assert false_source.asked.wait(10)
        others = [answer.result() for answer in [pool.submit(moves.post) for _ in range(4)]]
        assert {(one.status_code, one.json()["status"]) for one in others} == {(202, "initiated")}
        false_source.open.set()
        late = [pool.submit(moves.post) for _ in range(3)]
        assert {answer.result().status_code for answer in late} <= {200, 202}
    view = first.result().json()
    assert (view["status"], moves.done()) == ("completed", view)
    assert moves.moved_bytes() - moved == len(moves.story.data)
    assert moves.story.charged() == {
        "payload_bytes": len(moves.story.data),
        "entries": 1,
        "transfers": 0,
    }


def test_racing_transfers_of_one_payload_charge_for_one_copy(moves: Moves) -> None:
    for attempt in range(3):
        with ThreadPoolExecutor(8) as pool:
            views = list(pool.map(moves.done, [f"move-{attempt}-{n}" for n in range(8)]))
        assert {view["status"] for view in views} == {"completed"}
        assert moves.story.charged() == {
            "payload_bytes": len(moves.story.data),
            "entries": 1,
            "transfers": 0,
        }
        moves.story.target.delete(moves.story.payload_id)
        until(lambda: moves.story.charged() == NOTHING, "the copy's charge is given back")


def test_a_source_that_never_sends_is_given_up_at_the_deadline(
    moves: Moves, false_source: FalseSource
) -> None:
    false_source.hang()
    view = moves.done()
    assert (view["status"], view["fallback_reason"]) == ("failed", "preferred_backend_unavailable")
    assert view["detail"].startswith("deadline: ")
    assert moves.story.charged() == NOTHING
