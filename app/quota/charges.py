"""What NexusKV holds and moves for a tenant, charged against the policy's quota.

Every call but `settle` runs inside the caller's write transaction, so a charge and what it pays
for are stored together or not at all. The tenant's row is locked from the first call to the end of
the transaction: keep that short, and never wait for a transfer inside it.
"""

from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime
from typing import Final

from app.db.session import Database, ReadSession, WriteSession
from app.policy.document import ExecutionPolicy
from app.quota.decision import ChargeKind, QuotaUsage, QuotaVerdict, decide
from app.quota.repository import (
    NewCharge,
    add_charge,
    add_tenant,
    delete_charge,
    delete_charges_of_worker,
    delete_expired,
    delete_settled_charges,
    lock_tenant,
    repeat_charge,
    set_tenant,
    settle_at_once,
    settle_movement,
    usage_of,
)

# With a tenant of 128 characters, within what one row of a Postgres B-tree can hold.
MAX_CHARGE_ID_CHARS: Final = 256
# 2 ** 15 of these fit the sum of a tenant.
MAX_CHARGE_BYTES: Final = 2**48


async def charge(
    session: WriteSession,
    policy: ExecutionPolicy,
    tenant: str,
    charge_id: str,
    payload_bytes: int,
    *,
    entries: int = 1,
    worker: str | None = None,
    now: datetime,
    expires_at: datetime | None,
) -> QuotaVerdict:
    """Charge a payload that is about to be held; nothing is stored when it is not allowed.

    A `charge_id` charged before is allowed, also over the limit, and is not charged again; its
    amounts stay, its end moves only away. So reserve with an `expires_at` before the transfer and
    charge again with None after it: a crash in between gives the reservation back.
    """
    if not 0 <= payload_bytes <= MAX_CHARGE_BYTES or entries < 1:
        raise ValueError(f"a charge has 0 to {MAX_CHARGE_BYTES} bytes and at least one entry")
    new = NewCharge(
        tenant, ChargeKind.PAYLOAD, charge_id, payload_bytes, entries, worker, now, expires_at
    )
    return await _charge(session, policy, new, QuotaUsage(payload_bytes, entries))


async def charge_transfer(
    session: WriteSession,
    policy: ExecutionPolicy,
    tenant: str,
    charge_id: str,
    *,
    worker: str | None = None,
    now: datetime,
    expires_at: datetime,
) -> QuotaVerdict:
    """Charge a transfer for as long as it runs, against `max_concurrent_transfers`.

    `charge_id` is repeated as in `charge`, and released with `ChargeKind.TRANSFER`.
    """
    new = NewCharge(tenant, ChargeKind.TRANSFER, charge_id, 0, 1, worker, now, expires_at)
    return await _charge(session, policy, new, QuotaUsage(transfers=1))


async def charge_movement(
    session: WriteSession,
    policy: ExecutionPolicy,
    tenant: str,
    *,
    transfer_id: str,
    payload_id: str,
    payload_bytes: int,
    worker: str,
    now: datetime,
    expires_at: datetime,
) -> QuotaVerdict:
    """Charge a transfer and the payload that it brings: both, or neither.

    The verdict is the payload's, unless the transfer is refused; `exceeded` names what either goes
    beyond.
    """
    moving = await charge_transfer(
        session, policy, tenant, transfer_id, worker=worker, now=now, expires_at=expires_at
    )
    if not moving.allowed:
        return moving
    held = await charge(
        session, policy, tenant, payload_id, payload_bytes,
        worker=worker, now=now, expires_at=expires_at,
    )  # fmt: skip
    if not held.allowed:
        await release(session, tenant, transfer_id, ChargeKind.TRANSFER)
    return replace(held, exceeded=moving.exceeded + held.exceeded)


async def settle(
    database: Database,
    policy: ExecutionPolicy,
    tenant: str,
    *,
    transfer_id: str,
    payload_id: str,
    payload_bytes: int,
    worker: str,
    now: datetime,
    expires_at: datetime | None,
) -> None:
    """As `settle_in`, as a transaction of its own that does not wait for the disk."""
    async with database.single() as single:
        kept = await settle_at_once(
            single, tenant, transfer_id=transfer_id, payload_id=payload_id,
            now=now, expires_at=expires_at,
        )  # fmt: skip
    if not kept:
        async with database.write(durable=False) as session:
            await settle_in(
                session, policy, tenant, transfer_id=transfer_id, payload_id=payload_id,
                payload_bytes=payload_bytes, worker=worker, now=now, expires_at=expires_at,
            )  # fmt: skip


async def settle_in(
    session: WriteSession,
    policy: ExecutionPolicy,
    tenant: str,
    *,
    transfer_id: str,
    payload_id: str,
    payload_bytes: int,
    worker: str,
    now: datetime,
    expires_at: datetime | None,
) -> None:
    """The movement is over: the payload stays charged until `expires_at`, the transfer does not."""
    kept = await settle_movement(
        session,
        tenant,
        transfer_id=transfer_id,
        payload_id=payload_id,
        now=now,
        expires_at=expires_at,
    )
    if not kept:
        # It had expired meanwhile; what is held is charged all the same.
        await charge(
            session, policy, tenant, payload_id, payload_bytes,
            worker=worker, now=now, expires_at=expires_at,
        )  # fmt: skip


async def release(
    session: WriteSession,
    tenant: str,
    charge_id: str,
    kind: ChargeKind = ChargeKind.PAYLOAD,
    *,
    worker: str | None = None,
) -> bool:
    """Give a charge back; False when there is none (any more), which changes nothing.

    With `worker`, only one for what that worker holds.
    """
    held = await lock_tenant(session, tenant)
    if held is None:
        return False
    freed = await delete_charge(session, tenant, kind, charge_id, worker=worker)
    if freed is None:
        return False
    await set_tenant(session, tenant, held.minus(freed))
    return True


async def release_worker(session: WriteSession, worker: str, before: datetime) -> int:
    """Give back what was charged for a worker before it lost its memory; how many charges."""
    return await delete_charges_of_worker(session, worker, before)


async def release_payloads(session: WriteSession, worker: str, charge_ids: Sequence[str]) -> int:
    """Give back these charges for what a worker held, whoever's they are; how many there were.

    One that still has an end stays: it is a reservation for a payload that is on its way.
    """
    return await delete_settled_charges(session, worker, charge_ids)


async def usage(session: ReadSession, tenant: str, now: datetime) -> QuotaUsage:
    """What the tenant holds now; zeroes for one that never held anything."""
    return await usage_of(session, tenant, now)


async def _charge(
    session: WriteSession, policy: ExecutionPolicy, new: NewCharge, asked: QuotaUsage
) -> QuotaVerdict:
    if not 1 <= len(new.charge_id) <= MAX_CHARGE_ID_CHARS:
        raise ValueError(f"a charge id has 1 to {MAX_CHARGE_ID_CHARS} characters")
    before = await _locked(session, new.tenant)
    held = before.minus(await delete_expired(session, new.tenant, new.created_at))
    repeated = await repeat_charge(session, new)
    verdict = decide(policy.quota_admission_policy, held, asked, repeated=repeated)
    if verdict.allowed and not repeated:
        await add_charge(session, new)
        held = held.plus(asked)
    if held != before:
        await set_tenant(session, new.tenant, held)
    return verdict


async def _locked(session: WriteSession, tenant: str) -> QuotaUsage:
    held = await lock_tenant(session, tenant)
    if held is None:
        await add_tenant(session, tenant)
        held = await lock_tenant(session, tenant)
    assert held is not None
    return held
