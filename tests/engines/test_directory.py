"""Registrations as one replica and another know them, on a real database."""

import asyncio

import msgspec
import pytest
from sqlalchemy import text

from app.clock import SystemIds
from app.contract.registration import Registration
from app.db.session import Database
from app.engines.addresses import HOSTS_VARIABLE, EngineAddresses
from app.engines.backed import BackedRegistry
from app.engines.directory import EngineDirectory
from app.engines.intake import EngineIntake, Registered
from app.engines.registration import Attach, EngineKey, EngineSpec
from app.engines.spaces import Spaces
from app.engines.views import ViewState
from app.errors import ErrorCode, NexusError
from app.host_list import HostAllowList
from app.index.matcher import StateIndex
from app.index.registry import StateRegistry
from app.index.scopes import TenantHashing
from nexuskv_core import BlockIndex
from tests.bridge.test_engine_backed import state as backed_state
from tests.engines.publisher import free_port
from tests.engines.rig import SECRET, prompt, told
from tests.engines.wires import packed
from tests.topology.workers import WallClock

NOWHERE = "postgresql://nobody@127.0.0.1:1/none"
KEY = EngineKey("a")


def spec(**fields) -> EngineSpec:
    given = {"instance_id": "a", "model": "m", "block_tokens": 4, "tenants": ("t",)}
    return EngineSpec(**(given | fields))


class Replica:
    """What one API process knows of engines."""

    def __init__(self, database: Database) -> None:
        self.clock = WallClock()
        self.core = BlockIndex()
        spaces = Spaces(TenantHashing(SECRET))
        self.directory = EngineDirectory(database, self.clock, self.core, spaces)
        addresses = EngineAddresses(HostAllowList(["127.0.0.1"], HOSTS_VARIABLE), ["tcp"])
        states = BackedRegistry(
            StateRegistry(database, StateIndex(TenantHashing(SECRET)), self.clock, SystemIds())
        )
        self.intake = EngineIntake(database, self.directory, addresses, states, self.clock)

    def push(self, number: int, key: EngineKey = KEY):
        payload = packed(told(prompt(3)), at_s=number + 0.5, rank=key.dp_rank)
        return self.intake.push(key, number, payload, lost=False)

    def names(self) -> list[EngineKey]:
        return [engine.spec.key for engine in self.directory.engines()]


@pytest.fixture
def here(database) -> Replica:
    return Replica(database)


@pytest.fixture
def there(database) -> Replica:
    return Replica(database)


async def test_a_registration_is_known_here_at_once_and_elsewhere_with_the_next_poll(here, there):
    await there.directory.poll()
    assert await here.intake.register(spec()) is Registered.CREATED
    assert await here.intake.register(spec(instance_id="b", dp_rank=2)) is Registered.CREATED
    assert (here.names(), there.names()) == ([KEY, EngineKey("b", 2)], [])
    await there.directory.poll()
    assert there.names() == here.names()
    assert [view.spec for view in there.directory.views_of("m")] == [
        engine.spec for engine in here.directory.engines()
    ]
    # It is stored: the same one again is none, from wherever it comes, and is known there then.
    third = Replica(there.directory._database)
    assert await third.intake.register(spec()) is Registered.UNCHANGED
    assert third.names() == [KEY]
    assert await there.intake.register(spec()) is Registered.UNCHANGED
    with pytest.raises(NexusError) as caught:
        await there.intake.register(spec(model="other"))
    assert caught.value.code is ErrorCode.ENGINE_CONFLICT


async def test_a_replaced_or_forgotten_engine_takes_its_blocks_along(here, there):
    await here.intake.register(spec())
    await there.directory.poll()
    for replica in (here, there):
        assert replica.push(0).state is ViewState.LIVE
        assert replica.core.stats()["blocks"] == 3
    view = here.directory.get(KEY).view
    await here.directory.poll()
    assert here.directory.get(KEY).view is view
    await here.intake.register(spec(model="other"), replace=True)
    await there.directory.poll()
    for replica in (here, there):
        replica.core.sweep()
        assert replica.core.stats()["blocks"] == 0
        assert replica.directory.get(KEY).view.state is ViewState.PENDING
        assert replica.directory.views_of("m") == ()
        assert replica.push(0).applied == 1
    assert await there.intake.forget(KEY)
    assert not await there.intake.forget(KEY)
    await here.directory.poll()
    for replica in (here, there):
        replica.core.sweep()
        assert (replica.names(), replica.core.stats()["blocks"]) == ([], 0)
        # What it told stays counted.
        assert replica.directory.totals().events["stored"] == 2
    fresh = Replica(there.directory._database)
    await fresh.directory.poll()
    assert fresh.names() == []


async def test_a_poll_takes_turns_with_a_registration(here):
    await asyncio.gather(
        *(here.directory.poll() for _ in range(5)),
        *(here.intake.register(spec(instance_id=f"e{number}")) for number in range(20)),
        *(here.directory.poll() for _ in range(5)),
    )
    assert len(here.names()) == 20


async def test_while_postgres_is_away_what_was_known_stays(here):
    await here.intake.register(spec())
    here.push(0)
    here.directory._database = Database(NOWHERE)
    with pytest.raises(NexusError) as caught:
        await here.directory.poll()
    assert caught.value.code is ErrorCode.DATABASE_UNAVAILABLE
    assert here.push(1).state is ViewState.LIVE


async def test_another_cluster_behind_the_same_address_is_loaded_anew(here, database):
    await here.intake.register(spec())
    await here.directory.poll()
    here.directory.apply(spec(instance_id="ghost"), here.clock.now())
    here.directory._fence = 2**50
    await here.directory.poll()
    assert here.names() == [KEY]


async def test_what_a_newer_version_stored_is_left_alone(here, there, database):
    await here.intake.register(spec())
    await here.intake.register(spec(instance_id="b"))
    async with database.write() as session:
        await session.execute(
            text("""UPDATE engine SET spec = spec || '{"sparsity": 3}' WHERE instance_id = 'a'""")
        )
    await there.directory.poll()
    assert there.names() == [EngineKey("b")]


async def test_there_is_a_limit(here, monkeypatch):
    monkeypatch.setattr("app.engines.intake.MAX_ENGINES", 1)
    await here.intake.register(spec())
    with pytest.raises(NexusError) as caught:
        await here.intake.register(spec(instance_id="b"))
    assert caught.value.code is ErrorCode.OVERLOADED
    assert await here.intake.register(spec(model="n"), replace=True) is Registered.REPLACED


async def test_silence_makes_an_engine_stale_and_a_sign_of_life_brings_it_back(here):
    await here.intake.register(spec())
    here.push(0)
    assert here.directory.counts()["live"] == 1
    here.clock.advance(31)
    assert here.directory.counts()["stale"] == 1
    assert here.push(0).repeated
    assert here.directory.counts()["live"] == 1


def naming(tenant: str, **fields) -> EngineSpec:
    """An engine with one state, the same for all of the tenant's."""
    state = msgspec.convert(backed_state(tenant), Registration)
    return spec(tenants=(tenant,), states=(state,), **fields)


async def live_states(database: Database) -> int:
    async with database.read() as session:
        count: int = await session.scalar(
            text("SELECT count(*) FROM state WHERE deleted_at IS NULL")
        )
    return count


async def test_states_are_there_whenever_a_registration_names_them(here, there, database):
    ranks = [naming("t", dp_rank=rank) for rank in range(4)]
    for _ in range(5):
        await asyncio.gather(
            *(replica.intake.register(one) for one in ranks for replica in (here, there))
        )
        assert await live_states(database) == 1
        # The last one of them takes it along, whichever it is.
        gone = await asyncio.gather(
            *(replica.intake.forget(one.key) for one in ranks for replica in (here, there))
        )
        assert (sum(gone), await live_states(database)) == (4, 0)
    # A registration and the leaving of the only other one at once.
    for _ in range(5):
        await here.intake.register(ranks[0])
        await asyncio.gather(here.intake.forget(ranks[0].key), there.intake.register(ranks[1]))
        assert await live_states(database) == 1
        await there.intake.forget(ranks[1].key)
        assert await live_states(database) == 0


async def test_whose_an_engine_is_says_its_row(here, there, database):
    await here.intake.register(naming("t"))
    others = frozenset({"u"})
    with pytest.raises(NexusError) as caught:
        await there.intake.register(naming("u"), replace=True, tenants=others)
    assert caught.value.code is ErrorCode.TENANT_FORBIDDEN
    assert not await there.intake.forget(KEY, tenants=others)
    with pytest.raises(NexusError) as caught:
        here.intake.push(KEY, 0, b"", lost=False, tenants=others)
    assert caught.value.code is ErrorCode.NOT_FOUND
    # In whatever words a newer version stored it.
    async with database.write() as session:
        await session.execute(text("""UPDATE engine SET spec = spec || '{"sparsity": 3}'"""))
    with pytest.raises(NexusError) as caught:
        await there.intake.register(naming("u"), replace=True, tenants=others)
    assert caught.value.code is ErrorCode.TENANT_FORBIDDEN
    assert await there.intake.forget(KEY, tenants=frozenset({"t", "u"}))
    assert await live_states(database) == 0


async def test_two_replicas_give_one_port_to_one_engine(here, there):
    listening = {"attach": Attach.BIND, "endpoint": f"tcp://127.0.0.1:{free_port()}"}
    await here.intake.register(spec(**listening))
    with pytest.raises(NexusError) as caught:
        await there.intake.register(spec(instance_id="b", **listening), tenants=frozenset({"t"}))
    assert caught.value.message.startswith("/endpoint: a (rank 0) is listened for there")
    with pytest.raises(NexusError) as caught:
        await there.intake.register(
            spec(instance_id="b", tenants=("u",), **listening), tenants=frozenset({"u"})
        )
    assert caught.value.message.startswith("/endpoint: another engine is listened for there")
    await here.intake.forget(KEY)
    assert await there.intake.register(spec(instance_id="b", **listening)) is Registered.CREATED
    for replica in (here, there):
        await replica.directory.stop()
