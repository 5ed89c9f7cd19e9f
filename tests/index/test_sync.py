"""The index follows Postgres: loads, polls, late commits, deletions, and what it cannot read."""

import asyncio
import sys
from contextlib import AsyncExitStack

import pytest
from sqlalchemy import text

from app.clock import SystemClock
from app.db.session import Database
from app.errors import ErrorCode, NexusError
from app.index.matcher import Freshness, StateIndex
from app.index.registry import StateRegistry
from app.index.repository import states_upsert
from app.index.scopes import TenantHashing
from app.index.sync import IndexSync
from tests.control.clock import SetClock
from tests.fixtures.wire import TOKENS
from tests.index.rows import IDS, SECRET, parsed, scope

NOWHERE = "postgresql://nobody@127.0.0.1:1/none"


class Replica:
    """One process's index, and its registry on the shared database."""

    def __init__(self, database: Database) -> None:
        self.clock = SetClock()
        self.index = StateIndex(TenantHashing(SECRET))
        self.registry = StateRegistry(database, self.index, SystemClock(), IDS)
        self.sync = IndexSync(database, self.index, self.clock, interval_s=0.01, stale_s=5)

    async def register(self, *args, **changes):
        [result] = await self.registry.register([parsed(*args, **changes)])
        return result

    def names(self) -> dict[str, int]:
        """Entry id to generation, of everything that a query of TOKENS finds for tenant t."""
        matches = self.index.match(scope("t"), TOKENS, max_candidates=1_000)
        return {c.state.entry_id: c.state.generation for c in matches.candidates}


@pytest.fixture
def here(database):
    return Replica(database)


@pytest.fixture
def there(database):
    return Replica(database)


async def test_the_first_poll_loads_everything_that_lives(here, there):
    for number in range(250):
        await there.register("t", f"state-{number}")
    gone = await there.register("t", "gone")
    assert await there.registry.delete(gone.state_id, None)
    assert not here.sync.loaded
    assert here.sync.freshness() is Freshness.LOADING
    assert await here.sync.poll() == 250
    assert here.sync.loaded
    assert here.sync.freshness() is Freshness.CURRENT
    assert here.names() == {f"state-{number}": 1 for number in range(250)}
    await here.sync.wait_loaded()


async def test_one_poll_brings_what_another_process_did(here, there):
    kept, gone, moved = [await there.register("t", name) for name in ("kept", "gone", "moved")]
    await here.sync.poll()
    await there.register("t", "new")
    await there.register("t", "moved", generation=7)
    assert await there.registry.delete(gone.state_id, None)
    assert here.names() == {"kept": 1, "gone": 1, "moved": 1}
    assert await here.sync.poll() >= 3
    assert here.names() == there.names() == {"kept": 1, "moved": 7, "new": 1}
    assert here.index.get("t", "moved").state_id == moved.state_id
    assert here.index.get("t", "kept").state_id == kept.state_id


async def test_what_was_applied_is_not_read_again(here, there):
    await here.sync.poll()
    for number in range(60):
        await there.register("t", f"state-{number}")
    assert await here.sync.poll() == 60
    revision = here.index.revision
    assert await here.sync.poll() == 0
    assert here.index.revision == revision


async def test_a_poll_leaves_alone_what_this_process_registered_itself(here):
    await here.sync.poll()
    await here.register("t", "mine")
    revision = here.index.revision
    await here.sync.poll()
    assert here.index.revision == revision
    assert here.names() == {"mine": 1}


async def test_a_commit_that_comes_late_is_not_passed_over(database, here, there):
    await here.sync.poll()
    async with AsyncExitStack() as late:
        session = await late.enter_async_context(database.write())
        write = there.registry._write(parsed("t", "late"))
        await states_upsert(session, [write], SystemClock().now())
        # Later transactions begin, commit and are polled while the first is still open.
        for number in range(3):
            await there.register("t", f"early-{number}")
            await here.sync.poll()
        assert set(here.names()) == {"early-0", "early-1", "early-2"}
    await here.sync.poll()
    assert set(here.names()) == {"early-0", "early-1", "early-2", "late"}


async def test_a_load_beside_an_open_transaction_loses_nothing(database, here, there):
    stack = AsyncExitStack()
    session = await stack.enter_async_context(database.write())
    write = there.registry._write(parsed("t", "open"))
    await states_upsert(session, [write], SystemClock().now())
    await there.register("t", "closed")
    await here.sync.poll()
    assert set(here.names()) == {"closed"}
    await stack.aclose()
    await here.sync.poll()
    assert set(here.names()) == {"closed", "open"}


async def test_a_transaction_that_is_rolled_back_leaves_no_trace(database, here, there):
    await here.sync.poll()
    write = there.registry._write(parsed("t", "never"))

    async def abandoned():
        async with database.write() as session:
            await states_upsert(session, [write], SystemClock().now())
            raise RuntimeError("rolled back")

    with pytest.raises(RuntimeError, match="rolled back"):
        await abandoned()
    await here.sync.poll()
    assert here.names() == {}


async def test_a_deleted_state_may_come_back_at_a_higher_generation(here, there):
    first = await there.register("t", "state-1", generation=3)
    await here.sync.poll()
    await there.registry.delete(first.state_id, None)
    await there.register("t", "state-1", generation=4)
    await here.sync.poll()
    assert here.names() == {"state-1": 4}


@pytest.mark.parametrize(
    "damage",
    [
        "body = jsonb_set(body, '{entry,descriptor,semantic_type}', '\"magic\"')",
        "body = '[]'",
        r"tokens = '\x010203'",
        r"tokens = '\x'",
    ],
)
async def test_an_unreadable_row_stops_no_other(database, here, there, damage):
    for name in ("a", "bad", "z"):
        await there.register("t", name)
    await here.sync.poll()
    await there.register("t", "bad", generation=2)
    async with database.write() as session:
        await session.execute(text(f"UPDATE state SET {damage} WHERE entry_id = 'bad'"))
    await there.register("t", "later")
    await here.sync.poll()
    # Its older generation would only lead to handles that Postgres does not honour.
    assert set(here.names()) == {"a", "z", "later"}
    # A replica that starts now is no worse off, and a good generation brings the state back.
    fresh = Replica(database)
    await fresh.sync.poll()
    assert fresh.names() == here.names()
    await there.register("t", "bad", generation=3)
    await here.sync.poll()
    assert here.names()["bad"] == 3


async def test_packed_tokens_are_little_endian_whatever_the_machine(database, there):
    await there.register("t", tokens=[1, 2**32 - 1])
    async with database.read() as session:
        stored = (await session.execute(text("SELECT tokens FROM state"))).scalar_one()
    assert stored == b"\x01\0\0\0\xff\xff\xff\xff", sys.byteorder


async def test_freshness_depends_on_the_last_poll_that_succeeded(here, database):
    await here.sync.poll()
    here.clock.advance(5)
    assert here.sync.freshness() is Freshness.CURRENT
    here.clock.advance(0.001)
    assert here.sync.freshness() is Freshness.BEHIND
    working, here.sync._database = database, Database(NOWHERE)
    with pytest.raises(NexusError):
        await here.sync.poll()
    assert here.sync.freshness() is Freshness.BEHIND
    here.sync._database = working
    await here.sync.poll()
    assert here.sync.freshness() is Freshness.CURRENT


async def test_postgres_away_at_the_first_load():
    replica = Replica(Database(NOWHERE))
    with pytest.raises(NexusError) as caught:
        await replica.sync.poll()
    assert caught.value.code is ErrorCode.DATABASE_UNAVAILABLE
    assert replica.sync.freshness() is Freshness.LOADING
    assert not replica.sync.loaded


async def test_a_poll_that_fails_forgets_no_state_and_no_change(here, there, database):
    await there.register("t", "old")
    await here.sync.poll()
    await there.register("t", "new")
    working, here.sync._database = database, Database(NOWHERE)
    with pytest.raises(NexusError):
        await here.sync.poll()
    assert here.names() == {"old": 1}
    here.sync._database = working
    await here.sync.poll()
    assert here.names() == {"old": 1, "new": 1}


async def test_a_load_that_broke_off_leaves_nothing_that_was_deleted_since(here, there):
    gone = await there.register("t", "gone")
    await there.register("t", "kept")
    # As after a load that ended in the middle: a state is here, and no fence is.
    await here.sync.poll()
    here.sync._fence = None
    await there.registry.delete(gone.state_id, None)
    await here.sync.poll()
    assert here.names() == {"kept": 1}


async def test_another_cluster_behind_the_same_address_is_loaded_anew(here, there):
    await there.register("t", "state-1", generation=9)
    await here.sync.poll()
    # A restored cluster counts its transactions from an earlier one, and its states with them.
    here.sync._fence = str(2**40)
    first = here.index.get("t", "state-1")
    await there.registry.delete(first.state_id, None)
    await there.register("t", "other")
    await here.sync.poll()
    assert here.sync.freshness() is Freshness.LOADING
    await here.sync.poll()
    assert here.sync.freshness() is Freshness.CURRENT
    assert here.names() == {"other": 1}


async def test_the_task_polls_until_it_is_stopped(here, there, database):
    working, here.sync._database = database, Database(NOWHERE)
    here.sync.start()
    await there.register("t")
    here.sync._database = working
    async with asyncio.timeout(10):
        await here.sync.wait_loaded()
        await there.register("t", "later")
        while "later" not in here.names():
            await asyncio.sleep(0.005)
    assert here.names() == {"state-1": 1, "later": 1}
    task = here.sync._task
    await here.sync.stop()
    assert task.cancelled()
