"""Steps of a materialize and of a prefetch: repeated, failed, undone twice, failed in their undo.

One worker process is source and target; what it moved and what the tenant is charged for tell
whether anything was done twice or left behind.
"""

from collections.abc import AsyncIterator, Sequence
from itertools import product

import pytest

from app.errors import ErrorCode, NexusError
from app.lifecycle.steps import End, Step, Steps
from app.transfer.wire import SINK_NAMESPACE
from tests.fixtures.wire import heartbeat_body, materialize_body
from tests.lifecycle.in_process import InProcess, running
from tests.worker.rig import SECRET, Worker, some_bytes

DEADLINE_S, CLAIM_S = 1.0, 2.5
DATA = some_bytes(4096)
PAYLOAD = "state-1"
NOTHING = {"payload_bytes": 0, "entries": 0, "transfers": 0}
ONE = {"payload_bytes": len(DATA), "entries": 1, "transfers": 0}
HOWS = ["done twice", "fails at once", "fails afterwards", "undone twice", "undo fails"]
NO = NexusError(ErrorCode.DATABASE_UNAVAILABLE, "a fault")


class Meddled:
    """A step with which something goes wrong."""

    def __init__(self, step: Step, how: str) -> None:
        self._step = step
        self._how = how
        self.name = step.name

    async def do(self) -> End:
        if self._how == "fails at once":
            raise NO
        end = await self._step.do()
        if self._how == "done twice":
            return await self._step.do()
        # Done, and nobody heard of it.
        assert end is End.GO_ON
        raise NO

    async def undo(self) -> None:
        if self._how == "undo fails":
            raise NO
        await self._step.undo()
        if self._how == "undone twice":
            await self._step.undo()


class Meddling(Steps):
    """Meddles with the step `at`, `how` it says."""

    def __init__(self, at: str, how: str) -> None:
        super().__init__()
        self._at = at
        self._how = how
        self.met = False

    async def run(self, steps: Sequence[Step]) -> End:
        self.met |= any(step.name == self._at for step in steps)
        return await super().run(
            [Meddled(step, self._how) if step.name == self._at else step for step in steps]
        )


@pytest.fixture
def worker(tmp_path) -> AsyncIterator[Worker]:
    running_worker = Worker(tmp_path / "node-a", "node-a")
    yield running_worker
    running_worker.close()


@pytest.fixture
async def process(database_url: str, worker: Worker) -> AsyncIterator[InProcess]:
    async with running(
        database_url,
        worker_secrets=(SECRET,),
        worker_silence_s=600.0,
        transfer_deadline_s=DEADLINE_S,
        claim_ttl_s=CLAIM_S,
    ) as process:
        beat = heartbeat_body(
            instance_id=worker.ready["instance_id"],
            url=worker.url,
            data_address=worker.data_address,
        )
        answer = await process.client.put("/v1/workers/node-a", json=beat)
        assert answer.status_code == 200, answer.text
        yield process


class Case:
    """One tenant's state, and the request whose steps are meddled with."""

    def __init__(self, process: InProcess, worker: Worker, tenant: str) -> None:
        self.process = process
        self.worker = worker.of(tenant)
        self.tenant = tenant

    async def ready(self) -> None:
        assert self.worker.put(PAYLOAD, DATA).status_code == 201
        await self.process.register(self.tenant)

    async def ask(self) -> bool:
        """Whether it was carried out; else it is to be asked again."""
        raise NotImplementedError

    def arrived(self) -> bytes:
        raise NotImplementedError

    async def charged(self) -> dict[str, int]:
        answer = await self.process.client.get(f"/v1/quotas/{self.tenant}")
        return {name: answer.json()[name] for name in ONE}

    def moved_bytes(self) -> float:
        return self.worker.metrics()["nexuskv_worker_received_bytes_total"]


class Materializing(Case):
    steps = ("find_sink", "reserve", "execute", "settle", "consume")

    async def ready(self) -> None:
        await super().ready()
        option = await self.process.option(self.tenant)
        self.sink = self.worker.new_sink(len(DATA))
        self.body = materialize_body(option, sink_namespace=SINK_NAMESPACE, sink_value=self.sink)

    async def ask(self) -> bool:
        answer = await self.process.post("/locus/v1/materialize", self.body)
        if answer.status_code == 200:
            assert answer.json()["evidence"]["level"] == "physical"
        else:
            assert answer.status_code == 503, answer.text
        return answer.status_code == 200

    def arrived(self) -> bytes:
        return self.worker.content(self.sink).content


class Prefetching(Case):
    steps = ("open", "plan", "charge", "carry", "close")

    async def ask(self) -> bool:
        body = {
            "transfer_id": "move-1",
            "action": "prefetch",
            "tenant": self.tenant,
            "entry_id": "state-1",
            "target_worker": "node-a",
            "payload_id": "copy",
        }
        answer = await self.process.post("/v1/transfers", body)
        assert answer.status_code in (200, 202, 503), answer.text
        return answer.status_code == 200 and answer.json()["status"] == "completed"

    def arrived(self) -> bytes:
        return self.worker.get("copy").content


@pytest.mark.parametrize("kind", [Materializing, Prefetching])
async def test_no_step_does_anything_twice_or_leaves_anything(
    process: InProcess, worker: Worker, kind: type[Case], monkeypatch
) -> None:
    services = process.services
    slice_of = services.materialize if kind is Materializing else services.move
    for number, (at, how) in enumerate(product(kind.steps, HOWS)):
        case = kind(process, worker, f"tenant-{number}")
        await case.ready()
        moved = case.moved_bytes()
        meddling = Meddling(at, how)
        with monkeypatch.context() as patched:
            patched.setattr(slice_of, "_steps", meddling)
            done = await case.ask()
        assert meddling.met, at
        assert done == (how == "done twice"), (at, how)
        if how == "undo fails":
            # What it would have given back ends by itself.
            process.clock.advance(CLAIM_S + DEADLINE_S)
        last = kind.steps[-1]
        settled = at == last and how in ("fails afterwards", "undone twice", "undo fails")
        expected = ONE if done or settled else NOTHING
        assert await case.charged() == expected, (at, how)
        assert await case.ask(), (at, how)
        assert case.arrived() == DATA
        assert await case.charged() == ONE, (at, how)
        assert case.moved_bytes() - moved == len(DATA), (at, how)
        # Tokens are of the present: a worker's clock does not go along.
        process.clock.ahead_us = 0
