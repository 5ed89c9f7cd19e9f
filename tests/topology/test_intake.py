"""What a heartbeat does, and which of two processes keeps a name."""

import asyncio

import pytest
from sqlalchemy import text

from app.db.session import Database
from app.errors import ErrorCode, NexusError
from app.topology import intake as intake_module
from tests.db.rows import noted_statements
from tests.topology.workers import Replica, gone, instance, make_silent, sink_event

NOWHERE = "postgresql://nobody@127.0.0.1:1/none"
OTHER = {"url": "http://127.0.0.1:8100", "data_address": "127.0.0.1:8101"}


async def code_of(call) -> ErrorCode:
    with pytest.raises(NexusError) as caught:
        await call
    return caught.value.code


@pytest.fixture
def writes(monkeypatch):
    """Every write of a worker's row."""
    return noted_statements(monkeypatch, "INSERT INTO worker")


async def test_a_worker_is_written_once_a_second_however_often_it_beats(here, writes):
    one = instance()
    for _ in range(100):
        answer = await here.beat("node-a", one)
        here.clock.advance(0.05)
    assert answer.heartbeat_s == 1.0
    assert len(writes) == 5
    assert here.intake.results == {"accepted": 100, "refused": 0, "failed": 0}
    # What changed beside the load is written at once.
    await here.beat("node-a", one, data_address="127.0.0.1:7777")
    assert here.directory.get("node-a").data_address == "127.0.0.1:7777"
    assert len(writes) == 6


async def test_a_load_that_is_not_written_yet_is_known_here(here):
    one = instance()
    await here.beat("node-a", one)
    load = here.directory.get("node-a").load
    changed = type(load)(**dict.fromkeys(load.__struct_fields__, 9))
    await here.beat("node-a", one, load=changed)
    assert here.directory.get("node-a").load == changed


async def test_a_live_worker_at_another_address_keeps_its_name(here, there):
    one, two = instance(), instance()
    await here.beat("node-a", one)
    assert await code_of(there.beat("node-a", two, **OTHER)) is ErrorCode.WORKER_NAME_TAKEN
    await there.directory.poll()
    assert there.directory.get("node-a").instance_id == one
    assert there.intake.results["refused"] == 1


async def test_a_silent_worker_loses_its_name(here, there, database):
    one, two = instance(), instance()
    await here.beat("node-a", one)
    await make_silent(database, "node-a", 5.5)
    await there.beat("node-a", two, **OTHER)
    # Now the first one is the intruder, also where it was known until now.
    await here.directory.poll()
    here.clock.advance(1)
    assert await code_of(here.beat("node-a", one)) is ErrorCode.WORKER_NAME_TAKEN


async def test_a_new_start_at_the_same_url_takes_the_name_at_once_and_for_good(here, there):
    one, two = instance(), instance()
    await here.beat("node-a", one)
    await there.beat("node-a", two)
    await here.directory.poll()
    # A heartbeat of the first that was under way all the time.
    assert await code_of(here.beat("node-a", one)) is ErrorCode.WORKER_NAME_TAKEN
    await here.directory.poll()
    assert here.directory.get("node-a").instance_id == two
    three = instance()
    await here.beat("node-a", three)
    assert here.directory.get("node-a").instance_id == three


async def test_of_many_that_claim_a_name_at_once_one_gets_it(database):
    replicas = [Replica(database) for _ in range(4)]
    urls = [f"http://127.0.0.1:{9000 + number}" for number in range(4)]
    results = await asyncio.gather(
        *(
            replica.beat("node-a", instance(), url=url)
            for replica, url in zip(replicas, urls, strict=True)
        ),
        return_exceptions=True,
    )
    refused = [result for result in results if isinstance(result, NexusError)]
    assert len(refused) == 3
    assert {error.code for error in refused} == {ErrorCode.WORKER_NAME_TAKEN}


@pytest.mark.parametrize("field", ["url", "data_address"])
async def test_hosts_that_are_not_listed_are_refused_and_leave_nothing(here, database, field):
    address = {"url": "http://10.0.0.7:80", "data_address": "10.0.0.7:80"}[field]
    beat = here.beat("node-a", instance(), **{field: address})
    assert await code_of(beat) is ErrorCode.WORKER_HOST_NOT_ALLOWED
    async with database.read() as session:
        assert (await session.execute(text("SELECT count(*) FROM worker"))).scalar_one() == 0


@pytest.mark.parametrize("text_", ["-" * 36, "0" * 36, "0000-" * 7 + "0"])
async def test_an_instance_id_is_a_uuid(here, text_):
    assert await code_of(here.beat("node-a", text_)) is ErrorCode.INVALID_FIELD


async def test_the_number_of_workers_has_a_limit(here, monkeypatch):
    monkeypatch.setattr(intake_module, "MAX_WORKERS", 2)
    one = instance()
    await here.beat("node-a", one)
    await here.beat("node-b", instance())
    assert await code_of(here.beat("node-c", instance())) is ErrorCode.OVERLOADED
    here.clock.advance(2)
    await here.beat("node-a", one)
    await here.intake.forget("node-b")
    await here.beat("node-c", instance())


async def test_events_are_acknowledged_once_they_were_taken(database):
    taken, failing = [], {"sink-2"}

    async def take(worker, found):
        if found.sink_id in failing:
            raise NexusError(ErrorCode.DATABASE_UNAVAILABLE, "not now")
        taken.append((worker, found.sink_id))

    replica = Replica(database, on_sink_event=take)
    one = instance()
    events = tuple(sink_event(f"sink-{number}") for number in range(1, 4))
    answer = await replica.beat("node-a", one, events=events)
    assert answer.accepted_events == (events[0].event_id, events[2].event_id)
    failing.clear()
    # Too soon to be written, but not too soon to be heard.
    again = await replica.beat("node-a", one, events=events[1:2])
    assert again.accepted_events == (events[1].event_id,)
    assert taken == [("node-a", "sink-1"), ("node-a", "sink-3"), ("node-a", "sink-2")]


async def test_events_that_take_too_long_stay_with_the_worker(database, monkeypatch):
    monkeypatch.setattr(intake_module, "_EVENTS_S", 0.05)

    async def take(_worker, found):
        if found.sink_id == "sink-2":
            await asyncio.Event().wait()

    replica = Replica(database, on_sink_event=take)
    events = tuple(sink_event(f"sink-{number}") for number in range(1, 4))
    answer = await replica.beat("node-a", instance(), events=events)
    assert answer.accepted_events == (events[0].event_id,)


async def test_without_anybody_who_takes_them_no_event_is_acknowledged(here):
    answer = await here.beat("node-a", instance(), events=(sink_event(),))
    assert answer.accepted_events == ()


async def test_payloads_that_are_gone_are_handed_on_and_a_failure_is_not_hidden(database):
    heard = []

    async def on_gone(worker, payloads):
        heard.append((worker, payloads))
        if len(heard) == 1:
            raise NexusError(ErrorCode.DATABASE_UNAVAILABLE, "not now")

    replica = Replica(database, on_gone=on_gone)
    one = instance()
    beat = replica.beat("node-a", one, gone_payloads=gone("p-1"))
    assert await code_of(beat) is ErrorCode.DATABASE_UNAVAILABLE
    assert replica.intake.results["failed"] == 1
    await replica.beat("node-a", one, gone_payloads=gone("p-1", "p-2"))
    assert heard == [("node-a", gone("p-1")), ("node-a", gone("p-1", "p-2"))]


async def test_that_a_name_has_a_new_process_is_told_until_it_was_taken(database):
    told, failing = [], [True]

    async def lost(worker, since):
        told.append((worker, since))
        if failing[0]:
            raise NexusError(ErrorCode.DATABASE_UNAVAILABLE, "not now")

    replica = Replica(database, on_new_instance=lost)
    one, two = instance(), instance()
    assert await code_of(replica.beat("node-a", one)) is ErrorCode.DATABASE_UNAVAILABLE
    failing.clear()
    failing.append(False)
    for _ in range(3):
        replica.clock.advance(2)
        await replica.beat("node-a", one)
    began = told[0]
    assert told == [began] * 2
    await replica.beat("node-a", two)
    assert [worker for worker, _ in told] == ["node-a"] * 3
    assert told[2][1] == replica.clock.now() > began[1]
    # One that starts anew does not know whom the others told.
    again = Replica(database, replica.clock, on_new_instance=lost)
    await again.beat("node-a", two)
    assert told[3] == told[2]
    replica.clock.advance(2)
    assert await replica.intake.forget("node-a")
    assert told[4] == ("node-a", replica.clock.now())
    await replica.beat("node-a", two)
    assert told[5][0] == "node-a"


async def test_a_heartbeat_that_cannot_be_stored_still_shows_that_the_worker_lives(here, database):
    one = instance()
    await here.beat("node-a", one)
    await here.directory.poll()
    await here.watch(4)
    here.intake._database = Database(NOWHERE)
    assert await code_of(here.beat("node-a", one)) is ErrorCode.DATABASE_UNAVAILABLE
    assert await code_of(here.beat("node-b", instance())) is ErrorCode.DATABASE_UNAVAILABLE
    await here.watch(4)
    assert here.directory.available("node-a")
    assert here.status("node-b") == "unknown"
    here.intake._database = database
    await here.beat("node-a", one)
