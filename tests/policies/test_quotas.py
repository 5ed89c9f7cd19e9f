"""Quotas under one row lock a tenant: raced for, retried, crashed, expired, released."""

import asyncio
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st
from sqlalchemy import text as sql

from app.policy.document import QuotaAdmissionPolicy, QuotaMode, load_policy
from app.quota.charges import (
    MAX_CHARGE_BYTES,
    MAX_CHARGE_ID_CHARS,
    charge,
    charge_transfer,
    release,
    release_payloads,
    release_worker,
    settle_in,
    shrink,
    usage,
)
from app.quota.decision import ChargeKind, QuotaLimit, QuotaUsage, QuotaVerdict, decide
from tests.policies.documents import quotas

NOW = datetime(2026, 1, 1, tzinfo=UTC)
TEN_ENTRIES = load_policy(quotas("enforced", entries=10))
KIB = 1024


class Held:
    """One database's charges, each call in a transaction of its own."""

    def __init__(self, database) -> None:
        self.database = database

    async def charge(
        self, charge_id: str, payload_bytes: int = 1, policy=TEN_ENTRIES, **changes
    ) -> QuotaVerdict:
        options = {"tenant": "acme", "now": NOW, "expires_at": None} | changes
        tenant = options.pop("tenant")
        async with self.database.write() as session:
            return await charge(session, policy, tenant, charge_id, payload_bytes, **options)

    async def transfer(self, charge_id: str, policy) -> QuotaVerdict:
        async with self.database.write() as session:
            return await charge_transfer(
                session, policy, "acme", charge_id, now=NOW, expires_at=NOW + timedelta(minutes=1)
            )

    async def release(self, charge_id: str, **options) -> bool:
        async with self.database.write() as session:
            return await release(session, "acme", charge_id, **options)

    async def usage(self, tenant: str = "acme", now: datetime = NOW) -> QuotaUsage:
        async with self.database.read() as session:
            return await usage(session, tenant, now)


@pytest.fixture
async def held(database):
    yield Held(database)
    # Whatever a test did, the sums that decide are those of the charges.
    async with database.read() as session:
        drift = await session.execute(
            sql(
                "SELECT tenant, payload_bytes, entries, transfers FROM quota_tenant EXCEPT"
                " SELECT t.tenant,"
                " coalesce(sum(c.payload_bytes) FILTER (WHERE c.kind = 'payload'), 0),"
                " coalesce(sum(c.entries) FILTER (WHERE c.kind = 'payload'), 0),"
                " coalesce(sum(c.entries) FILTER (WHERE c.kind = 'transfer'), 0)"
                " FROM quota_tenant t LEFT JOIN quota_charge c USING (tenant) GROUP BY t.tenant"
            )
        )
        assert drift.all() == []


async def test_fifty_at_once_against_ten_admit_ten(held) -> None:
    verdicts = await asyncio.gather(*(held.charge(f"c-{n}", KIB) for n in range(50)))
    assert sum(verdict.allowed for verdict in verdicts) == 10
    refused = [verdict for verdict in verdicts if not verdict.allowed]
    assert {verdict.exceeded for verdict in refused} == {(QuotaLimit.MAX_ENTRIES,)}
    assert {(v.used_entries, v.limit_entries) for v in refused} == {(10, 10)}
    assert await held.usage() == QuotaUsage(10 * KIB, 10, 0)


async def test_a_storm_of_retries_is_charged_once(held) -> None:
    verdicts = await asyncio.gather(*(held.charge("same", KIB) for _ in range(50)))
    assert all(verdict.allowed for verdict in verdicts)
    assert sum(not verdict.repeated for verdict in verdicts) == 1
    assert await held.usage() == QuotaUsage(KIB, 1, 0)


async def test_a_retry_is_allowed_over_the_limit(held) -> None:
    for number in range(10):
        await held.charge(f"c-{number}")
    tightened = load_policy(quotas("enforced", entries=2))
    again = await held.charge("c-9", policy=tightened)
    assert (again.allowed, again.repeated, again.exceeded) == (True, True, ())
    assert not (await held.charge("c-10", policy=tightened)).allowed


async def test_a_crash_leaks_nothing(held, database) -> None:
    async def crash() -> None:
        async with database.write() as session:
            await charge(session, TEN_ENTRIES, "acme", "lost", KIB, now=NOW, expires_at=None)
            raise RuntimeError("crash")

    with pytest.raises(RuntimeError, match="crash"):
        await crash()
    assert await held.usage() == QuotaUsage()
    assert not await held.release("lost")
    assert not (await held.charge("lost", KIB)).repeated


async def test_bytes_are_limited_to_the_byte(held) -> None:
    policy = load_policy(quotas("enforced", payload_bytes=10 * KIB))
    assert (await held.charge("a", 10 * KIB - 1, policy)).allowed
    over = await held.charge("b", 2, policy)
    assert (over.allowed, over.exceeded) == (False, (QuotaLimit.MAX_PAYLOAD_BYTES,))
    assert over.used_payload_bytes == 10 * KIB - 1
    assert (await held.charge("c", 1, policy)).used_payload_bytes == 10 * KIB


async def test_advisory_allows_and_says_so_and_disabled_only_counts(held) -> None:
    advisory = load_policy(quotas("advisory", payload_bytes=1, entries=1))
    assert not (await held.charge("a", 1, advisory)).advisory_exceeded
    over = await held.charge("b", 1, advisory)
    assert over.advisory_exceeded
    assert over.exceeded == (QuotaLimit.MAX_PAYLOAD_BYTES, QuotaLimit.MAX_ENTRIES)
    assert not (await held.charge("b", 1, advisory)).advisory_exceeded
    disabled = load_policy(quotas("disabled", payload_bytes=1, entries=1))
    verdict = await held.charge("c", 1, disabled)
    assert (verdict.allowed, verdict.exceeded) == (True, ())
    assert await held.usage() == QuotaUsage(3, 3, 0)


async def test_tenants_do_not_count_for_each_other(held) -> None:
    one = load_policy(quotas("enforced", entries=1))
    assert (await held.charge("same", policy=one, tenant="acme")).allowed
    assert (await held.charge("same", policy=one, tenant="globex")).allowed
    assert not (await held.charge("other", policy=one, tenant="globex")).allowed
    assert await held.usage("nobody") == QuotaUsage()


async def test_a_release_gives_back_once(held) -> None:
    for number in range(10):
        await held.charge(f"c-{number}", KIB)
    results = await asyncio.gather(*(held.release("c-3") for _ in range(10)))
    assert sum(results) == 1
    assert await held.usage() == QuotaUsage(9 * KIB, 9, 0)
    assert (await held.charge("new", KIB)).allowed
    assert not (await held.charge("newer", KIB)).allowed


async def test_a_reservation_expires_unless_it_is_settled(held) -> None:
    soon, later = NOW + timedelta(seconds=10), NOW + timedelta(seconds=20)
    one = load_policy(quotas("enforced", entries=1))
    assert (await held.charge("a", policy=one, expires_at=soon)).allowed
    assert not (await held.charge("b", policy=one, now=soon - timedelta(seconds=1))).allowed
    assert await held.usage(now=soon) == QuotaUsage()
    assert (await held.charge("b", policy=one, now=soon, expires_at=later)).allowed
    settled = await held.charge("b", policy=one, now=soon)
    assert settled.repeated
    # A late retry of the reservation brings the end back no more.
    assert (await held.charge("b", policy=one, now=soon, expires_at=later)).repeated
    assert not (await held.charge("c", policy=one, now=later)).allowed
    assert await held.usage(now=later + timedelta(days=365)) == QuotaUsage(1, 1, 0)


async def test_a_retry_after_the_end_is_a_new_charge(held) -> None:
    end = NOW + timedelta(seconds=10)
    one = load_policy(quotas("enforced", entries=1))
    await held.charge("a", policy=one, expires_at=end)
    await held.charge("b", policy=one, now=end)
    again = await held.charge("a", policy=one, now=end)
    assert (again.allowed, again.repeated) == (False, False)


async def test_a_lost_worker_gives_back_what_it_held_for_everyone(held, database) -> None:
    for tenant in ("acme", "globex"):
        for number in range(3):
            await held.charge(f"a-{number}", KIB, tenant=tenant, worker="node-a")
        await held.charge("b", KIB, tenant=tenant, worker="node-b")

    async def lose(worker: str) -> int:
        async with database.write() as session:
            return await release_worker(session, worker, NOW + timedelta(microseconds=1))

    # Twice at once, beside charges that go on.
    first, second, *_ = await asyncio.gather(
        lose("node-a"), lose("node-a"), *(held.charge(f"n-{n}", KIB) for n in range(5))
    )
    assert first + second == 6
    assert await held.usage("globex") == QuotaUsage(KIB, 1, 0)
    assert await held.usage("acme") == QuotaUsage(6 * KIB, 6, 0)
    assert await lose("nobody") == 0


async def test_what_a_new_process_of_a_worker_holds_stays_charged(held, database) -> None:
    since = NOW + timedelta(seconds=10)
    await held.charge("before", KIB, worker="node-a")
    await held.charge("after", KIB, worker="node-a", now=since)
    for released in (1, 0):
        async with database.write() as session:
            assert await release_worker(session, "node-a", since) == released
    assert await held.usage() == QuotaUsage(KIB, 1, 0)
    assert await held.release("after")


async def test_a_longer_payload_under_the_same_name_is_charged_for_what_is_more(
    held, database
) -> None:
    two = load_policy(quotas("enforced", payload_bytes=2 * KIB))
    assert (await held.charge("copy", KIB, policy=two)).allowed
    refused = await held.charge("copy", 3 * KIB, policy=two)
    assert (refused.allowed, refused.repeated, refused.charged_bytes) == (False, True, KIB)
    assert refused.exceeded == (QuotaLimit.MAX_PAYLOAD_BYTES,)
    assert await held.usage() == QuotaUsage(KIB, 1, 0)
    longer = await held.charge("copy", 2 * KIB, policy=two)
    assert (longer.allowed, longer.used_payload_bytes) == (True, 2 * KIB)
    # While a shorter one is on its way both may be there; then it is charged for what it is.
    assert (await held.charge("copy", 5, policy=two)).used_payload_bytes == 2 * KIB

    async def settled(payload_bytes: int) -> QuotaUsage:
        async with database.write() as session:
            await settle_in(
                session, "acme", transfer_id="none", payload_id="copy",
                payload_bytes=payload_bytes, worker="node-a", now=NOW, expires_at=None,
            )  # fmt: skip
        return await held.usage()

    assert await settled(5) == QuotaUsage(5, 1, 0)
    # What is held is charged, also beyond the limit.
    assert await settled(9 * KIB) == QuotaUsage(9 * KIB, 1, 0)
    async with database.write() as session:
        await shrink(session, "acme", "copy", KIB)
        await shrink(session, "acme", "copy", 4 * KIB)
        await shrink(session, "acme", "none", 0)
    assert await held.usage() == QuotaUsage(KIB, 1, 0)


async def test_what_is_brought_again_to_a_new_process_stays_charged(held, database) -> None:
    """A late report of a loss frees what the old process held, not what was repeated since."""
    since = NOW + timedelta(seconds=10)
    for charge_id in ("repeated", "settled", "lost"):
        await held.charge(charge_id, KIB, worker="node-a", expires_at=since + timedelta(hours=1))
    await held.charge("repeated", KIB, worker="node-a", now=since)
    async with database.write() as session:
        await settle_in(
            session, "acme", transfer_id="none", payload_id="settled",
            payload_bytes=KIB, worker="node-a", now=since, expires_at=None,
        )  # fmt: skip
    async with database.write() as session:
        assert await release_worker(session, "node-a", since) == 1
    assert await held.usage() == QuotaUsage(2 * KIB, 2, 0)


async def test_payloads_that_are_gone_are_given_back_to_whom_they_were(held, database) -> None:
    soon = NOW + timedelta(seconds=10)
    for tenant in ("acme", "globex"):
        for charge_id in ("p", "q"):
            await held.charge(charge_id, KIB, tenant=tenant, worker="node-a")
    await held.charge("elsewhere", KIB, worker="node-b")
    await held.charge("on-its-way", KIB, worker="node-a", expires_at=soon)
    gone = [("acme", name) for name in ("p", "elsewhere", "on-its-way", "never-was")]
    gone += [("globex", "q"), ("nobody", "p")]
    for released in (2, 0):
        async with database.write() as session:
            assert await release_payloads(session, "node-a", gone) == released
    assert await held.usage("globex") == QuotaUsage(KIB, 1, 0)
    assert await held.usage() == QuotaUsage(3 * KIB, 3, 0)


async def test_transfers_are_counted_apart(held) -> None:
    policy = load_policy(quotas("enforced", entries=1, transfers=2))
    verdicts = await asyncio.gather(*(held.transfer(f"t-{n}", policy) for n in range(10)))
    assert sum(verdict.allowed for verdict in verdicts) == 2
    running = next(f"t-{n}" for n, verdict in enumerate(verdicts) if verdict.allowed)
    # The same id for the payload that the transfer brings.
    assert (await held.charge(running, KIB, policy)).allowed
    assert await held.usage() == QuotaUsage(KIB, 1, 2)
    assert await held.release(running, kind=ChargeKind.TRANSFER)
    assert (await held.transfer("t-new", policy)).allowed
    assert await held.usage() == QuotaUsage(KIB, 1, 2)


@pytest.mark.parametrize(
    ("charge_id", "payload_bytes", "entries"),
    [("", 1, 1), ("x" * (MAX_CHARGE_ID_CHARS + 1), 1, 1), ("c", -1, 1), ("c", 1, 0),
     ("c", MAX_CHARGE_BYTES + 1, 1)],
)  # fmt: skip
async def test_amounts_that_make_no_sense_are_refused(
    held, charge_id: str, payload_bytes: int, entries: int
) -> None:
    with pytest.raises(ValueError, match="charge"):
        await held.charge(charge_id, payload_bytes, entries=entries)


amounts = st.integers(0, 100)
usages = st.builds(QuotaUsage, amounts, amounts, amounts)
policies = st.builds(QuotaAdmissionPolicy, st.sampled_from(QuotaMode), amounts, amounts, amounts)


@given(policies, usages, usages, st.booleans())
def test_a_verdict_is_what_its_mode_says(
    quota: QuotaAdmissionPolicy, used: QuotaUsage, asked: QuotaUsage, repeated: bool
) -> None:
    verdict = decide(quota, used, asked, repeated=repeated)
    after = used if repeated else used.plus(asked)
    over = any(
        limit and new and held + new > limit
        for limit, held, new in (
            (quota.max_payload_bytes, used.payload_bytes, asked.payload_bytes),
            (quota.max_entries, used.entries, asked.entries),
            (quota.max_concurrent_transfers, used.transfers, asked.transfers),
        )
    ) and not repeated  # fmt: skip
    assert verdict.allowed == (quota.mode is not QuotaMode.ENFORCED or not over)
    assert bool(verdict.exceeded) == (over and quota.mode is not QuotaMode.DISABLED)
    shown = QuotaUsage(verdict.used_payload_bytes, verdict.used_entries, verdict.used_transfers)
    assert shown == (after if verdict.allowed else used)
