"""A worker that never comes back: after a while nobody is charged for what it held, once."""

from collections.abc import AsyncIterator

import pytest

from app.quota.charges import charge
from tests.fixtures.wire import heartbeat_body
from tests.lifecycle.in_process import InProcess, running
from tests.topology.workers import instance
from tests.worker.rig import SECRET, Worker, now_s, some_bytes

SILENCE_S, LOST_S = 0.5, 60.0
TENANT, PAYLOAD = "t", "state-1"
DATA = some_bytes(4096)
NOTHING = {"payload_bytes": 0, "entries": 0, "transfers": 0}
ONE = {"payload_bytes": len(DATA), "entries": 1, "transfers": 0}


@pytest.fixture
def worker(tmp_path) -> AsyncIterator[Worker]:
    running_worker = Worker(tmp_path / "node-a", "node-a", tenant=TENANT)
    yield running_worker
    running_worker.close()


class Lost:
    """A worker that beats when the test says so, and what its tenant is charged for."""

    def __init__(self, process: InProcess, worker: Worker) -> None:
        self.process = process
        self.worker = worker

    async def beat(self, **changes) -> None:
        body = heartbeat_body(
            instance_id=self.worker.ready["instance_id"],
            url=self.worker.url,
            data_address=self.worker.data_address,
            **changes,
        )
        answer = await self.process.client.put("/v1/workers/node-a", json=body)
        assert answer.status_code == 200, answer.text

    async def copy(self) -> None:
        """A prefetch by a worker that was just heard."""
        await self.beat()
        body = {
            "transfer_id": "move-1",
            "action": "prefetch",
            "tenant": TENANT,
            "entry_id": PAYLOAD,
            "target_worker": "node-a",
            "payload_id": "copy",
        }
        answer = await self.process.post("/v1/transfers", body)
        assert answer.json()["status"] == "completed", answer.text
        # Its age is known from now on by the clock that is moved ahead.
        await self.process.services.workers.poll()

    async def charge_more(self) -> None:
        """For a payload that comes to a worker which was just heard."""
        await self.beat()
        services = self.process.services
        async with services.database.write() as session:
            await charge(
                session, services.policy, TENANT, "another", len(DATA),
                worker="node-a", now=self.process.clock.now(), expires_at=None,
            )  # fmt: skip

    async def charged(self) -> dict[str, int]:
        answer = await self.process.client.get(f"/v1/quotas/{TENANT}")
        return {name: answer.json()[name] for name in NOTHING}

    async def after(self, seconds: float) -> dict[str, int]:
        """What is charged for once so much time has passed and lost workers were looked for."""
        self.process.clock.advance(seconds)
        await self.process.services.worker_intake.release_lost()
        return await self.charged()


@pytest.fixture
async def lost(database_url: str, worker: Worker) -> AsyncIterator[Lost]:
    async with running(
        database_url,
        worker_secrets=(SECRET,),
        worker_silence_s=SILENCE_S,
        worker_lost_s=LOST_S,
    ) as process:
        found = Lost(process, worker)
        await found.beat()
        assert worker.put(PAYLOAD, DATA).status_code == 201
        await process.register(TENANT)
        yield found


async def test_what_a_lost_worker_held_is_charged_to_nobody(lost: Lost) -> None:
    await lost.copy()
    assert await lost.charged() == ONE
    assert await lost.after(LOST_S - 1) == ONE
    assert await lost.after(1) == NOTHING
    assert await lost.after(1) == NOTHING
    # It was only away: what it tells now gives nothing back a second time.
    await lost.charge_more()
    event = {
        "event_id": instance(),
        "sink_id": "sink-1",
        "tenant": TENANT,
        "state": "discarded",
        "at_us": now_s() * 1_000_000,
        "payload_bytes": len(DATA),
        "session_id": f"{'0' * 32}.{'0' * 32}",
    }
    await lost.beat(gone_payloads=[{"tenant": TENANT, "payload_id": "copy"}], events=[event])
    assert await lost.charged() == ONE


async def test_what_is_charged_for_one_that_came_back_stays(lost: Lost) -> None:
    await lost.copy()
    assert await lost.after(LOST_S) == NOTHING
    await lost.charge_more()
    await lost.process.services.workers.poll()
    assert await lost.after(LOST_S - 1) == ONE
    await lost.beat()
    await lost.process.services.workers.poll()
    assert await lost.after(LOST_S - 1) == ONE
    assert await lost.after(1) == NOTHING


async def test_nobody_is_lost_because_postgres_was_away(lost: Lost) -> None:
    await lost.copy()
    directory = lost.process.services.workers
    await directory.stop()
    # Nothing was heard of it for a day, and for no longer than it took to come back.
    lost.process.clock.advance(86_400)
    await lost.beat()
    assert await lost.after(0) == ONE
    directory.start()
