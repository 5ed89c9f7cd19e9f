"""The reservation as one statement: all of it, the claim alone, or nothing."""

from collections.abc import AsyncIterator
from dataclasses import replace
from datetime import datetime, timedelta
from uuid import UUID, uuid4

import pytest
from sqlalchemy import text

from app.db.session import Database
from app.execution.claims import ClaimRequest
from app.execution.repository import claim_consume, claim_find
from app.index.repository import StoredState, state_delete, state_get, states_renew
from app.lifecycle.repository import Movement, Reserved, reserve
from app.policy.document import load_policy
from app.quota.charges import charge, charge_movement, usage
from app.quota.decision import Limits, QuotaSeen, QuotaUsage
from tests.lifecycle.in_process import InProcess, running
from tests.policies.documents import quotas

TENANT = "reserving"
UNLIMITED = load_policy(quotas("disabled"))
FREE = Limits(0, 0, 0)
# The tenant of these tests has 7 bytes in one entry.
SEEN = QuotaSeen(100, 7, 1, 0)
WHOLE, NOTHING = Reserved(taken=True, seen=SEEN), Reserved(taken=False, seen=None)
CLAIM_ONLY = Reserved(taken=True, seen=None)
TTL = timedelta(seconds=10)


@pytest.fixture
async def process(database_url: str) -> AsyncIterator[InProcess]:
    async with running(database_url) as found:
        yield found


@pytest.fixture
async def stored(process: InProcess) -> StoredState:
    await process.register(TENANT)
    async with process.services.database.write() as session:
        await charge(
            session, UNLIMITED, TENANT, "before", 7, now=process.clock.now(), expires_at=None
        )
        state_id = await session.scalar(text("SELECT state_id FROM state"))
        found = await state_get(session, state_id)
        assert found is not None
        return found


@pytest.fixture
def database(process: InProcess) -> Database:
    return process.services.database


def a_claim(now: datetime, option_id: UUID | None = None, **changes: object) -> ClaimRequest:
    claim = ClaimRequest(
        option_id=option_id or uuid4(), tenant=TENANT, import_id="import", sink_namespace="ns",
        sink_value="sink", fence=uuid4().int >> 66, decision_id=uuid4(), now=now,
        expires_at=now + TTL,
    )  # fmt: skip
    return replace(claim, **changes)


def a_movement(limits: Limits = FREE, session_id: str = "session") -> Movement:
    return Movement(session_id, 100, "node-b", limits)


async def reserved(
    database: Database, stored: StoredState, claim: ClaimRequest, movement: Movement
) -> Reserved:
    async with database.single() as session:
        return await reserve(session, stored, claim, movement)


async def held(database: Database, now: datetime) -> QuotaUsage:
    """What the tenant's row says, which must be what its charges say."""
    async with database.read() as session:
        row = await session.execute(
            text("SELECT payload_bytes, entries, transfers FROM quota_tenant WHERE tenant = :t"),
            {"t": TENANT},
        )
        summed = QuotaUsage(*row.one())
        assert summed == await usage(session, TENANT, now)
    return summed


BEFORE = QuotaUsage(7, 1, 0)
AFTER = QuotaUsage(107, 2, 1)


async def test_the_claim_is_taken_and_the_movement_charged(
    process: InProcess, database: Database, stored: StoredState
) -> None:
    claim = a_claim(process.clock.now())
    assert await reserved(database, stored, claim, a_movement()) == WHOLE
    async with database.read() as session:
        found = await claim_find(session, claim.option_id)
    assert found is not None
    assert (found.import_id, found.consumed, found.decision_id) == (
        "import", False, claim.decision_id,
    )  # fmt: skip
    assert found.claim_expires_at == claim.expires_at
    assert await held(database, claim.now) == AFTER
    # When nobody comes back for it, it is given back.
    async with database.write() as session:
        later = claim.now + TTL
        await charge(session, UNLIMITED, TENANT, "new", 1, now=later, expires_at=None)
    assert await held(database, later) == QuotaUsage(8, 2, 0)


@pytest.mark.parametrize("change", ["deleted", "renewed", "superseded", "another tenant's"])
async def test_nothing_happens_for_a_state_that_changed(
    process: InProcess, database: Database, stored: StoredState, change: str
) -> None:
    now = process.clock.now()
    claim = a_claim(now)
    async with database.write() as session:
        if change == "deleted":
            await state_delete(session, stored.state_id, now)
        elif change == "renewed":
            await states_renew(session, [stored.state_id], now + TTL)
    if change == "superseded":
        await process.register(TENANT, generation=stored.generation + 1)
    elif change == "another tenant's":
        claim = replace(claim, tenant="other")
    assert await reserved(database, stored, claim, a_movement()) == NOTHING
    async with database.read() as session:
        assert await claim_find(session, claim.option_id) is None
    assert await held(database, now) == BEFORE


async def test_a_claimed_or_consumed_option_is_not_taken_and_charges_nothing(
    process: InProcess, database: Database, stored: StoredState
) -> None:
    first = a_claim(process.clock.now())
    assert await reserved(database, stored, first, a_movement()) == WHOLE
    second = a_claim(process.clock.now(), first.option_id)
    assert await reserved(database, stored, second, a_movement(session_id="other")) == NOTHING
    async with database.single() as session:
        assert await claim_consume(session, first.option_id, first.fence, first.now, "{}")
    third = a_claim(first.now + 2 * TTL, first.option_id)
    assert await reserved(database, stored, third, a_movement(session_id="third")) == NOTHING
    assert await held(database, first.now) == AFTER


async def test_a_claim_that_expired_is_taken_over_and_not_charged_again(
    process: InProcess, database: Database, stored: StoredState
) -> None:
    first = a_claim(process.clock.now())
    assert await reserved(database, stored, first, a_movement()) == WHOLE
    second = a_claim(first.expires_at, first.option_id)
    assert await reserved(database, stored, second, a_movement()) == CLAIM_ONLY
    assert await held(database, first.now) == AFTER
    async with database.single() as session:
        assert not await claim_consume(session, first.option_id, first.fence, first.now, "{}")
    async with database.single() as session:
        assert await claim_consume(session, first.option_id, second.fence, second.now, "{}")


@pytest.mark.parametrize(
    ("limits", "fits"),
    [
        (Limits(107, 2, 1), True),
        (Limits(106, 0, 0), False),
        (Limits(0, 1, 0), False),
        (Limits(107, 2, 0), True),
    ],
)
async def test_beyond_a_limit_nothing_is_charged(
    process: InProcess, database: Database, stored: StoredState, limits: Limits, fits: bool
) -> None:
    claim = a_claim(process.clock.now())
    expected = WHOLE if fits else CLAIM_ONLY
    assert await reserved(database, stored, claim, a_movement(limits)) == expected
    assert await held(database, claim.now) == (AFTER if fits else BEFORE)
    # A second transfer at the same time meets the third limit.
    other = a_movement(Limits(0, 0, 1), "other")
    second = await reserved(database, stored, a_claim(claim.now), other)
    assert second == (CLAIM_ONLY if fits else WHOLE)


async def test_a_tenant_that_never_held_anything_is_left_to_the_other_way(
    process: InProcess, database: Database, stored: StoredState
) -> None:
    async with database.write() as session:
        await session.execute(text("DELETE FROM quota_charge"))
        await session.execute(text("DELETE FROM quota_tenant"))
    claim = a_claim(process.clock.now())
    assert await reserved(database, stored, claim, a_movement()) == CLAIM_ONLY


async def test_what_the_other_way_charged_is_not_charged_again(
    process: InProcess, database: Database, stored: StoredState
) -> None:
    claim = a_claim(process.clock.now())
    async with database.write() as session:
        verdict = await charge_movement(
            session, UNLIMITED, TENANT, transfer_id="session", payload_id="session",
            payload_bytes=100, worker="node-b", now=claim.now, expires_at=claim.expires_at,
        )  # fmt: skip
    assert verdict.allowed
    assert await reserved(database, stored, claim, a_movement()) == CLAIM_ONLY
    assert await held(database, claim.now) == AFTER
