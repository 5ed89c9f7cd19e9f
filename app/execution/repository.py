"""SQL of execution: claims on options, and transfer sessions.

One row per option, whose unique key makes consumption happen once; one row per (tenant, transfer
id), whose fence says who runs it.
"""

from datetime import datetime
from typing import Any
from uuid import UUID

import msgspec
from sqlalchemy import bindparam, text
from sqlalchemy.dialects.postgresql import ARRAY, TEXT, TIMESTAMP

from app.contract.enums import TransferStatus
from app.db.session import ReadSession, WriteSession
from app.db.single import SingleSession
from app.execution.claims import ClaimRequest, StoredClaim
from app.execution.sessions import RUNNING, before
from app.execution.transfers import StoredTransfer, TransferAsked, TransferEnd, TransferRoute

_FIND = text(
    """
    SELECT tenant, import_id, sink_namespace, sink_value, status, claim_expires_at,
           receipt::text AS receipt, decision_id
    FROM option_claim WHERE option_id = :option_id
    """
)
# An expired claim is taken over; its fence changes, so its former owner can no longer consume it.
# `{source}` is a FROM that says whether it may be; empty, it may. `app.lifecycle` has it within a
# statement of its own.
CLAIM = """
    INSERT INTO option_claim AS held
        (option_id, tenant, import_id, sink_namespace, sink_value, status, fence,
         claimed_at, claim_expires_at, decision_id)
    SELECT CAST(:option_id AS bytea), CAST(:tenant AS text), CAST(:import_id AS text),
           CAST(:sink_namespace AS text), CAST(:sink_value AS text), 'claimed',
           CAST(:fence AS bigint), CAST(:now AS timestamptz),
           CAST(:expires_at AS timestamptz), CAST(:decision_id AS uuid)
    {source}
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
_CLAIM = text(CLAIM.format(source=""))
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
_HELD = text(
    """
    SELECT fence FROM option_claim
    WHERE option_id = :option_id AND fence = :fence AND status = 'claimed'
    FOR UPDATE
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
_TRANSFER_COLUMNS = (
    "asked::text AS asked, status, fence, decision_id, created_at, updated_at, expires_at, "
    "route::text AS route, ended::text AS ended"
)
_TRANSFER_FIND = text(
    f"SELECT {_TRANSFER_COLUMNS} FROM transfer_session"  # noqa: S608 - column names of this module only
    " WHERE tenant = :tenant AND transfer_id = :transfer_id"
)
# Taken when it is new, when it ended without success, when whoever ran it died, or when the copy of
# just that success was found to be gone.
_TRANSFER_OPEN = text(
    """
    INSERT INTO transfer_session AS held
        (tenant, transfer_id, asked, status, fence, decision_id, created_at, updated_at, expires_at)
    VALUES (:tenant, :transfer_id, CAST(:asked AS jsonb), :status, :fence, :decision_id, :now, :now,
            :expires_at)
    ON CONFLICT (tenant, transfer_id) DO UPDATE SET
        status = excluded.status,
        fence = excluded.fence,
        decision_id = excluded.decision_id,
        updated_at = excluded.updated_at,
        expires_at = excluded.expires_at,
        route = NULL,
        ended = NULL
    WHERE held.asked = excluded.asked
      AND (held.status = ANY(:retried)
           OR (held.status = ANY(:running) AND held.expires_at <= excluded.updated_at)
           OR (held.status = :completed AND held.fence = CAST(:gone_fence AS bigint)))
    RETURNING fence
    """
).bindparams(
    bindparam("retried", type_=ARRAY(TEXT())),
    bindparam("running", type_=ARRAY(TEXT())),
    bindparam("now", type_=TIMESTAMP(timezone=True)),
    bindparam("expires_at", type_=TIMESTAMP(timezone=True)),
)
_TRANSFER_ROUTE = text(
    """
    UPDATE transfer_session
    SET route = CAST(:route AS jsonb), status = :status, updated_at = :now
    WHERE tenant = :tenant AND transfer_id = :transfer_id AND fence = :fence
      AND status = ANY(:before)
    RETURNING fence
    """
).bindparams(bindparam("before", type_=ARRAY(TEXT())))
_TRANSFER_CLOSE = text(
    """
    UPDATE transfer_session
    SET ended = CAST(:ended AS jsonb), status = :status, updated_at = :now
    WHERE tenant = :tenant AND transfer_id = :transfer_id AND fence = :fence
      AND status = ANY(:before)
      AND (ended IS NULL OR CAST(:status AS text) <> :completed)
    RETURNING fence
    """
).bindparams(bindparam("before", type_=ARRAY(TEXT())))
# Whoever runs it may be anywhere between its route and its end: what is not ordered yet ends here,
# and of anything else it is noted, so that it does not complete any more.
_TRANSFER_CANCEL = text(
    """
    UPDATE transfer_session
    SET ended = CAST(:ended AS jsonb), updated_at = :now,
        status = CASE WHEN route IS NULL OR expires_at <= :now THEN :cancelled ELSE status END
    WHERE tenant = :tenant AND transfer_id = :transfer_id AND status = ANY(:running)
    """
).bindparams(
    bindparam("running", type_=ARRAY(TEXT())), bindparam("now", type_=TIMESTAMP(timezone=True))
)
_TRANSFER_FORGET = text(
    """
    DELETE FROM transfer_session WHERE (tenant, transfer_id) IN (
        SELECT tenant, transfer_id FROM transfer_session
        WHERE updated_at < :before AND expires_at < :before LIMIT :batch_rows
    )
    RETURNING transfer_id
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


async def claim_held(session: WriteSession, option_id: UUID, fence: int) -> bool:
    """Whether the claim, not consumed yet, is still the one with this fence."""
    result = await session.execute(_HELD, {"option_id": option_id.bytes, "fence": fence})
    return result.one_or_none() is not None


async def claim_take(session: WriteSession, request: ClaimRequest) -> bool:
    """False when the option is consumed, or claimed by a request that may still be running."""
    result = await session.execute(_CLAIM, claim_values(request))
    return result.one_or_none() is not None


def claim_values(request: ClaimRequest) -> dict[str, Any]:
    """The values of a claiming statement."""
    return {
        "option_id": request.option_id.bytes,
        "tenant": request.tenant,
        "import_id": request.import_id,
        "sink_namespace": request.sink_namespace,
        "sink_value": request.sink_value,
        "fence": request.fence,
        "now": request.now,
        "expires_at": request.expires_at,
        "decision_id": request.decision_id,
    }


async def claim_consume(
    session: WriteSession | SingleSession, option_id: UUID, fence: int, now: datetime, receipt: str
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


async def transfer_find(
    session: ReadSession | WriteSession, tenant: str, transfer_id: str
) -> StoredTransfer | None:
    """None when the tenant never asked for it, or it is forgotten."""
    found = await session.execute(_TRANSFER_FIND, {"tenant": tenant, "transfer_id": transfer_id})
    row = found.one_or_none()
    return None if row is None else _stored(row)


async def transfer_open(
    session: WriteSession,
    asked: TransferAsked,
    *,
    fence: int,
    decision_id: UUID,
    now: datetime,
    expires_at: datetime,
    gone_fence: int | None = None,
) -> bool:
    """Take the session; False when it completed, runs elsewhere, or was asked for otherwise.

    `gone_fence` is that of an attempt which completed and whose copy is gone since.
    """
    found = await session.execute(
        _TRANSFER_OPEN,
        {
            "tenant": asked.tenant,
            "transfer_id": asked.transfer_id,
            "asked": msgspec.json.encode(asked).decode(),
            "status": TransferStatus.INITIATED.value,
            "fence": fence,
            "decision_id": decision_id,
            "now": now,
            "expires_at": expires_at,
            "retried": _values(before(TransferStatus.INITIATED) - {TransferStatus.COMPLETED}),
            "completed": TransferStatus.COMPLETED.value,
            "gone_fence": gone_fence,
            "running": _values(RUNNING),
        },
    )
    return found.one_or_none() is not None


async def transfer_route(
    session: WriteSession, asked: TransferAsked, fence: int, route: TransferRoute, now: datetime
) -> bool:
    """The session is under way; False when it was taken over."""
    return await _advance(
        session,
        _TRANSFER_ROUTE,
        asked,
        fence,
        status=TransferStatus.IN_FLIGHT,
        now=now,
        route=_json(route),
    )


async def transfer_close(
    session: WriteSession,
    asked: TransferAsked,
    fence: int,
    *,
    status: TransferStatus,
    end: TransferEnd,
    now: datetime,
) -> bool:
    """The session ended; False when it was taken over, or has ended already.

    Also False for one that was cancelled and is to be `completed`.
    """
    return await _advance(
        session,
        _TRANSFER_CLOSE,
        asked,
        fence,
        status=status,
        now=now,
        ended=_json(end),
        completed=TransferStatus.COMPLETED.value,
    )


async def transfer_cancel(
    session: WriteSession, tenant: str, transfer_id: str, end: TransferEnd, now: datetime
) -> None:
    """A session that runs does not complete any more, whoever runs it; any other stays as it is.

    One that has no route yet, or that nobody runs any more, is cancelled by this alone. Of any
    other `end` is noted: whoever runs it finds that and ends it, after the worker was told to stop.
    """
    await session.execute(
        _TRANSFER_CANCEL,
        {
            "tenant": tenant,
            "transfer_id": transfer_id,
            "ended": _json(end),
            "cancelled": TransferStatus.CANCELLED.value,
            "running": _values(RUNNING),
            "now": now,
        },
    )


async def transfers_forget(session: WriteSession, older_than: datetime, batch_rows: int) -> int:
    """Deletes at most `batch_rows` sessions that ended before; how many it deleted."""
    found = await session.execute(
        _TRANSFER_FORGET, {"before": older_than, "batch_rows": batch_rows}
    )
    return len(found.all())


async def _advance(
    session: WriteSession,
    statement: Any,
    asked: TransferAsked,
    fence: int,
    *,
    status: TransferStatus,
    now: datetime,
    **values: str,
) -> bool:
    found = await session.execute(
        statement,
        {
            "tenant": asked.tenant,
            "transfer_id": asked.transfer_id,
            "fence": fence,
            "status": status.value,
            "before": _values(before(status)),
            "now": now,
            **values,
        },
    )
    return found.one_or_none() is not None


def _stored(row: Any) -> StoredTransfer:
    return StoredTransfer(
        asked=msgspec.json.decode(row.asked, type=TransferAsked),
        status=TransferStatus(row.status),
        fence=row.fence,
        decision_id=row.decision_id,
        created_at=row.created_at,
        updated_at=row.updated_at,
        expires_at=row.expires_at,
        route=row.route and msgspec.json.decode(row.route, type=TransferRoute),
        end=row.ended and msgspec.json.decode(row.ended, type=TransferEnd),
    )


def _values(statuses: frozenset[TransferStatus]) -> list[str]:
    return sorted(status.value for status in statuses)


def _json(value: object) -> str:
    return msgspec.json.encode(value).decode()
