"""SQL of option claims: one row per option, whose unique key makes consumption happen once."""

from datetime import datetime
from uuid import UUID

from sqlalchemy import text

from app.db.session import ReadSession, WriteSession
from app.execution.claims import ClaimRequest, StoredClaim

_FIND = text(
    """
    SELECT tenant, import_id, sink_namespace, sink_value, status, claim_expires_at,
           receipt::text AS receipt, decision_id
    FROM option_claim WHERE option_id = :option_id
    """
)
# An expired claim is taken over; its fence changes, so its former owner can no longer consume it.
_CLAIM = text(
    """
    INSERT INTO option_claim AS held
        (option_id, tenant, import_id, sink_namespace, sink_value, status, fence,
         claimed_at, claim_expires_at, decision_id)
    VALUES (:option_id, :tenant, :import_id, :sink_namespace, :sink_value, 'claimed', :fence,
            :now, :expires_at, :decision_id)
    ON CONFLICT (option_id) DO UPDATE SET
        import_id = excluded.import_id,
        sink_namespace = excluded.sink_namespace,
        sink_value = excluded.sink_value,
        fence = excluded.fence,
        claimed_at = excluded.claimed_at,
        claim_expires_at = excluded.claim_expires_at,
        decision_id = excluded.decision_id
    WHERE held.status = 'claimed' AND held.claim_expires_at <= excluded.claimed_at
    RETURNING fence
    """
)
_CONSUME = text(
    """
    UPDATE option_claim
    SET status = 'consumed', consumed_at = :now, receipt = CAST(:receipt AS jsonb)
    WHERE option_id = :option_id AND fence = :fence AND status = 'claimed'
    RETURNING fence
    """
)
_RELEASE = text(
    """
    DELETE FROM option_claim
    WHERE option_id = :option_id AND fence = :fence AND status = 'claimed'
    """
)
_FORGET = text(
    """
    DELETE FROM option_claim WHERE option_id IN (
        SELECT option_id FROM option_claim WHERE claimed_at < :before LIMIT :batch_rows
    )
    RETURNING option_id
    """
)


async def claim_find(session: ReadSession | WriteSession, option_id: UUID) -> StoredClaim | None:
    """None when nobody has claimed the option."""
    row = (await session.execute(_FIND, {"option_id": option_id.bytes})).one_or_none()
    if row is None:
        return None
    return StoredClaim(
        tenant=row.tenant,
        import_id=row.import_id,
        sink_namespace=row.sink_namespace,
        sink_value=row.sink_value,
        consumed=row.status == "consumed",
        claim_expires_at=row.claim_expires_at,
        receipt=row.receipt,
        decision_id=row.decision_id,
    )


async def claim_take(session: WriteSession, request: ClaimRequest) -> bool:
    """False when the option is consumed, or claimed by a request that may still be running."""
    result = await session.execute(
        _CLAIM,
        {
            "option_id": request.option_id.bytes,
            "tenant": request.tenant,
            "import_id": request.import_id,
            "sink_namespace": request.sink_namespace,
            "sink_value": request.sink_value,
            "fence": request.fence,
            "now": request.now,
            "expires_at": request.expires_at,
            "decision_id": request.decision_id,
        },
    )
    return result.one_or_none() is not None


async def claim_consume(
    session: WriteSession, option_id: UUID, fence: int, now: datetime, receipt: str
) -> bool:
    """False when the claim was taken over meanwhile: the attempt must not report success."""
    result = await session.execute(
        _CONSUME,
        {"option_id": option_id.bytes, "fence": fence, "now": now, "receipt": receipt},
    )
    return result.one_or_none() is not None


async def claim_release(session: WriteSession, option_id: UUID, fence: int) -> None:
    """Gives the option back after an execution that did not happen; a no-op once fenced."""
    await session.execute(_RELEASE, {"option_id": option_id.bytes, "fence": fence})


async def claims_forget(session: WriteSession, before: datetime, batch_rows: int) -> int:
    """Deletes at most `batch_rows` claims older than `before`; how many it deleted."""
    result = await session.execute(_FORGET, {"before": before, "batch_rows": batch_rows})
    return len(result.all())
