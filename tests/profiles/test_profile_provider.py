"""The profiles in force: which fits best, followed, and kept through outages and bad rows."""

import asyncio
import hashlib

import pytest
from sqlalchemy import text as sql

from app.clock import SystemClock
from app.db.session import Database
from app.errors import ErrorCode, NexusError
from app.profiles.provider import Fit, ProfileProvider
from tests.control.clock import SetClock
from tests.control.logs import captured_logs
from tests.fixtures.outage import eventually
from tests.profiles.documents import text


async def store_raw(database: Database, document: str, digest: bytes | None = None) -> int:
    """Put a row of model "m" there as no build of ours would."""
    async with database.write() as session:
        return await session.scalar(
            sql(
                "INSERT INTO cost_profile (name, model, hardware, content_sha256, document, source,"
                " key_id, created_at) VALUES ('n', 'm', '', :digest, :document, '', 'k', now())"
                " RETURNING number"
            ),
            {"digest": digest or hashlib.sha256(document.encode()).digest(), "document": document},
        )


async def test_without_a_profile_the_built_in_one_is_in_force(provider, reference) -> None:
    assert not provider.loaded
    await provider.refresh()
    assert provider.loaded
    assert provider.current.best("m", "h") == (reference, None)
    assert provider.current.fit("m", "h") is Fit.BUILT_IN
    assert provider.changes == 0


async def test_the_best_fitting_profile_is_in_force(provider, store) -> None:
    asked = [("m", "h"), ("m", "x"), ("x", "h"), ("x", "x"), ("m", ""), ("", "h"), ("", "")]
    made: dict[str, int | None] = {"built_in": None}
    expected = ["built_in"] * len(asked)
    for fit, scope, met in (
        ("any", {}, (0, 1, 2, 3, 4, 5, 6)),
        ("hardware", {"hardware": "h"}, (0, 2, 5)),
        ("model", {"model": "m"}, (0, 1, 4)),
        ("exact", {"model": "m", "hardware": "h"}, (0,)),
    ):
        stored, _ = await store.push(text(name=fit, **scope), "k")
        made[fit] = stored.number
        for place in met:
            expected[place] = fit
        await provider.refresh()
        current = provider.current
        assert [current.fit(*pair).value for pair in asked] == expected
        assert [current.best(*pair).number for pair in asked] == [made[one] for one in expected]
    assert len(provider.current) == 4
    assert provider.current.best("m", "h").profile.name == "exact"


async def test_the_newest_version_of_equal_fit_is_in_force_and_a_holder_keeps_its(
    provider, store
) -> None:
    first, _ = await store.push(text(1, model="m"), "k")
    await provider.refresh()
    held = provider.current
    second, _ = await store.push(text(2, model="m", name="another"), "k")
    await provider.refresh()
    assert provider.current.best("m", "h").number == second.number
    assert provider.current.best("m", "h").profile.prefill.per_token_us == 2
    assert held.best("m", "h").number == first.number
    # Content that is stored already is not newer for being sent again.
    await store.push(text(1, model="m"), "k")
    before = provider.current
    await provider.refresh()
    assert provider.current is before


async def test_watching_follows_within_a_second(database, reference, store) -> None:
    provider = ProfileProvider(database, reference, SystemClock())
    watch = asyncio.create_task(provider.watch())
    try:
        await provider.wait_loaded()
        stored, _ = await store.push(text(3), "k")
        async with asyncio.timeout(1):
            await eventually(lambda: provider.current.best("", "").number == stored.number)
    finally:
        watch.cancel()
        await asyncio.gather(watch, return_exceptions=True)


async def test_an_outage_keeps_the_last_known_and_is_logged_once(
    proxied, proxy, reference, store
) -> None:
    first, _ = await store.push(text(1), "k")
    with captured_logs() as log:
        provider = ProfileProvider(proxied, reference, SystemClock(), interval_s=0.01)
        watch = asyncio.create_task(provider.watch())
        await eventually(lambda: provider.current.best("", "").number == first.number)
        proxy.go_away()
        await eventually(lambda: proxy.refused > 3)
        second, _ = await store.push(text(2), "k")
        assert provider.current.best("", "").number == first.number
        assert provider.status().fault is None
        proxy.come_back()
        await eventually(lambda: provider.current.best("", "").number == second.number)
        watch.cancel()
        await asyncio.gather(watch, return_exceptions=True)
    assert log.getvalue().count("not_refreshed") == 1
    assert log.getvalue().count("refreshed_again") == 1


async def test_staleness_grows_only_while_postgres_is_away(proxied, proxy, reference) -> None:
    clock = SetClock()
    provider = ProfileProvider(proxied, reference, clock)
    await provider.refresh()
    assert provider.stale_s() == 0
    proxy.go_away()
    clock.advance(7)
    with pytest.raises(NexusError) as caught:
        await provider.refresh()
    assert caught.value.code is ErrorCode.DATABASE_UNAVAILABLE
    await provider.refresh_now()
    assert provider.status().stale_s == 7


@pytest.mark.parametrize(
    ("document", "digest", "reason"),
    [
        (text(9, model="m", schema_version="nexuskv.cost_profile.v2"), None, "schema_version"),
        (text(9, model="m", new_term_us=1), None, "new_term_us"),
        ("no profile", None, "cost profile"),
        (text(9, model="other"), None, "another model"),
        (text(9, model="m"), b"x" * 32, "digest"),
    ],
)
async def test_what_cannot_be_read_never_comes_into_force(
    database, provider, reference, store, *, document: str, digest: bytes | None, reason: str
) -> None:
    good, _ = await store.push(text(1, model="m"), "k")
    await provider.refresh()
    bad = await store_raw(database, document, digest)
    with captured_logs() as log:
        for _ in range(3):
            await provider.refresh()
    # Who starts now reads the older one as well.
    fresh = ProfileProvider(database, reference, SystemClock())
    await fresh.refresh()
    for one in (provider, fresh):
        assert one.current.best("m", "h").number == good.number
        fault = one.status().fault
        assert fault is not None
        assert fault.number == bad
        assert reason in fault.reason
    assert log.getvalue().count("profile_not_usable") == 1
    better, _ = await store.push(text(2, model="m"), "k")
    await provider.refresh()
    assert provider.status().fault is None
    assert provider.current.best("m", "h").number == better.number


async def test_another_database_is_read_from_its_beginning(database, provider, store) -> None:
    await store.push(text(1, model="m"), "k")
    await store.push(text(2), "k")
    await provider.refresh()
    async with database.write() as session:
        await session.execute(sql("ALTER TABLE cost_profile DISABLE TRIGGER ALL"))
        await session.execute(sql("DELETE FROM cost_profile WHERE number > 1"))
    await provider.refresh()
    assert [known.number for known in provider.current.found.values()] == [1]
