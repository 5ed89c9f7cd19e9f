"""The API, the source or the target killed at each step of a materialize, and started again.

Each kill finds several tenants under way, every one held at a step of its own: by a row that is
locked in Postgres, by bytes that the source does not send on, or by an answer that nobody reads.
"""

import json
import socket
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

import httpx
import pytest

from tests.fixtures.database import TestServer, drop_or_fail
from tests.process.waiting import until
from tests.transfers.conftest import NOTHING
from tests.transfers.fleet import Fleet, Story
from tests.transfers.holding import Hold, Postgres, Relay, RowLock
from tests.transfers.test_physical import assert_physical
from tests.worker.rig import MIB

NODE = "node-r"
# More than the sockets between source and target hold.
BIG_BYTES = 12 * MIB
_CLAIMS = "SELECT import_id, status FROM option_claim WHERE tenant = $1"
_pool = ThreadPoolExecutor(16)


@dataclass
class Rig:
    """A fleet whose payloads lie on `node-r`, behind a relay."""

    fleet: Fleet
    relay: Relay
    postgres: Postgres
    story_number: int = 0
    locks: list[RowLock] = field(default_factory=list)

    def begin(self, payload_bytes: int = 4096) -> "Import":
        self.story_number += 1
        tenant = f"killed-{self.story_number}"
        story = self.fleet.story(tenant, payload_bytes=payload_bytes, node=NODE).ready()
        return Import(self, story, story.option(), story.sink())

    def locked(self, lock: RowLock) -> RowLock:
        self.locks.append(lock.take())
        return lock

    def start_source(self) -> None:
        self.fleet.start_behind(self.relay, NODE)


@dataclass
class Import:
    """One option, one sink, and the request that brings the one into the other."""

    rig: Rig
    story: Story
    option: dict[str, Any]
    sink: str
    hold: Hold | None = None
    lock: RowLock | None = None
    asked: Future[httpx.Response] | None = None
    unread: socket.socket | None = None

    def post(self) -> httpx.Response:
        return self.story.materialize(self.option, self.sink)

    def start(self) -> None:
        self.asked = _pool.submit(self.post)

    def answer(self) -> httpx.Response:
        assert self.asked is not None
        return self.asked.result(30)

    def hold_at_charge(self, waiting: int) -> "Import":
        """The reservation waits for the tenant's row: nothing is committed, nothing ordered."""
        self.lock = self.rig.locked(self.rig.postgres.quota_of(self.story.tenant))
        self.start()
        self.rig.postgres.wait_for_waiting(waiting)
        return self

    def hold_bytes(self, after_bytes: int) -> "Import":
        """It is charged, and the target waits for the rest of the bytes."""
        self.hold = self.rig.relay.hold(self.story.payload_id, after_bytes)
        self.start()
        self.hold.wait_reached()
        return self

    def hold_at_consume(self, waiting: int) -> "Import":
        """The bytes are in the sink; the receipt is not stored."""
        self.hold_bytes(0)
        assert self.hold is not None
        self.lock = self.rig.locked(self.rig.postgres.claims_of(self.story.tenant))
        self.hold.go_on.set()
        until(lambda: self.state() == "complete", "the bytes are there")
        self.rig.postgres.wait_for_waiting(waiting)
        return self

    def never_read(self) -> "Import":
        """The receipt is stored; whoever asked for it has not read the answer."""
        url = httpx.URL(self.rig.fleet.service.url)
        body = json.dumps(self.story.body(self.option, self.sink)).encode()
        head = (
            f"POST /locus/v1/materialize HTTP/1.1\r\nhost: {url.host}\r\n"
            f"authorization: Bearer {self.rig.fleet.service.admin_key}\r\n"
            f"content-type: application/json\r\ncontent-length: {len(body)}\r\n\r\n"
        )
        self.unread = socket.create_connection((url.host, url.port))
        self.unread.sendall(head.encode() + body)
        until(lambda: self.claims() == [("import-1", "consumed")], "the receipt is stored")
        return self

    def state(self) -> str:
        state: str = self.story.target.sink_facts(self.sink)["state"]
        return state

    def claims(self) -> list[tuple[Any, ...]]:
        return self.rig.postgres.fetch(_CLAIMS, self.story.tenant)

    def go_on(self) -> None:
        if self.lock is not None:
            self.lock.let_go()
        if self.hold is not None:
            self.hold.go_on.set()
        if self.unread is not None:
            self.unread.close()

    def again(self) -> httpx.Response:
        """The same import until it succeeds; before that, 503 and nothing else."""
        refused: list[httpx.Response] = []

        def done() -> httpx.Response | None:
            answer = self.post()
            if answer.status_code == 200:
                return answer
            assert answer.status_code == 503, answer.text
            refused.append(answer)
            return None

        found = until(done, f"the import succeeds; {[one.text for one in refused[-1:]]}")
        assert found is not None
        return found

    def assert_whole(self, answer: httpx.Response) -> None:
        """One physical receipt for one option, charged once."""
        assert_physical(self.story, answer, self.sink)
        assert self.claims() == [("import-1", "consumed")]
        charged = {"payload_bytes": len(self.story.data), "entries": 1, "transfers": 0}
        assert self.story.charged() == charged

    def assert_left_alone(self) -> None:
        """Nothing stays charged once the sink is gone."""
        self.story.target.finish(self.sink, "discard")
        until(lambda: self.story.charged() == NOTHING, f"charges end; {self.story.charged()}")


@pytest.fixture(scope="module")
def killing(test_server: TestServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Rig]:
    name, url = test_server.clone()
    fleet = Fleet(url, tmp_path_factory.mktemp("killed"), dram_bytes=64 * MIB)
    relay = Relay()
    rig = Rig(fleet, relay, Postgres(url))
    rig.start_source()
    yield rig
    for lock in rig.locks:
        lock.let_go()
    relay.close()
    fleet.close()
    drop_or_fail(test_server, name)


@pytest.fixture
def rig(killing: Rig) -> Iterator[Rig]:
    """After each kill, nothing is held on any worker that lives."""
    yield killing
    for worker in killing.fleet.workers.values():
        until(lambda worker=worker: not worker.leaks(), f"{worker.node} lets go; {worker.leaks()}")


def test_the_api_is_killed_at_every_step(rig: Rig) -> None:
    fleet = rig.fleet
    begun = {
        "stored": rig.begin().never_read(),
        "moved": rig.begin().hold_at_consume(1),
        "reserving": rig.begin().hold_at_charge(2),
        "charged": rig.begin(BIG_BYTES).hold_bytes(0),
        "moving": rig.begin(BIG_BYTES).hold_bytes(MIB),
    }
    for name in ("charged", "moving"):
        one = begun[name]
        charged = {"payload_bytes": BIG_BYTES, "entries": 1, "transfers": 1}
        assert (one.state(), one.story.charged()) == ("filling", charged), name
    assert begun["reserving"].state() == "open"
    fleet.service.kill()
    for one in begun.values():
        assert one.asked is None or isinstance(one.asked.exception(30), httpx.TransportError)
    # Nobody is left who could cancel: the target ends them by their own deadline.
    for name in ("charged", "moving"):
        until(lambda name=name: begun[name].state() == "open", f"{name} is given up")
    assert not fleet.b.leaks()
    for one in begun.values():
        one.go_on()
    fleet.restart_api()
    fleet.wait_heard()
    for name, one in begun.items():
        answer = one.again()
        one.assert_whole(answer)
        one.assert_left_alone()
        if name == "stored":
            newest = one.story.decisions(1, kind="materialize", outcome="replayed")[0]
            assert newest["decision_id"] == answer.headers["x-nexuskv-decision-id"]
            continue
        # Also where the bytes were there before: whose sink it was, is who answered with it.
        found = one.story.history(answer, ["completed", "discarded"])
        assert found["outcome"] == "materialized", name
        assert found["outcomes"][0]["bytes_transferred"] == len(one.story.data)


def test_the_source_is_killed_at_every_step(rig: Rig) -> None:
    fleet = rig.fleet
    moved = rig.begin().hold_at_consume(1)
    begun = [rig.begin().hold_at_charge(2), rig.begin(BIG_BYTES).hold_bytes(MIB)]
    fleet.workers[NODE].kill()
    for one in [moved, *begun]:
        one.go_on()
    # What had arrived was verified, wherever it came from.
    moved.assert_whole(moved.answer())
    for one in begun:
        answer = one.answer()
        assert answer.status_code == 503, answer.text
        found = one.story.history(answer, ["fell_back"])
        assert found["fallback_reason"] == "preferred_backend_unavailable"
        assert (one.state(), one.story.charged(), one.claims()) == ("open", NOTHING, [])
    fleet.wait_silent(NODE)
    for one in begun:
        assert one.story.hit() is None
        assert one.story.lookup().headers["x-nexuskv-match"] == "unavailable"
        assert one.post().status_code == 503
    rig.start_source()
    for one in begun:
        # Another process: what the first one held is not there.
        assert one.story.lookup().headers["x-nexuskv-match"] == "unavailable"
        one.story.ready()
        until(one.story.hit, "the state is a hit again")
        one.assert_whole(one.again())
    for one in [moved, *begun]:
        one.assert_left_alone()


def test_the_target_is_killed_at_every_step(rig: Rig) -> None:
    fleet = rig.fleet
    done, moved = rig.begin(), rig.begin()
    done.assert_whole(receipt := done.post())
    copy = done.story.fleet.client.post(
        "/v1/transfers",
        json={
            "transfer_id": "copy",
            "action": "store",
            "tenant": done.story.tenant,
            "entry_id": "state-1",
            "target_worker": "node-b",
        },
    )
    assert copy.json()["status"] == "completed", copy.text
    assert done.story.charged()["entries"] == 2
    moved.hold_at_consume(1)
    begun = [rig.begin().hold_at_charge(2), rig.begin(BIG_BYTES).hold_bytes(MIB)]
    fleet.b.kill()
    for one in [moved, *begun]:
        one.go_on()
    # It held the bytes when it said so; that it is dead now, its runtime knows.
    assert moved.answer().json()["evidence"]["physical_transfer_verified"] is True
    for one in begun:
        answer = one.answer()
        assert answer.status_code == 503, answer.text
        found = one.story.history(answer, ["fell_back"])
        assert found["fallback_reason"] == "preferred_backend_unavailable"
        assert (one.story.charged(), one.claims()) == (NOTHING, [])
    assert moved.story.charged()["entries"] == 1
    until(lambda: not fleet.workers[NODE].leaks(), "the source lets go")
    fleet.start_worker("node-b")
    # It is another process: what the first one held is charged to nobody.
    for one in (done, moved):
        until(lambda one=one: one.story.charged() == NOTHING, "the charges are given back")
    assert done.post().json() == receipt.json()
    assert done.story.charged() == NOTHING
    for one in begun:
        refused = one.post()
        assert refused.status_code == 503
        assert "sink_missing" in refused.json()["error"]["message"]
        one.sink = one.story.sink()
        one.assert_whole(one.again())
        one.assert_left_alone()
