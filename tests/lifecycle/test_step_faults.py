"""Steps of a materialize and of a prefetch: repeated, failed, undone twice, failed in their undo.

Two worker processes are source and target. What the one received and what the tenant is charged for
tell whether anything was done twice; what both hold tells whether anything was left behind.
"""

from collections.abc import AsyncIterator, Sequence
from itertools import product
from typing import Any

import pytest

from app.errors import ErrorCode, NexusError
from app.lifecycle.steps import End, Step, Steps
from app.transfer.wire import SINK_NAMESPACE
from tests.fixtures.wire import heartbeat_body, materialize_body
from tests.lifecycle.in_process import InProcess, running
from tests.process.waiting import until
from tests.topology.workers import instance
from tests.worker.rig import SECRET, Worker, now_s, some_bytes

DEADLINE_S, CLAIM_S = 1.0, 2.5
DATA = some_bytes(4096)
PAYLOAD = "state-1"
NOTHING = {"payload_bytes": 0, "entries": 0, "transfers": 0}
ONE = {"payload_bytes": len(DATA), "entries": 1, "transfers": 0}
HELD = tuple(
    f"nexuskv_worker_{name}"
    for name in ("used_bytes", "blocks", "pin", "payloads", "sinks", "transfers")
)
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
def workers(tmp_path) -> AsyncIterator[tuple[Worker, Worker]]:
    """The one that holds payloads, and the one that wants them."""
    pair = Worker(tmp_path / "node-a", "node-a"), Worker(tmp_path / "node-b", "node-b")
    yield pair
    for worker in pair:
        worker.close()


@pytest.fixture
async def process(database_url: str, workers: tuple[Worker, Worker]) -> AsyncIterator[InProcess]:
    async with running(
        database_url,
        worker_secrets=(SECRET,),
        worker_silence_s=600.0,
        transfer_deadline_s=DEADLINE_S,
        claim_ttl_s=CLAIM_S,
    ) as process:
        for worker in workers:
            await beat(process, worker)
        yield process


async def beat(process: InProcess, worker: Worker, **news: Any) -> None:
    """What the worker would tell: it knows no API, so that nothing is told before it is wanted."""
    body = heartbeat_body(
        instance_id=worker.ready["instance_id"],
        url=worker.url,
        data_address=worker.data_address,
        **news,
    )
    answer = await process.client.put(f"/v1/workers/{worker.node}", json=body)
    assert answer.status_code == 200, answer.text
    assert answer.json()["accepted_events"] == [one["event_id"] for one in news.get("events", [])]


def held(worker: Worker) -> dict[str, float]:
    """Memory, pins, payloads, sinks and sessions of a worker."""
    now = worker.metrics()
    return {name: value for name, value in now.items() if name.startswith(HELD)}


class Case:
    """One tenant's state, and the request whose steps are meddled with; `moves` moves bytes."""

    steps: tuple[str, ...]
    moves: str

    def __init__(self, process: InProcess, workers: tuple[Worker, Worker], tenant: str) -> None:
        self.process = process
        self.source, self.target = (worker.of(tenant) for worker in workers)
        self.tenant = tenant
        self.before = [held(worker) for worker in workers]

    async def ready(self) -> None:
        assert self.source.put(PAYLOAD, DATA).status_code == 201
        await self.process.register(self.tenant)

    async def ask(self) -> bool:
        """Whether it was carried out; else it is to be asked again."""
        raise NotImplementedError

    def arrived(self) -> bytes:
        raise NotImplementedError

    async def give_up(self) -> None:
        """What arrived is thrown away, and the API is told so."""
        raise NotImplementedError

    def nothing_left_over(self, *, arrived: bool) -> None:
        """No pin, no session, no memory but that of a payload or a sink which is there."""
        for worker in (self.source, self.target):
            until(lambda worker=worker: not worker.leaks(), f"{worker.node}: {worker.leaks()}")
        assert (self.arrived() == DATA) == arrived

    async def all_as_before(self) -> None:
        await self.give_up()
        assert self.source.delete(PAYLOAD).status_code == 200
        assert [held(self.source), held(self.target)] == self.before
        assert await self.charged() == NOTHING

    async def charged(self) -> dict[str, int]:
        answer = await self.process.client.get(f"/v1/quotas/{self.tenant}")
        return {name: answer.json()[name] for name in ONE}

    def moved_bytes(self) -> float:
        return self.target.metrics()["nexuskv_worker_received_bytes_total"]


class Materializing(Case):
    steps = ("find_sink", "reserve", "execute", "settle", "consume")
    moves = "execute"

    async def ready(self) -> None:
        await super().ready()
        handle = await self.process.handle(self.tenant)
        option = (await self.process.estimate(handle, target_residency="node-b")).json()
        self.sink = self.target.new_sink(len(DATA))
        self.body = materialize_body(option, sink_namespace=SINK_NAMESPACE, sink_value=self.sink)

    async def ask(self) -> bool:
        answer = await self.process.post("/locus/v1/materialize", self.body)
        if answer.status_code == 200:
            assert answer.json()["evidence"]["level"] == "physical"
            self.session = answer.json()["evidence"]["transfer_session"]
        else:
            assert answer.status_code == 503, answer.text
        return answer.status_code == 200

    def arrived(self) -> bytes:
        return self.target.content(self.sink).content

    async def give_up(self) -> None:
        assert self.target.finish(self.sink, "discard").status_code == 200
        event = {
            "event_id": instance(),
            "sink_id": self.sink,
            "tenant": self.tenant,
            "state": "discarded",
            "at_us": now_s() * 1_000_000,
            "payload_bytes": len(DATA),
            "session_id": self.session,
        }
        await beat(self.process, self.target, events=[event])


class Prefetching(Case):
    steps = ("open", "plan", "charge", "carry", "close")
    moves = "carry"

    async def ask(self) -> bool:
        body = {
            "transfer_id": "move-1",
            "action": "prefetch",
            "tenant": self.tenant,
            "entry_id": "state-1",
            "target_worker": "node-b",
            "payload_id": "copy",
        }
        answer = await self.process.post("/v1/transfers", body)
        assert answer.status_code in (200, 202, 503), answer.text
        return answer.status_code == 200 and answer.json()["status"] == "completed"

    def arrived(self) -> bytes:
        return self.target.get("copy").content

    async def give_up(self) -> None:
        assert self.target.delete("copy").status_code == 200
        gone = {"tenant": self.tenant, "payload_id": "copy"}
        await beat(self.process, self.target, gone_payloads=[gone])


@pytest.mark.parametrize("kind", [Materializing, Prefetching])
async def test_no_step_does_anything_twice_or_leaves_anything(
    process: InProcess, workers: tuple[Worker, Worker], kind: type[Case], monkeypatch
) -> None:
    services = process.services
    slice_of = services.materialize if kind is Materializing else services.move
    for number, (at, how) in enumerate(product(kind.steps, HOWS)):
        case = kind(process, workers, f"tenant-{number}")
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
        acted = how != "fails at once"
        settled = at == kind.steps[-1] and acted
        assert await case.charged() == (ONE if settled or done else NOTHING), (at, how)
        # Bytes that arrived stay until their sink's end, or are what a retry finds.
        moved_at = kind.steps.index(kind.moves)
        passed = kind.steps.index(at) > moved_at or (at == kind.moves and acted)
        case.nothing_left_over(arrived=passed or done)
        assert await case.ask(), (at, how)
        assert case.arrived() == DATA
        assert await case.charged() == ONE, (at, how)
        assert case.moved_bytes() - moved == len(DATA), (at, how)
        await case.all_as_before()
        # Tokens are of the present: a worker's clock does not go along.
        process.clock.ahead_us = 0
