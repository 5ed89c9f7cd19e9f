"""A client that goes away while its receipt is stored: it is stored, and the record says so."""

import asyncio
import json
from collections.abc import Sequence

import pytest

from app.lifecycle.steps import End, Step, Steps
from tests.fixtures.wire import materialize_body
from tests.lifecycle.gate import Gate
from tests.lifecycle.in_process import WAIT_S, InProcess
from tests.transfers.holding import Postgres, RowLock

TENANT = "t"


class Locked:
    """A step that finds a row locked which it has to write."""

    def __init__(self, step: Step, lock: RowLock) -> None:
        self._step = step
        self._lock = lock
        self.name = step.name
        self.undo = step.undo

    async def do(self) -> End:
        await asyncio.to_thread(self._lock.take)
        return await self._step.do()


class LastLocked(Steps):
    def __init__(self, lock: RowLock) -> None:
        super().__init__()
        self._lock = lock

    async def run(self, steps: Sequence[Step]) -> End:
        return await super().run([*steps[:-1], Locked(steps[-1], self._lock)])


class Caller:
    """One request of a client that may hang up."""

    def __init__(self, process: InProcess, body: dict) -> None:
        self._body = json.dumps(body).encode()
        self.hung_up = asyncio.Event()
        self.answered: list[dict] = []
        headers = [
            (b"content-type", b"application/json"),
            (b"content-length", str(len(self._body)).encode()),
            (b"authorization", process.client.headers["authorization"].encode()),
        ]
        scope = {"type": "http", "method": "POST", "path": "/locus/v1/materialize"}
        scope |= {"headers": headers, "query_string": b"", "client": ("127.0.0.1", 1)}
        self.task = asyncio.create_task(process.app(scope, self._receive, self._send))

    async def hang_up(self) -> None:
        """Returns once the request was told that it is cancelled."""
        self.hung_up.set()
        async with asyncio.timeout(WAIT_S):
            while not any(task.cancelling() for task in asyncio.all_tasks()):
                await asyncio.sleep(0)

    async def _receive(self) -> dict:
        if self._body:
            body, self._body = self._body, b""
            return {"type": "http.request", "body": body, "more_body": False}
        await self.hung_up.wait()
        return {"type": "http.disconnect"}

    async def _send(self, message: dict) -> None:
        self.answered.append(message)


@pytest.mark.parametrize("when", ["before it is written", "before it is acknowledged"])
async def test_a_client_that_goes_away_while_the_receipt_is_stored(
    gated: InProcess, gate: Gate, database_url: str, when: str, monkeypatch
) -> None:
    await gated.register(TENANT)
    option = await gated.option(TENANT)
    body = materialize_body(option)
    postgres = Postgres(database_url)
    lock = postgres.claims_of(TENANT)
    with monkeypatch.context() as patched:
        patched.setattr(gated.services.materialize, "_steps", LastLocked(lock))
        caller = Caller(gated, body)
        await asyncio.to_thread(lock.wait_met)
    if when == "before it is written":
        await caller.hang_up()
        await asyncio.to_thread(lock.let_go)
    else:
        gate.stall()
        await asyncio.to_thread(lock.let_go)
        await gate.reached(1)
        await caller.hang_up()
        gate.open()
    async with asyncio.timeout(WAIT_S):
        await caller.task
    postgres.close()
    assert caller.answered == []
    # It was carried out, and nothing else is on record.
    (first,) = await gated.decisions(kind="materialize")
    assert first["outcome"] == "acknowledged"
    found = (await gated.client.get(f"/v1/decisions/{first['decision_id']}")).json()
    assert [one["status"] for one in found["outcomes"]] == ["registered"]
    # Who asks again gets what was stored; nobody else gets the option.
    again = await gated.materialize(option)
    assert again.status_code == 200, again.text
    other = await gated.materialize(option, import_id="import-2")
    assert other.json()["error"]["code"] == "materialization_option_consumed"
    newest = await gated.decisions(kind="materialize", outcome="replayed")
    assert [one["parent_id"] for one in newest] == [first["decision_id"]]
