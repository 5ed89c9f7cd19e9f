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
from app.quota.decision import ChargeKind, QuotaUsage, QuotaVerdict, decide, seen_by
from app.quota.repository import (
    NewCharge,
    add_charge,
    add_tenant,
    charged_bytes_of,
    delete_charge,
    delete_charges_of_worker,
    delete_expired,
    delete_settled_charges,
    lock_tenant,
    repeat_charge,
    resize_charge,
    set_tenant,
    settle_at_once,
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

    A `charge_id` charged before is allowed, also over the limit, and is not charged again; its end
    moves only away. For a longer payload than before, what is more is charged as anything. So
    reserve with an `expires_at` before the transfer and charge again with None after it: a crash in
    between gives the reservation back.
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
        charged_bytes = await charged_bytes_of(session, tenant, payload_id)
        return replace(moving, seen=seen_by(payload_bytes, moving, charged_bytes))
    held = await charge(
        session, policy, tenant, payload_id, payload_bytes,
        worker=worker, now=now, expires_at=expires_at,
    )  # fmt: skip
    if not held.allowed:
        await release(session, tenant, transfer_id, ChargeKind.TRANSFER)
    charged = held.charged_bytes if held.repeated else None
    return replace(
        held,
        exceeded=moving.exceeded + held.exceeded,
        seen=seen_by(payload_bytes, moving, charged),
    )


async def settle(
    database: Database,
    tenant: str,
    *,
    transfer_id: str,
    payload_id: str,
    payload_bytes: int,
    worker: str,
    now: datetime,
    expires_at: datetime | None,
) -> None:
    """As `settle_in`, as a transaction of its own that does not wait for the disk.

    For a payload whose length was known when it was charged.
    """
    async with database.single() as single:
        kept = await settle_at_once(
            single, tenant, transfer_id=transfer_id, payload_id=payload_id,
            now=now, expires_at=expires_at,
        )  # fmt: skip
    if not kept:
        async with database.write(durable=False) as session:
            await settle_in(
                session, tenant, transfer_id=transfer_id, payload_id=payload_id,
                payload_bytes=payload_bytes, worker=worker, now=now, expires_at=expires_at,
            )  # fmt: skip


async def settle_in(
    session: WriteSession,
    tenant: str,
    *,
    transfer_id: str,
    payload_id: str,
    payload_bytes: int,
    worker: str,
    now: datetime,
    expires_at: datetime | None,
) -> None:
    """The movement is over: the transfer is charged no more, the payload for what it is.

    Until `expires_at`, and whatever the limits are by now: it is held.
    """
    held = await _locked(session, tenant)
    freed = await delete_charge(session, tenant, ChargeKind.TRANSFER, transfer_id)
    if freed is not None:
        held = held.minus(freed)
    new = NewCharge(
        tenant, ChargeKind.PAYLOAD, payload_id, payload_bytes, 1, worker, now, expires_at
    )
    charged_bytes = await repeat_charge(session, new)
    if charged_bytes is None:
        await add_charge(session, new)
        held = held.plus(QuotaUsage(payload_bytes, 1))
    else:
        held = await _resized(session, held, new, charged_bytes)
    await set_tenant(session, tenant, held)


async def shrink(session: WriteSession, tenant: str, charge_id: str, payload_bytes: int) -> None:
    """Charge a payload for so much again, where what should have taken its place did not come."""
    held = await _locked(session, tenant)
    now_bytes = await charged_bytes_of(session, tenant, charge_id)
    if now_bytes is not None and now_bytes > payload_bytes:
        await resize_charge(session, tenant, charge_id, payload_bytes)
        await set_tenant(session, tenant, held.minus(QuotaUsage(now_bytes - payload_bytes)))


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


async def release_payloads(
    session: WriteSession, worker: str, charges: Sequence[tuple[str, str]]
) -> int:
    """Give back charges for payloads that a worker held, each (tenant, charge id); how many.

    One that still has an end stays: it is a reservation for a payload that is on its way.
    """
    return await delete_settled_charges(session, worker, charges)


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
    charged_bytes = await repeat_charge(session, new)
    repeated = charged_bytes is not None
    if charged_bytes is not None:
        # Another payload under the same name takes the place of the first: the longer one counts.
        asked = QuotaUsage(max(0, new.payload_bytes - charged_bytes))
    verdict = replace(
        decide(policy.quota_admission_policy, held, asked, repeated=False),
        repeated=repeated,
        charged_bytes=charged_bytes or 0,
    )
    if verdict.allowed:
        if not repeated:
            await add_charge(session, new)
        elif asked.payload_bytes:
            await resize_charge(session, new.tenant, new.charge_id, new.payload_bytes)
        held = held.plus(asked)
    if held != before:
        await set_tenant(session, new.tenant, held)
    return verdict


async def _resized(
    session: WriteSession, held: QuotaUsage, new: NewCharge, charged_bytes: int
) -> QuotaUsage:
    """What a locked tenant holds once its payload is charged for its true length."""
    if charged_bytes != new.payload_bytes:
        await resize_charge(session, new.tenant, new.charge_id, new.payload_bytes)
    return held.plus(QuotaUsage(new.payload_bytes - charged_bytes))


async def _locked(session: WriteSession, tenant: str) -> QuotaUsage:
    held = await lock_tenant(session, tenant)
    if held is None:
        await add_tenant(session, tenant)
        held = await lock_tenant(session, tenant)
    assert held is not None
    return held
