"""The policy in force: followed, kept through outages and bad rows, and never mixed."""

import asyncio
import hashlib

import pytest
from sqlalchemy import text as sql

from app.clock import SystemClock
from app.db.session import Database
from app.errors import ErrorCode, NexusError
from app.policy.document import load_policy
from app.policy.provider import PolicyProvider
from tests.control.clock import SetClock
from tests.control.logs import captured_logs
from tests.fixtures.outage import eventually
from tests.policies.documents import text

FILE = load_policy(text(999))


async def activate_raw(database: Database, document: str, digest: bytes | None = None) -> int:
    """Put a row there as no build of ours would, and make it the active one."""
    async with database.write() as session:
        number = await session.scalar(
            sql(
                "INSERT INTO execution_policy"
                " (content_sha256, document, source, key_id, created_at)"
                " VALUES (:digest, :document, '', 'k', now()) RETURNING number"
            ),
            {"digest": digest or hashlib.sha256(document.encode()).digest(), "document": document},
        )
        await session.execute(
            sql(
                "INSERT INTO policy_activation (number, activated_at, key_id)"
                " VALUES (:number, now(), 'k')"
            ),
            {"number": number},
        )
    return number


async def test_without_an_activation_the_file_is_in_force(database, store) -> None:
    provider = PolicyProvider(database, FILE, SystemClock())
    assert not provider.loaded
    assert provider.current.policy is FILE
    await store.push(text(1), "k")
    await provider.refresh()
    assert provider.loaded
    assert provider.current.number is None
    assert provider.current.label == f"file:{FILE.version}"


async def test_activations_come_into_force_and_who_holds_one_keeps_it(database, store) -> None:
    provider = PolicyProvider(database, FILE, SystemClock())
    a, _ = await store.push(text(1), "k")
    b, _ = await store.push(text(2), "k")
    await store.activate(a.number, "op")
    await provider.refresh()
    held = provider.current
    assert held.label == f"{a.number}:sha256:{a.content_sha256.hex()[:16]}"
    assert held.policy.quota_admission_policy.max_entries == 1
    await store.activate(b.number, "op")
    await provider.refresh()
    assert provider.current.number == b.number
    assert provider.current.policy.quota_admission_policy.max_entries == 2
    assert (held.number, held.policy.quota_admission_policy.max_entries) == (a.number, 1)
    await store.activate(a.number, "op")
    await provider.refresh()
    assert provider.current.policy == held.policy
    assert provider.current.activation != held.activation


async def test_a_poll_without_news_reads_one_row_and_changes_nothing(database, store) -> None:
    provider = PolicyProvider(database, FILE, SystemClock())
    a, _ = await store.push(text(1), "k")
    await store.activate(a.number, "op")
    await provider.refresh()
    before = provider.current
    await provider.refresh()
    assert provider.current is before


async def test_watching_follows_without_being_asked(database, store) -> None:
    providers = [PolicyProvider(database, FILE, SystemClock(), interval_s=0.01) for _ in range(2)]
    watches = [asyncio.create_task(provider.watch()) for provider in providers]
    try:
        await asyncio.gather(*(provider.wait_loaded() for provider in providers))
        for number in range(3):
            stored, _ = await store.push(text(number), "k")
            await store.activate(stored.number, "op")
            for provider in providers:
                await eventually(lambda p=provider, s=stored: p.current.number == s.number)
    finally:
        for watch in watches:
            watch.cancel()
        await asyncio.gather(*watches, return_exceptions=True)


async def test_an_outage_keeps_the_last_policy_and_is_logged_once(
    database, proxied, proxy, store
) -> None:
    a, _ = await store.push(text(1), "k")
    b, _ = await store.push(text(2), "k")
    await store.activate(a.number, "op")
    with captured_logs() as log:
        provider = PolicyProvider(proxied, FILE, SystemClock(), interval_s=0.01)
        watch = asyncio.create_task(provider.watch())
        await eventually(lambda: provider.current.number == a.number)
        proxy.go_away()
        await eventually(lambda: proxy.refused > 3)
        await store.activate(b.number, "op")
        assert provider.current.number == a.number
        assert provider.status().fault is None
        proxy.come_back()
        await eventually(lambda: provider.current.number == b.number)
        watch.cancel()
        await asyncio.gather(watch, return_exceptions=True)
    assert log.getvalue().count("policy_not_refreshed") == 1
    assert log.getvalue().count("policy_refreshed_again") == 1


async def test_staleness_grows_only_while_postgres_is_away(proxied, proxy) -> None:
    clock = SetClock()
    provider = PolicyProvider(proxied, FILE, clock)
    clock.advance(3)
    assert provider.stale_s() == 3
    await provider.refresh()
    assert provider.stale_s() == 0
    proxy.go_away()
    clock.advance(7)
    with pytest.raises(NexusError) as caught:
        await provider.refresh()
    assert caught.value.code is ErrorCode.DATABASE_UNAVAILABLE
    await provider.refresh_now()
    assert provider.stale_s() == 7
    assert provider.current.policy is FILE


@pytest.mark.parametrize(
    ("document", "digest", "reason"),
    [
        ('{"schema_version":"nexuskv.execution_policy.v3"}', None, "schema_version"),
        ("not a policy", None, "execution policy"),
        (text(5), b"x" * 32, "digest"),
    ],
)
async def test_what_cannot_be_loaded_never_comes_into_force(
    database, store, document: str, digest: bytes | None, reason: str
) -> None:
    provider = PolicyProvider(database, FILE, SystemClock())
    a, _ = await store.push(text(1), "k")
    await store.activate(a.number, "op")
    await provider.refresh()
    good = provider.current
    bad = await activate_raw(database, document, digest)
    with captured_logs() as log:
        for _ in range(3):
            await provider.refresh()
    assert provider.current is good
    fault = provider.status().fault
    assert fault is not None
    assert fault.activation.number == bad
    assert reason in fault.reason
    assert provider.stale_s() < 5
    assert log.getvalue().count("policy_not_usable") == 1
    # A replica that starts now has no good one to keep but its file.
    fresh = PolicyProvider(database, FILE, SystemClock())
    await fresh.refresh()
    assert (fresh.current.policy, fresh.loaded) == (FILE, True)
    await store.activate(a.number, "op")
    await provider.refresh()
    assert provider.status().fault is None
    assert provider.current.policy == good.policy
