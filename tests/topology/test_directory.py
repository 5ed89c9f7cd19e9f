"""Who is available, as one replica and another see it."""

import asyncio
import timeit

import pytest
from sqlalchemy import text

from app.db.session import Database
from app.errors import ErrorCode, NexusError
from app.topology import directory as directory_module
from tests.topology.workers import LOAD, Replica, gone, instance, make_silent

NOWHERE = "postgresql://nobody@127.0.0.1:1/none"


async def test_a_name_nobody_registered_is_unknown(here):
    await here.directory.poll()
    assert here.status() == "unknown"
    assert not here.directory.available("node-a")
    assert here.directory.get("node-a") is None


async def test_a_heartbeat_is_known_here_at_once_and_elsewhere_with_the_next_poll(here, there):
    await there.directory.poll()
    first = instance()
    here.clock.advance(1)
    await here.beat("node-a", first)
    assert here.status() == "available"
    assert there.status() == "unknown"
    await there.directory.poll()
    for replica in (here, there):
        worker = replica.directory.get("node-a")
        assert worker.available
        assert worker.instance_id == first
        assert worker.url == "http://127.0.0.1:7100"
        assert worker.load == LOAD
        assert [backend.value for backend in worker.backends] == [
            "baseline_transport",
            "staged_copy",
        ]
        assert replica.directory.counts() == {"available": 1, "unavailable": 0}


async def test_silence_makes_a_worker_unavailable_and_a_heartbeat_brings_it_back(here, there):
    one = instance()
    await here.beat("node-a", one)
    await there.directory.poll()
    await there.watch(4.5)
    assert there.status() == "available"
    await there.watch(1)
    assert there.status() == "unavailable"
    assert not there.directory.available("node-a")
    assert there.directory.get("node-a").heartbeat_age_us >= 5_500_000
    here.clock.advance(1)
    await here.beat("node-a", one)
    await there.directory.poll()
    assert there.status("node-a", here.clock.now_us()) == "available"


async def test_a_process_that_starts_sees_old_heartbeats_for_what_they_are(here, database):
    await here.beat("node-a", instance())
    await make_silent(database, "node-a", 4)
    await here.beat("node-b", instance())
    await make_silent(database, "node-b", 6)
    fresh = Replica(database)
    await fresh.directory.poll()
    assert fresh.directory.available("node-a")
    assert not fresh.directory.available("node-b")
    # Its four seconds of silence go on from there.
    await fresh.watch(1.5)
    assert not fresh.directory.available("node-a")


async def test_nobody_is_silent_while_postgres_is_away_nor_just_after(here, there, database):
    await here.beat("node-a", instance())
    await here.beat("node-b", instance())
    await make_silent(database, "node-b", 60)
    await there.directory.poll()
    working, there.directory._database = database, Database(NOWHERE)
    there.clock.advance(3600 / 2)
    with pytest.raises(NexusError) as caught:
        await there.directory.poll()
    assert caught.value.code is ErrorCode.DATABASE_UNAVAILABLE
    assert there.directory.available("node-a")
    there.directory._database = working
    # No heartbeat could be stored meanwhile; there is time for one now, but not forever.
    await there.directory.poll()
    await there.watch(3.5)
    assert there.directory.available("node-a")
    assert not there.directory.available("node-b")
    await there.watch(1.5)
    assert not there.directory.available("node-a")


async def test_what_was_in_the_memory_of_an_earlier_start_is_gone(here, there):
    await here.beat("node-a", instance())
    before_us = here.clock.now_us()
    here.clock.advance(10)
    after = instance()
    await here.beat("node-a", after)
    await there.directory.poll()
    for replica in (here, there):
        assert replica.status(registered_us=before_us) == "unavailable"
        assert replica.status(registered_us=here.clock.now_us() - 1) == "unavailable"
        assert replica.status(registered_us=here.clock.now_us()) == "available"
        assert replica.directory.get("node-a").instance_id == after


async def test_a_payload_reported_gone_is_unavailable_until_it_is_registered_again(here):
    one = instance()
    await here.beat("node-a", one)
    registered_us = here.clock.now_us()
    here.clock.advance(1)
    await here.beat("node-a", one, gone_payloads=gone("p-1", "p-2"))
    assert here.status(registered_us=registered_us, payload_id="p-1") == "unavailable"
    assert here.status(registered_us=registered_us, payload_id="p-3") == "available"
    # Another tenant's payload of that name is another one.
    assert here.status("node-a", registered_us, "rival", "p-1") == "available"
    here.clock.advance(1)
    assert here.status(payload_id="p-1") == "available"
    # A poll of the same instance keeps what was reported.
    await here.directory.poll()
    assert here.status(registered_us=registered_us, payload_id="p-2") == "unavailable"


async def test_of_very_many_payloads_gone_the_oldest_are_forgotten(here, monkeypatch):
    monkeypatch.setattr(directory_module, "MAX_GONE_PAYLOADS", 3)
    await here.beat("node-a", instance())
    at_us = here.clock.now_us()
    for names in (("a", "b"), ("c",), ("a",), ("d",)):
        here.directory.note_gone("node-a", gone(*names))
    seen = {name: here.status(registered_us=at_us, payload_id=name) for name in "abcd"}
    assert seen == {
        "a": "unavailable",
        "b": "available",
        "c": "unavailable",
        "d": "unavailable",
    }


async def test_a_forgotten_worker_is_unknown_everywhere_until_it_speaks_again(here, there):
    one = instance()
    await here.beat("node-a", one)
    since_us = here.directory.get("node-a").instance_since_us
    await there.directory.poll()
    assert await here.intake.forget("node-a")
    assert here.status() == "unknown"
    await there.directory.poll()
    assert there.status() == "unknown"
    assert not await there.intake.forget("node-a")
    fresh = Replica(there.database)
    await fresh.directory.poll()
    assert fresh.status() == "unknown"
    here.clock.advance(0.1)
    await here.beat("node-a", one)
    await there.directory.poll()
    # It is the same process: what it held it still has.
    assert there.directory.get("node-a").instance_since_us == since_us


async def test_a_poll_under_way_does_not_undo_what_was_learnt_meanwhile(here, monkeypatch):
    one, two = instance(), instance()
    await here.beat("node-a", one)
    real = directory_module.workers_changed_since

    async def read_then_wait(session, fence):
        changes = await real(session, fence)
        await here.beat("node-a", two)
        await here.intake.forget("node-b")
        return changes

    await here.beat("node-b", instance())
    monkeypatch.setattr(directory_module, "workers_changed_since", read_then_wait)
    await here.directory.poll()
    assert here.directory.get("node-a").instance_id == two
    assert here.directory.get("node-b") is None
    monkeypatch.setattr(directory_module, "workers_changed_since", real)
    await here.directory.poll()
    assert here.directory.get("node-a").instance_id == two
    assert here.directory.get("node-b") is None


async def test_a_change_that_commits_late_is_not_passed_over(here, there, database):
    await here.beat("late", instance())
    await there.directory.poll()
    async with database.write() as session:
        await session.execute(text("UPDATE worker SET url = 'http://127.0.0.1:9' "))
        await here.beat("early", instance())
        await there.directory.poll()
        await there.directory.poll()
        assert there.directory.get("late").url == "http://127.0.0.1:7100"
    here.clock.advance(2)
    async with database.write() as session:
        await session.execute(text("UPDATE worker SET heartbeat_at = clock_timestamp()"))
    await there.directory.poll()
    assert there.directory.get("late").url == "http://127.0.0.1:9"


async def test_another_cluster_behind_the_same_address_is_loaded_anew(here, there):
    await here.beat("node-a", instance())
    await there.directory.poll()
    there.directory._known["ghost"] = there.directory._known["node-a"]
    there.directory._fence = 2**50
    await there.directory.poll()
    assert [worker.name for worker in there.directory.workers()] == ["node-a"]


async def test_values_that_a_newer_replica_stored_are_passed_over(here, there, database):
    await here.beat("node-a", instance())
    async with database.write() as session:
        await session.execute(
            text(
                "UPDATE worker SET backends = '{warp,rdma}', tiers = '{}',"
                """ load = '{"used_bytes": 7, "future": 1}'"""
            )
        )
    await there.directory.poll()
    worker = there.directory.get("node-a")
    assert [backend.value for backend in worker.backends] == ["rdma"]
    assert worker.tiers == ()
    assert (worker.load.used_bytes, worker.load.capacity_bytes) == (7, 0)


async def test_the_task_polls_until_it_is_stopped(here, there, database):
    there.directory._database = Database(NOWHERE)
    there.directory.start()
    await here.beat("node-a", instance())
    assert not there.directory.loaded
    there.directory._database = database
    async with asyncio.timeout(10):
        await there.directory.wait_loaded()
        while there.status() != "available":
            await asyncio.sleep(0.005)
    await there.directory.stop()
    assert there.directory._task.cancelled()


async def test_asking_for_the_status_costs_next_to_nothing(here):
    await here.beat("node-a", instance(), gone_payloads=gone("payload-2"))
    status, at_us = here.directory.status, here.clock.now_us()
    calls = 20_000
    best_s = min(
        timeit.repeat(lambda: status("node-a", at_us, "t", "payload-1"), number=calls, repeat=5)
    )
    assert best_s / calls < 3e-6
