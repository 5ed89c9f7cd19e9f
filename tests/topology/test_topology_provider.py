"""The topology in force: followed, and kept through outages and rows of newer builds."""

import asyncio
import hashlib

import pytest
from sqlalchemy import text as sql

from app.clock import SystemClock
from app.contract.enums import TierKind
from app.db.session import Database
from app.planner.links import NO_LINK, NO_LINKS, Link
from app.topology.topology_provider import TopologyProvider
from app.topology.topology_store import TopologyStore
from tests.control.logs import captured_logs
from tests.fixtures.outage import eventually
from tests.topology.fleets import link, text


@pytest.fixture
def store(database: Database) -> TopologyStore:
    return TopologyStore(database, SystemClock())


@pytest.fixture
def provider(database: Database) -> TopologyProvider:
    return TopologyProvider(database, SystemClock())


async def store_raw(database: Database, document: str, digest: bytes | None = None) -> int:
    """Put a row there as no build of ours would."""
    async with database.write() as session:
        return await session.scalar(
            sql(
                "INSERT INTO topology (content_sha256, document, key_id, created_at)"
                " VALUES (:digest, :document, 'k', now()) RETURNING version"
            ),
            {"digest": digest or hashlib.sha256(document.encode()).digest(), "document": document},
        )


async def test_without_a_topology_nothing_is_known(provider) -> None:
    await provider.refresh()
    current = provider.current
    assert provider.loaded
    assert (current.version, current.links) == (None, NO_LINKS)
    assert (dict(current.engine_nodes), dict(current.tiers)) == ({}, {})
    assert provider.changes == 0


async def test_what_is_put_comes_into_force_and_who_holds_one_keeps_it(provider, store) -> None:
    one_way = link("b", "a", max_in_flight=4, latency_us=9, both_ways=False)
    first, _ = await store.put(text(), "k")
    await provider.refresh()
    held = provider.current
    assert held.version == first.version
    assert held.links.get("a", "b") == held.links.get("b", "a") == Link(5, 50_000, 0, 0)
    assert held.links.get("a", "a") == NO_LINK
    assert held.engine_nodes == {"e1": "a", "e2": "b"}
    assert (held.engines["e1"].hardware, held.engines["e2"].model) == ("h200", "")
    assert held.tiers == {("a", TierKind.HOST_DRAM): (2**40, 0)}
    second, _ = await store.put(text(links=[one_way]), "k")
    await provider.refresh()
    assert provider.current.version == second.version
    assert provider.current.links.get("b", "a") == Link(9, 50_000, 0, 4)
    assert provider.current.links.get("a", "b") == NO_LINK
    assert held.links.get("a", "b").latency_us == 5
    before = provider.current
    await provider.refresh()
    assert provider.current is before


async def test_watching_follows_within_a_second(provider, store) -> None:
    watch = asyncio.create_task(provider.watch())
    try:
        await provider.wait_loaded()
        stored, _ = await store.put(text(), "k")
        async with asyncio.timeout(1):
            await eventually(lambda: provider.current.version == stored.version)
    finally:
        watch.cancel()
        await asyncio.gather(watch, return_exceptions=True)


async def test_an_outage_keeps_the_last_known_and_is_logged_once(proxied, proxy, store) -> None:
    first, _ = await store.put(text(1), "k")
    with captured_logs() as log:
        provider = TopologyProvider(proxied, SystemClock(), interval_s=0.01)
        watch = asyncio.create_task(provider.watch())
        await eventually(lambda: provider.current.version == first.version)
        proxy.go_away()
        await eventually(lambda: proxy.refused > 3)
        second, _ = await store.put(text(2), "k")
        assert provider.current.version == first.version
        assert provider.status().fault is None
        proxy.come_back()
        await eventually(lambda: provider.current.version == second.version)
        watch.cancel()
        await asyncio.gather(watch, return_exceptions=True)
    assert log.getvalue().count("not_refreshed") == 1
    assert log.getvalue().count("refreshed_again") == 1


@pytest.mark.parametrize(
    ("document", "digest", "reason"),
    [
        (text(schema_version="nexuskv.topology.v2"), None, "schema_version"),
        (text(racks=[]), None, "racks"),
        ("no topology", None, "topology"),
        (text(7), b"x" * 32, "digest"),
    ],
)
async def test_what_cannot_be_read_never_comes_into_force(
    database, provider, store, *, document: str, digest: bytes | None, reason: str
) -> None:
    good, _ = await store.put(text(), "k")
    await provider.refresh()
    bad = await store_raw(database, document, digest)
    with captured_logs() as log:
        for _ in range(3):
            await provider.refresh()
    assert provider.current.version == good.version
    fault = provider.status().fault
    assert fault is not None
    assert fault.version == bad
    assert reason in fault.reason
    assert log.getvalue().count("topology_not_usable") == 1
    # A replica that starts now goes on with the newest that it can read.
    fresh = TopologyProvider(database, SystemClock())
    await fresh.refresh()
    assert fresh.current.version == good.version
    assert fresh.status().fault is not None
    better, _ = await store.put(text(8), "k")
    await provider.refresh()
    assert provider.status().fault is None
    assert provider.current.version == better.version


async def test_another_database_is_read_anew(database, provider, store) -> None:
    for latency_us in (1, 2):
        await store.put(text(latency_us), "k")
    await provider.refresh()
    async with database.write() as session:
        await session.execute(sql("ALTER TABLE topology DISABLE TRIGGER ALL"))
        await session.execute(sql("DELETE FROM topology WHERE version > 1"))
    await provider.refresh()
    assert (provider.current.version, provider.current.links.get("a", "b").latency_us) == (1, 1)
    async with database.write() as session:
        await session.execute(sql("DELETE FROM topology"))
    await provider.refresh()
    assert provider.current.version is None
