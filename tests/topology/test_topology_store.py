"""Versions of the topology in Postgres: the highest is in force, nothing is changed, puts race."""

import asyncio
import hashlib
import json
from itertools import pairwise

import asyncpg
import pytest
from sqlalchemy import text as sql

from app.clock import SystemClock
from app.db.session import Database
from app.errors import ErrorCode, NexusError
from app.topology.document import MAX_TOPOLOGY_BYTES
from app.topology.topology_store import NO_TOPOLOGY, TopologyStore
from tests.topology.fleets import text


@pytest.fixture
def store(database: Database) -> TopologyStore:
    return TopologyStore(database, SystemClock())


async def test_putting_what_is_in_force_changes_nothing(store) -> None:
    assert await store.latest() is None
    first, created = await store.put(text(1), "key-a", "first")
    assert created
    again, created = await store.put(text(1), "key-b", "second")
    assert not created
    assert again == first
    second, created = await store.put(text(2), "key-b")
    assert (created, second.version) == (True, first.version + 1)
    # Back to older content is another version: decisions record which.
    third, created = await store.put(text(1), "key-a")
    assert (created, third.version) == (True, second.version + 1)
    latest = await store.latest()
    assert (latest.version, latest.content_sha256) == (third.version, first.content_sha256)
    assert hashlib.sha256(latest.document.encode()).digest() == latest.content_sha256
    assert await store.get(first.version) is not None
    for unknown in (0, -1, third.version + 1, 2**63):
        assert await store.get(unknown) is None
    page, newest = await store.page(None, 2)
    assert ([one.version for one in page], newest) == ([third.version, second.version], 3)
    rest, _ = await store.page(second.version, 2)
    assert rest == [first]


async def test_an_expectation_that_is_outdated_is_refused(store) -> None:
    none_yet = frozenset({NO_TOPOLOGY})
    first, _ = await store.put(text(1), "k", expected=none_yet)
    for outdated in (none_yet, frozenset({first.version + 1}), frozenset()):
        with pytest.raises(NexusError, match=f"version {first.version}") as caught:
            await store.put(text(2), "k", expected=outdated)
        assert caught.value.code is ErrorCode.TOPOLOGY_CHANGED
    # A retry of what was done is safe, whatever it expected.
    assert await store.put(text(1), "k", expected=none_yet) == (first, False)
    _, created = await store.put(text(2), "k", expected=frozenset({first.version}))
    assert created


async def test_of_racing_puts_that_expect_the_same_one_wins(store) -> None:
    results = await asyncio.gather(
        *(store.put(text(n), "k", expected=frozenset({NO_TOPOLOGY})) for n in range(8)),
        return_exceptions=True,
    )
    won = [result for result in results if not isinstance(result, BaseException)]
    lost = [result for result in results if isinstance(result, NexusError)]
    assert (len(won), len(lost)) == (1, 7)
    assert {error.code for error in lost} == {ErrorCode.TOPOLOGY_CHANGED}
    assert (await store.latest()).version == won[0][0].version


async def test_racing_puts_without_expectation_all_become_versions(store) -> None:
    results = await asyncio.gather(*(store.put(text(n % 4), "k") for n in range(12)))
    created = [stored.version for stored, new in results if new]
    assert sorted(created) == list(range(1, len(created) + 1))
    page, latest = await store.page(None, 100)
    assert (len(page), latest) == (len(created), len(created))
    digests = [one.content_sha256 for one in page]
    assert all(one != other for one, other in pairwise(digests))


async def test_an_invalid_document_is_not_stored(store) -> None:
    with pytest.raises(NexusError):
        await store.put(text(-1), "k")
    with pytest.raises(NexusError) as caught:
        await store.put(text(), "k", "")
    assert caught.value.errors[0].pointer == "/query/message"
    assert await store.latest() is None


async def test_what_would_be_too_large_to_read_back_is_refused(store) -> None:
    """As it is stored, 1 is written 1.0."""
    names = [f"{n:04}" for n in range(1024)]
    links = [
        {"source": a, "target": b, "bandwidth_bytes_per_us": 1, "latency_us": 0, "both_ways": False}
        for a in names[:64]
        for b in names
    ]
    document = {
        "schema_version": "nexuskv.topology.v1",
        "nodes": [{"name": name} for name in names],
        "links": links,
        "engines": [{"engine_id": f"{n:05}", "node": names[0]} for n in range(60_000)],
    }
    content = json.dumps(document, separators=(",", ":"))
    assert len(content) <= MAX_TOPOLOGY_BYTES
    with pytest.raises(NexusError) as caught:
        await store.put(content, "k")
    assert caught.value.code is ErrorCode.REQUEST_TOO_LARGE


@pytest.mark.parametrize(
    "statement", ["UPDATE topology SET message = 'x'", "DELETE FROM topology", "TRUNCATE topology"]
)
async def test_what_is_stored_cannot_be_changed(store, database, statement) -> None:
    await store.put(text(), "k")
    with pytest.raises(asyncpg.RestrictViolationError, match="insert-only"):
        async with database.write() as session:
            await session.execute(sql(statement))
