"""Requests that are held at one step each, so that a process can be killed just there.

What holds them is a row that is locked in Postgres, an answer or bytes that a relay does not pass
on, or an answer that nobody reads. Nothing is guessed: each is waited for where it is held.
"""

import json
import socket
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

import httpx

from tests.process.waiting import until
from tests.transfers.conftest import NOTHING
from tests.transfers.fleet import Fleet, Story
from tests.transfers.holding import HOLD_S, Hold, Postgres, Relay, RowLock
from tests.transfers.test_physical import assert_physical
from tests.worker.rig import MIB

NODE = "node-r"
DEADLINE_S = 8.0
# More than the sockets between source and target hold.
BIG_BYTES = 12 * MIB
DONE = "completed"
_CLAIMS = "SELECT import_id, status FROM option_claim WHERE tenant = $1"
_CHARGES = "SELECT kind FROM quota_charge WHERE tenant = $1 ORDER BY kind"
_SESSIONS = "SELECT status FROM transfer_session WHERE tenant = $1"
_pool = ThreadPoolExecutor(24)


@dataclass
class Rig:
    """A fleet whose payloads lie on `node-r`, both ports of which are behind a relay."""

    fleet: Fleet
    data: Relay
    control: Relay
    postgres: Postgres
    stories: int = 0
    locks: list[RowLock] = field(default_factory=list)

    def start_source(self) -> None:
        self.fleet.start_behind(self.data, NODE, self.control)

    def story(self, payload_bytes: int) -> Story:
        self.stories += 1
        tenant = f"killed-{self.stories}"
        return self.fleet.story(tenant, payload_bytes=payload_bytes, node=NODE).ready()

    def importing(self, payload_bytes: int = 4096) -> "Import":
        story = self.story(payload_bytes)
        return Import(self, story, story.option(), story.sink())

    def moving(self, action: str, payload_bytes: int = 4096) -> "Move":
        return Move(self, self.story(payload_bytes), action)


@contextmanager
def running_rig(database_url: str, directory: Path) -> Iterator[Rig]:
    """What is held in it is not given up before the test goes on, however slow the machine is."""
    fleet = Fleet(database_url, directory, dram_bytes=64 * MIB, deadline_s=DEADLINE_S)
    rig = Rig(fleet, Relay(), Relay(), Postgres(database_url))
    rig.start_source()
    yield rig
    for lock in rig.locks:
        lock.let_go()
    rig.postgres.close()
    rig.data.close()
    rig.control.close()
    fleet.close()


class Request:
    """One request of one tenant, and what it is held by."""

    path = ""

    def __init__(self, rig: Rig, story: Story) -> None:
        self.rig = rig
        self.story = story
        self.hold: Hold | None = None
        self.lock: RowLock | None = None
        self.asked: Future[httpx.Response] | None = None
        self.unread: socket.socket | None = None

    @property
    def one(self) -> dict[str, int]:
        """What the tenant is charged for once it is done."""
        return {"payload_bytes": len(self.story.data), "entries": 1, "transfers": 0}

    def body(self) -> dict[str, Any]:
        raise NotImplementedError

    def arrived(self) -> bool:
        """Whether the bytes are where they are wanted."""
        raise NotImplementedError

    def ended(self) -> bool:
        """Whether it is stored that it succeeded."""
        raise NotImplementedError

    def last_row(self) -> RowLock:
        """What has to be written to end it."""
        raise NotImplementedError

    def post(self) -> httpx.Response:
        return self.story.fleet.client.post(self.path, json=self.body())

    def start(self) -> Self:
        self.asked = _pool.submit(self.post)
        return self

    def answer(self) -> httpx.Response:
        assert self.asked is not None
        return self.asked.result(HOLD_S)

    def broken_off(self) -> bool:
        """Whether its caller saw the connection end, or went away itself."""
        return self.asked is None or isinstance(self.asked.exception(HOLD_S), httpx.TransportError)

    def to_wait_for(self, lock: RowLock) -> Self:
        self.lock = lock.take()
        self.rig.locks.append(lock)
        return self

    def to_charge(self) -> Self:
        """The tenant's row is locked: nothing will be charged, nothing ordered."""
        return self.to_wait_for(self.rig.postgres.quota_of(self.story.tenant))

    def carrying(self, after_bytes: int) -> Self:
        """It is charged, and the target waits for the rest of the bytes."""
        self.hold = self.rig.data.hold(self.story.payload_id, after_bytes)
        return self.start()

    def to_close(self) -> Self:
        """What has to be written to end it is locked. Follows `carrying(0)`."""
        self.wait_carrying()
        return self.to_wait_for(self.last_row())

    def let_bytes_pass(self) -> None:
        assert self.hold is not None
        self.hold.go_on.set()

    def wait_carrying(self) -> None:
        assert self.hold is not None
        self.hold.wait_reached()

    def wait_locked(self) -> None:
        """Returns once it waits for the lock: it has done all that comes before."""
        assert self.lock is not None
        self.lock.wait_met()

    def never_read(self) -> Self:
        """It is done; whoever asked for it has not read the answer."""
        url = httpx.URL(self.rig.fleet.service.url)
        body = json.dumps(self.body()).encode()
        head = (
            f"POST {self.path} HTTP/1.1\r\nhost: {url.host}\r\n"
            f"authorization: Bearer {self.rig.fleet.service.admin_key}\r\n"
            f"content-type: application/json\r\ncontent-length: {len(body)}\r\n\r\n"
        )
        self.unread = socket.create_connection((url.host, url.port))
        self.unread.sendall(head.encode() + body)
        until(self.ended, "its end is stored", within_s=HOLD_S)
        return self

    def charges(self) -> list[str]:
        """What is charged for, as it is stored: also when there is no API to ask."""
        return [kind for (kind,) in self.rig.postgres.fetch(_CHARGES, self.story.tenant)]

    def go_on(self) -> None:
        if self.lock is not None:
            self.lock.let_go()
        if self.hold is not None:
            self.hold.go_on.set()
        if self.unread is not None:
            self.unread.close()


class Import(Request):
    """One option, one sink, and the request that brings the one into the other."""

    path = "/locus/v1/materialize"

    def __init__(self, rig: Rig, story: Story, option: dict[str, Any], sink: str) -> None:
        super().__init__(rig, story)
        self.option = option
        self.sink = sink

    def body(self) -> dict[str, Any]:
        return self.story.body(self.option, self.sink)

    def last_row(self) -> RowLock:
        return self.rig.postgres.claims_of(self.story.tenant)

    def state(self) -> str:
        state: str = self.story.target.sink_facts(self.sink)["state"]
        return state

    def arrived(self) -> bool:
        return self.state() == "complete"

    def claims(self) -> list[tuple[Any, ...]]:
        return self.rig.postgres.fetch(_CLAIMS, self.story.tenant)

    def ended(self) -> bool:
        return self.claims() == [("import-1", "consumed")]

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

        found = until(done, lambda: f"the import succeeds; {[one.text for one in refused[-1:]]}")
        assert found is not None
        return found

    def assert_whole(self, answer: httpx.Response) -> None:
        """One physical receipt for one option, charged once."""
        assert_physical(self.story, answer, self.sink)
        assert self.ended()
        assert self.story.charged() == self.one

    def assert_left_alone(self) -> None:
        """Nothing stays charged once the sink is gone."""
        self.story.target.finish(self.sink, "discard")
        until(
            lambda: self.story.charged() == NOTHING, lambda: f"charges end; {self.story.charged()}"
        )


class Move(Request):
    """One prefetch or store to `node-b`, under the name that the payload has."""

    path = "/v1/transfers"

    def __init__(self, rig: Rig, story: Story, action: str) -> None:
        super().__init__(rig, story)
        self.action = action

    def body(self) -> dict[str, Any]:
        return {
            "transfer_id": "move-1",
            "action": self.action,
            "tenant": self.story.tenant,
            "entry_id": "state-1",
            "target_worker": "node-b",
        }

    def to_open(self) -> Self:
        """Its session cannot be begun: nothing will be known of it."""
        return self.to_wait_for(self.rig.postgres.new_transfer_of(self.story.tenant))

    def last_row(self) -> RowLock:
        return self.rig.postgres.transfers_of(self.story.tenant)

    def cancel(self) -> httpx.Response:
        params = {"tenant": self.story.tenant}
        return self.story.fleet.client.delete("/v1/transfers/move-1", params=params)

    def start_cancel(self) -> Future[httpx.Response]:
        return _pool.submit(self.cancel)

    def arrived(self) -> bool:
        copy = self.story.target.get(self.story.payload_id)
        assert copy.status_code in (200, 404)
        return copy.status_code == 200 and copy.content == self.story.data

    def status(self) -> str | None:
        """As it is stored; None when nothing is."""
        rows = self.rig.postgres.fetch(_SESSIONS, self.story.tenant)
        return rows[0][0] if rows else None

    def ended(self) -> bool:
        return self.status() == DONE

    def again(self) -> dict[str, Any]:
        """The same request until it completed; before that, it runs, or says why it did not."""
        seen: list[dict[str, Any]] = []

        def done() -> dict[str, Any] | None:
            answer = self.post()
            assert answer.status_code in (200, 202), answer.text
            view: dict[str, Any] = answer.json()
            running = view["status"] in ("initiated", "in_flight")
            assert running == (answer.status_code == 202), answer.text
            seen.append(view)
            return view if view["status"] == DONE else None

        found = until(done, lambda: f"the transfer completes; {seen[-1:]}")
        assert found is not None
        return found

    def assert_whole(self, view: dict[str, Any]) -> None:
        """The bytes are there, once, and are charged once."""
        assert (view["status"], view["copy_present"]) == (DONE, True)
        assert self.arrived()
        assert self.ended()
        assert self.story.charged() == self.one

    def assert_nothing(self) -> None:
        """It says that it did not happen, and so it is."""
        status = self.status()
        assert status == "failed", status
        assert not self.arrived()
        assert self.story.charged() == NOTHING

    def assert_left_alone(self) -> None:
        """Nothing stays charged once the copy is gone."""
        self.story.target.delete(self.story.payload_id)
        until(
            lambda: self.story.charged() == NOTHING, lambda: f"charges end; {self.story.charged()}"
        )

    def outcome(self, view: dict[str, Any], statuses: list[str]) -> str:
        """What the decision behind it says, once it has these outcomes."""
        headers = {"x-nexuskv-decision-id": view["decision_id"]}
        found = self.story.history(httpx.Response(200, headers=headers), statuses)
        assert found["kind"] == self.action
        outcome: str = found["outcome"]
        return outcome
