"""SQL of quotas: charges under their tenant's lock, and what each tenant holds by them."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from sqlalchemy import TextClause, text

from app.db.session import ReadSession, WriteSession
from app.db.single import SingleSession
from app.quota.decision import ChargeKind, QuotaUsage


@dataclass(frozen=True, slots=True)
class NewCharge:
    """A charge to store."""

    tenant: str
    kind: ChargeKind
    charge_id: str
    payload_bytes: int
    entries: int
    worker: str | None
    created_at: datetime
    expires_at: datetime | None


_LOCK_TENANT = text(
    "SELECT payload_bytes, entries, transfers FROM quota_tenant WHERE tenant = :tenant FOR UPDATE"
)
_ADD_TENANT = text("INSERT INTO quota_tenant (tenant) VALUES (:tenant) ON CONFLICT DO NOTHING")
_SET_TENANT = text(
    """
    UPDATE quota_tenant
    SET payload_bytes = :payload_bytes, entries = :entries, transfers = :transfers
    WHERE tenant = :tenant
    """
)
_SUMS = """
    coalesce(sum(payload_bytes) FILTER (WHERE kind = 'payload'), 0)::bigint AS payload_bytes,
    coalesce(sum(entries) FILTER (WHERE kind = 'payload'), 0)::bigint AS entries,
    coalesce(sum(entries) FILTER (WHERE kind = 'transfer'), 0)::bigint AS transfers
"""
_DELETE_EXPIRED = text(
    f"""
    WITH gone AS (
        DELETE FROM quota_charge WHERE tenant = :tenant AND expires_at <= :now
        RETURNING kind, payload_bytes, entries
    )
    SELECT {_SUMS} FROM gone
    """  # noqa: S608 - a constant of this module only
)
_DELETE_CHARGE = text(
    f"""
    WITH gone AS (
        DELETE FROM quota_charge
        WHERE tenant = :tenant AND kind = :kind AND charge_id = :charge_id
          AND (CAST(:worker AS text) IS NULL OR worker = CAST(:worker AS text))
        RETURNING kind, payload_bytes, entries
    )
    SELECT {_SUMS} FROM gone HAVING count(*) > 0
    """  # noqa: S608 - a constant of this module only
)
_OF_INSTANCE = "worker = :worker AND created_at < :before"
_SETTLED = """worker = :worker AND kind = 'payload' AND expires_at IS NULL
    AND (tenant, charge_id) IN (
        SELECT * FROM unnest(CAST(:of_tenants AS text[]), CAST(:charge_ids AS text[])))
"""
_LOCK_TENANTS_WITH = """
    SELECT tenant FROM quota_tenant AS held
    WHERE EXISTS (SELECT FROM quota_charge WHERE tenant = held.tenant AND {which})
    ORDER BY tenant FOR UPDATE
"""
_DELETE_OF_TENANTS = f"""
    WITH gone AS (
        DELETE FROM quota_charge WHERE tenant = ANY(:tenants) AND {{which}}
        RETURNING tenant, kind, payload_bytes, entries
    ), freed AS (
        SELECT tenant, count(*) AS charges, {_SUMS} FROM gone GROUP BY tenant
    )
    UPDATE quota_tenant AS held
    SET payload_bytes = held.payload_bytes - freed.payload_bytes,
        entries = held.entries - freed.entries,
        transfers = held.transfers - freed.transfers
    FROM freed WHERE held.tenant = freed.tenant
    RETURNING freed.charges
"""  # noqa: S608 - a constant of this module only
_LOCK_OF_INSTANCE, _DELETE_OF_INSTANCE = (
    text(one.format(which=_OF_INSTANCE)) for one in (_LOCK_TENANTS_WITH, _DELETE_OF_TENANTS)
)
_LOCK_SETTLED, _DELETE_SETTLED = (
    text(one.format(which=_SETTLED)) for one in (_LOCK_TENANTS_WITH, _DELETE_OF_TENANTS)
)
# A charge without an end keeps none, and no repetition brings an end nearer.
_REPEAT_CHARGE = text(
    """
    UPDATE quota_charge
    SET expires_at = CASE
            WHEN expires_at IS NULL OR CAST(:expires_at AS timestamptz) IS NULL THEN NULL
            ELSE greatest(expires_at, CAST(:expires_at AS timestamptz)) END,
        worker = coalesce(CAST(:worker AS text), worker),
        -- What is asked for again is there again: a worker lost what was charged before its start.
        created_at = greatest(created_at, CAST(:created_at AS timestamptz))
    WHERE tenant = :tenant AND kind = :kind AND charge_id = :charge_id
    RETURNING payload_bytes
    """
)
_CHARGED_BYTES = text(
    """
    SELECT payload_bytes FROM quota_charge
    WHERE tenant = :tenant AND kind = 'payload' AND charge_id = :charge_id
    """
)
_RESIZE_CHARGE = text(
    """
    UPDATE quota_charge SET payload_bytes = :payload_bytes
    WHERE tenant = :tenant AND kind = 'payload' AND charge_id = :charge_id
    """
)
_ADD_CHARGE = text(
    """
    INSERT INTO quota_charge
        (tenant, kind, charge_id, payload_bytes, entries, worker, created_at, expires_at)
    VALUES
        (:tenant, :kind, :charge_id, :payload_bytes, :entries, :worker, :created_at, :expires_at)
    """
)
# The tenant's row first, as everywhere: two who lock in another order would wait for each other.
_SETTLE_AT_ONCE = text(
    """
    WITH held AS MATERIALIZED (
        SELECT tenant, set_config('synchronous_commit', 'off', true)
        FROM quota_tenant WHERE tenant = :tenant FOR UPDATE
    ), gone AS (
        DELETE FROM quota_charge USING held
        WHERE quota_charge.tenant = held.tenant
          AND kind = 'transfer' AND charge_id = :transfer_id
        RETURNING entries
    ), kept AS (
        UPDATE quota_charge SET
            expires_at = CAST(:expires_at AS timestamptz),
            created_at = greatest(created_at, CAST(:now AS timestamptz))
        FROM held
        WHERE quota_charge.tenant = held.tenant AND kind = 'payload' AND charge_id = :payload_id
        RETURNING charge_id
    ), less AS (
        UPDATE quota_tenant
        SET transfers = transfers - (SELECT coalesce(sum(entries), 0) FROM gone)
        WHERE tenant = :tenant
    )
    SELECT count(*) FROM kept
"""
)
_USAGE = text(
    f"""
    SELECT {_SUMS} FROM quota_charge
    WHERE tenant = :tenant AND (expires_at IS NULL OR expires_at > :now)
    """  # noqa: S608 - a constant of this module only
)


async def lock_tenant(session: WriteSession, tenant: str) -> QuotaUsage | None:
    """What the tenant holds, locked until the transaction ends; None when it never held any."""
    row = (await session.execute(_LOCK_TENANT, {"tenant": tenant})).one_or_none()
    return None if row is None else QuotaUsage(*row)


async def add_tenant(session: WriteSession, tenant: str) -> None:
    """Make the row that is locked, unless it is there."""
    await session.execute(_ADD_TENANT, {"tenant": tenant})


async def set_tenant(session: WriteSession, tenant: str, held: QuotaUsage) -> None:
    """Write what a locked tenant holds now."""
    await session.execute(_SET_TENANT, {"tenant": tenant, **_amounts(held)})


async def delete_expired(session: WriteSession, tenant: str, now: datetime) -> QuotaUsage:
    """Delete the expired charges of a locked tenant; what they had held."""
    row = (await session.execute(_DELETE_EXPIRED, {"tenant": tenant, "now": now})).one()
    return QuotaUsage(*row)


async def delete_charge(
    session: WriteSession,
    tenant: str,
    kind: ChargeKind,
    charge_id: str,
    *,
    worker: str | None = None,
) -> QuotaUsage | None:
    """Delete one charge of a locked tenant; what it had held, None when there is none."""
    where = {"tenant": tenant, "kind": kind.value, "charge_id": charge_id, "worker": worker}
    row = (await session.execute(_DELETE_CHARGE, where)).one_or_none()
    return None if row is None else QuotaUsage(*row)


async def delete_charges_of_worker(session: WriteSession, worker: str, before: datetime) -> int:
    """Delete the charges for a worker made before, over all tenants; how many there were."""
    which = {"worker": worker, "before": before}
    return await _delete_over_tenants(session, _LOCK_OF_INSTANCE, _DELETE_OF_INSTANCE, which)


async def delete_settled_charges(
    session: WriteSession, worker: str, charges: Sequence[tuple[str, str]]
) -> int:
    """Delete charges for payloads of a worker, each (tenant, charge id), that have no end; how many
    there were.
    """
    which = {
        "worker": worker,
        "of_tenants": [tenant for tenant, _ in charges],
        "charge_ids": [charge_id for _, charge_id in charges],
    }
    return await _delete_over_tenants(session, _LOCK_SETTLED, _DELETE_SETTLED, which)


async def repeat_charge(session: WriteSession, new: NewCharge) -> int | None:
    """Extend a charge of a locked tenant that was made before; the bytes that it is for.

    None when there is none.
    """
    result = await session.execute(
        _REPEAT_CHARGE,
        {
            "tenant": new.tenant,
            "kind": new.kind.value,
            "charge_id": new.charge_id,
            "worker": new.worker,
            "created_at": new.created_at,
            "expires_at": new.expires_at,
        },
    )
    charged_bytes: int | None = result.scalar_one_or_none()
    return charged_bytes


async def charged_bytes_of(session: ReadSession, tenant: str, charge_id: str) -> int | None:
    """For how many bytes a payload is charged; None when it is not."""
    where = {"tenant": tenant, "charge_id": charge_id}
    found: int | None = await session.scalar(_CHARGED_BYTES, where)
    return found


async def resize_charge(
    session: WriteSession, tenant: str, charge_id: str, payload_bytes: int
) -> None:
    """The payload of this charge of a locked tenant is as long as that now."""
    where = {"tenant": tenant, "charge_id": charge_id}
    await session.execute(_RESIZE_CHARGE, where | {"payload_bytes": payload_bytes})


async def add_charge(session: WriteSession, new: NewCharge) -> None:
    """Store a charge of a locked tenant."""
    await session.execute(
        _ADD_CHARGE,
        {
            "tenant": new.tenant,
            "kind": new.kind.value,
            "charge_id": new.charge_id,
            "payload_bytes": new.payload_bytes,
            "entries": new.entries,
            "worker": new.worker,
            "created_at": new.created_at,
            "expires_at": new.expires_at,
        },
    )


async def settle_at_once(
    session: SingleSession,
    tenant: str,
    *,
    transfer_id: str,
    payload_id: str,
    now: datetime,
    expires_at: datetime | None,
) -> bool:
    """Give a transfer's charge back and keep the payload's as it is, without waiting for the disk.

    False when the payload's is gone already.
    """
    values = {
        "tenant": tenant,
        "transfer_id": transfer_id,
        "payload_id": payload_id,
        "now": now,
        "expires_at": expires_at,
    }
    return bool((await session.execute(_SETTLE_AT_ONCE, values)).scalar_one())


async def usage_of(session: ReadSession, tenant: str, now: datetime) -> QuotaUsage:
    """The sums of a tenant's charges that have not expired; zeroes when there is none."""
    row = (await session.execute(_USAGE, {"tenant": tenant, "now": now})).one()
    return QuotaUsage(*row)


async def _delete_over_tenants(
    session: WriteSession, lock: TextClause, delete: TextClause, which: dict[str, Any]
) -> int:
    """Tenants are locked in the order of their names, so that two calls cannot block each other."""
    tenants = list((await session.execute(lock, which)).scalars())
    gone = await session.execute(delete, which | {"tenants": tenants})
    return sum(gone.scalars())


def _amounts(held: QuotaUsage) -> dict[str, int]:
    return {
        "payload_bytes": held.payload_bytes,
        "entries": held.entries,
        "transfers": held.transfers,
    }
