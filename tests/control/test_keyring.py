"""Keys across replicas: made, found, revoked; guessed at; and with Postgres away."""

import asyncio
import json
import os
import secrets
from datetime import UTC, datetime

import pytest

from app.clock import SystemClock
from app.control.issue import issue_key
from app.control.keyring import LOOKUP_BURST, LOOKUPS_PER_S, MISS_TTL_S, KeyRing
from app.control.keys import Scope, generate
from app.control.repository import (
    StoredKey,
    get_or_create_secret,
    insert_key,
    key_by_sha256,
    keys_changed_since,
    list_keys,
    revoke_key,
)
from app.db.migrate import upgrade
from app.db.session import Database
from app.errors import ErrorCode, NexusError
from tests.control.logs import captured_logs
from tests.fixtures.database import with_database

NOWHERE = "postgresql://nobody@127.0.0.1:9/none"
NOW = datetime(2026, 1, 1, tzinfo=UTC)


def bearer(key) -> bytes:
    return b"Bearer " + key.text.encode()


def unknown() -> bytes:
    return bearer(generate(os.urandom))


def stored(key) -> StoredKey:
    return StoredKey(key.key_id, "k", key.sha256, ["bridge"], ["acme"], NOW, None)


async def revoke(database: Database, key_id: str) -> None:
    async with database.write() as session:
        assert await revoke_key(session, key_id, NOW) is not None


async def eventually(condition) -> None:
    async with asyncio.timeout(20):
        while not condition():
            await asyncio.sleep(0.005)


@pytest.fixture
async def ring(database, clock) -> KeyRing:
    ring = KeyRing(database, clock)
    await ring.refresh()
    return ring


async def test_a_key_is_known_by_its_text_alone(database, make_key, clock) -> None:
    key = await make_key(scopes=[Scope.BRIDGE, Scope.STATES_READ], tenants=["acme", "globex"])
    ring = KeyRing(database, clock)
    assert not ring.loaded
    await ring.refresh()
    assert ring.loaded
    principal = ring.find(bearer(key))
    assert principal is not None
    assert principal.key_id == key.key_id
    assert principal.scopes == {Scope.BRIDGE, Scope.STATES_READ}
    assert principal.tenants == {"acme", "globex"}
    for wrong in (
        None,
        b"",
        key.text.encode(),
        b"Basic " + key.text.encode(),
        b"Bearer " + key.key_id.encode(),
        bearer(key)[:-1] + (b"a" if bearer(key)[-1:] != b"a" else b"b"),
    ):
        assert ring.find(wrong) is None


async def test_the_text_is_nowhere_in_the_database(database, make_key) -> None:
    key = await make_key()
    async with database.read() as session:
        (row,) = await list_keys(session)
    assert row.sha256 == key.sha256
    assert key.text[-43:] not in repr(row)


async def test_a_key_of_all_tenants(database, make_key, ring) -> None:
    key = await make_key(scopes=[Scope.ADMIN], tenants=["acme", "*"])
    await ring.refresh()
    principal = ring.find(bearer(key))
    assert principal is not None
    assert principal.tenants is None


async def test_revocation_reaches_another_replica_by_polling(database, make_key, clock) -> None:
    key, other = await make_key(), await make_key()
    rings = [KeyRing(database, clock) for _ in range(2)]
    for ring in rings:
        await ring.refresh()
    await revoke(database, key.key_id)
    for ring in rings:
        await ring.refresh()
        assert ring.find(bearer(key)) is None
        assert await ring.find_or_load(bearer(key)) is None
        assert ring.find(bearer(other)) is not None


async def test_watching_applies_changes_without_being_asked(database, make_key) -> None:
    ring = KeyRing(database, SystemClock())
    watch = asyncio.create_task(ring.watch(0.01))
    try:
        await eventually(lambda: ring.loaded)
        key = await make_key()
        await eventually(lambda: ring.find(bearer(key)) is not None)
        await revoke(database, key.key_id)
        await eventually(lambda: ring.find(bearer(key)) is None)
    finally:
        watch.cancel()
        await asyncio.gather(watch, return_exceptions=True)


async def test_a_change_that_commits_late_is_not_lost(database, ring, make_key) -> None:
    """Its transaction began, and took its id, before others that were committed and polled."""
    late, revoked_late = generate(os.urandom), await make_key()
    await ring.refresh()
    async with database.write() as session:
        await insert_key(session, stored(late))
        await revoke_key(session, revoked_late.key_id, NOW)
        for _ in range(3):
            early = await make_key()
            await ring.refresh()
            assert ring.find(bearer(early)) is not None
        assert ring.find(bearer(late)) is None
        assert ring.find(bearer(revoked_late)) is not None
    await ring.refresh()
    assert ring.find(bearer(late)) is not None
    assert ring.find(bearer(revoked_late)) is None


async def test_a_quiet_poll_reads_no_rows_again(database, ring, make_key) -> None:
    await make_key()
    await ring.refresh()
    await ring.refresh()

    async def next_poll() -> list[str]:
        async with database.read() as session:
            return [key.key_id for key in (await keys_changed_since(session, ring._fence)).keys]

    assert await next_poll() == []
    newest = await make_key()
    assert await next_poll() == [newest.key_id]


async def test_a_revocation_is_final_whatever_arrives_after(database, ring, make_key) -> None:
    """A look-up may have read the key before the revocation that a poll applied meanwhile."""
    key = await make_key()
    async with database.read() as session:
        read_before = await key_by_sha256(session, key.sha256)
    await revoke(database, key.key_id)
    await ring.refresh()
    ring._apply([read_before])
    assert ring.find(bearer(key)) is None


async def test_a_restored_database_is_read_anew(database, ring, make_key) -> None:
    key, gone = await make_key(), generate(os.urandom)
    ring._apply([stored(gone)])
    ring._fence = 2**62
    await ring.refresh()
    assert ring.find(bearer(key)) is not None
    assert ring.find(bearer(gone)) is None
    assert ring._fence < 2**62


async def test_a_key_made_since_the_last_poll_works_at_once(ring, make_key, statements) -> None:
    key = await make_key()
    statements.clear()
    assert ring.find(bearer(key)) is None
    found = await asyncio.gather(*(ring.find_or_load(bearer(key)) for _ in range(50)))
    assert {principal.key_id for principal in found} == {key.key_id}
    assert len(statements) == 1
    assert ring.find(bearer(key)) is found[0]


async def test_a_caller_that_hangs_up_does_not_fail_the_others(ring, make_key) -> None:
    key = await make_key()
    first = asyncio.create_task(ring.find_or_load(bearer(key)))
    second = asyncio.create_task(ring.find_or_load(bearer(key)))
    await asyncio.sleep(0)
    first.cancel()
    principal = await second
    assert principal is not None
    assert first.cancelled()


async def test_an_unknown_key_is_looked_up_once(ring, clock, statements) -> None:
    statements.clear()
    guess = unknown()
    for _ in range(20):
        assert await ring.find_or_load(guess) is None
    assert len(statements) == 1
    clock.advance(MISS_TTL_S)
    assert await ring.find_or_load(guess) is None
    assert len(statements) == 2


async def test_what_is_no_key_never_reaches_postgres(ring, statements) -> None:
    statements.clear()
    for junk in (b"Bearer x", b"Bearer nkv_1_2", b"Basic abc", b"", None, b"Bearer " + b"x" * 9999):
        assert await ring.find_or_load(junk) is None
    assert statements == []


async def test_guessing_keys_cannot_hammer_postgres(
    ring, clock, make_key, statements, monkeypatch
) -> None:
    monkeypatch.setattr("app.control.keyring.MAX_MISSES", 16)
    key = await make_key()
    await ring.refresh()
    statements.clear()
    for _ in range(LOOKUP_BURST):
        assert await ring.find_or_load(unknown()) is None
    for _ in range(200):
        with pytest.raises(NexusError) as refusal:
            await ring.find_or_load(unknown())
        assert refusal.value.code is ErrorCode.OVERLOADED
    assert len(statements) == LOOKUP_BURST
    assert len(ring._misses) <= 16
    assert ring.find(bearer(key)) is not None
    assert await ring.find_or_load(bearer(key)) is not None
    clock.advance(1)
    for _ in range(LOOKUPS_PER_S):
        assert await ring.find_or_load(unknown()) is None
    with pytest.raises(NexusError):
        await ring.find_or_load(unknown())


async def test_guesses_at_once_share_a_few_connections(ring, statements) -> None:
    statements.clear()
    answers = await asyncio.gather(
        *(ring.find_or_load(unknown()) for _ in range(100)), return_exceptions=True
    )
    refused = [answer for answer in answers if isinstance(answer, NexusError)]
    assert {error.code for error in refused} == {ErrorCode.OVERLOADED}
    assert len(statements) == 100 - len(refused) <= 8


async def test_started_without_postgres(clock) -> None:
    database = Database(NOWHERE, connect_timeout_s=1)
    ring = KeyRing(database, clock)
    with pytest.raises(NexusError) as refresh:
        await ring.refresh()
    assert refresh.value.code is ErrorCode.DATABASE_UNAVAILABLE
    assert not ring.loaded
    with pytest.raises(NexusError) as lookup:
        await ring.find_or_load(unknown())
    assert lookup.value.code is ErrorCode.DATABASE_UNAVAILABLE
    assert await ring.find_or_load(b"Bearer junk") is None
    await database.close()


async def test_postgres_lost_and_found(test_server, make_key, clock) -> None:
    """Known keys keep working, unknown ones are told to come back, and the watch outlives it."""
    name, url = test_server.clone()
    database = Database(url, connect_timeout_s=1)
    key = await make_key(into=database)
    ring = KeyRing(database, clock)
    await ring.refresh()
    await database.close()
    test_server.drop(name)

    watch = asyncio.create_task(ring.watch(0.01))
    try:
        await eventually(lambda: not ring._reachable)
        assert ring.find(bearer(key)) is not None
        assert await ring.find_or_load(bearer(key)) is not None
        with pytest.raises(NexusError) as lookup:
            await ring.find_or_load(unknown())
        assert lookup.value.code is ErrorCode.DATABASE_UNAVAILABLE

        assert test_server.create(name, source=test_server.template) == url
        await eventually(lambda: ring._reachable)
    finally:
        watch.cancel()
        await asyncio.gather(watch, return_exceptions=True)
    await database.close()
    test_server.drop(name)


async def test_started_before_the_first_migration(empty_database_url) -> None:
    """It waits, says so once, and goes on by itself when the tables are there."""
    database = Database(empty_database_url)
    ring = KeyRing(database, SystemClock())
    with captured_logs() as log:
        watch = asyncio.create_task(ring.watch(0.01))
        try:
            await eventually(lambda: not ring._reachable)
            await asyncio.to_thread(lambda: asyncio.run(upgrade(empty_database_url)))
            await eventually(lambda: ring.loaded)
        finally:
            watch.cancel()
            await asyncio.gather(watch, return_exceptions=True)
        events = [json.loads(line)["event"] for line in log.getvalue().splitlines()]
    assert events.count("keys_not_refreshed") == 1
    await database.close()


async def test_a_name_that_does_not_exist_is_an_outage_too(test_server, clock) -> None:
    database = Database(with_database(test_server.url, f"none_{secrets.token_hex(4)}"))
    with pytest.raises(NexusError) as refresh:
        await KeyRing(database, clock).refresh()
    assert refresh.value.code is ErrorCode.DATABASE_UNAVAILABLE
    await database.close()


@pytest.mark.parametrize(
    ("changes", "pointer"),
    [
        ({"name": " "}, "/name"),
        ({"name": "x" * 201}, "/name"),
        ({"name": "a\nb"}, "/name"),
        ({"scopes": []}, "/scopes"),
        ({"tenants": []}, "/tenants"),
        ({"tenants": ["acme", ""]}, "/tenants"),
        ({"tenants": ["acme\x00"]}, "/tenants"),
    ],
)
async def test_what_no_key_can_be_made_of(make_key, database, changes, pointer: str) -> None:
    with pytest.raises(NexusError) as refusal:
        await make_key(**changes)
    assert refusal.value.code is ErrorCode.INVALID_FIELD
    assert refusal.value.errors[0].pointer == pointer
    async with database.read() as session:
        assert await list_keys(session) == []


async def test_revoking_twice_keeps_the_first_time(database, make_key) -> None:
    key = await make_key()
    later = datetime(2027, 1, 1, tzinfo=UTC)
    async with database.write() as session:
        first = await revoke_key(session, key.key_id, NOW)
    async with database.write() as session:
        second = await revoke_key(session, key.key_id, later)
        assert await revoke_key(session, "nobody", NOW) is None
    assert first == second
    assert first is not None
    assert first.revoked_at == NOW


async def test_replicas_agree_on_a_deployment_secret(database) -> None:
    async def start() -> bytes:
        async with database.write() as session:
            return await get_or_create_secret(session, "hash", os.urandom(32))

    secrets_seen = set(await asyncio.gather(*(start() for _ in range(8))))
    assert len(secrets_seen) == 1
    assert len(secrets_seen.pop()) == 32
    async with database.write() as session:
        other = await get_or_create_secret(session, "other", b"x" * 32)
    assert other == b"x" * 32


async def test_issuing_into_an_absent_database_says_so() -> None:
    database = Database(NOWHERE, connect_timeout_s=1)
    with pytest.raises(NexusError) as refusal:
        await issue_key(
            database, SystemClock(), os.urandom, name="k", scopes=[Scope.ADMIN], tenants=["*"]
        )
    assert refusal.value.code is ErrorCode.DATABASE_UNAVAILABLE
    await database.close()
