"""SQL that reads or writes what several steps own: for one round trip and one commit.

What each table means is told where it is owned: `option_claim` in `app.execution.repository`,
`quota_*` in `app.quota.repository`, `state` in `app.index.repository`.
"""

from dataclasses import dataclass

import asyncpg
from sqlalchemy import text

from app.db.single import SingleSession
from app.execution.claims import ClaimRequest
from app.execution.repository import CLAIM, claim_values
from app.index.repository import StoredState
from app.quota.decision import Limits, QuotaSeen

# Everything or nothing, in the order in which everybody locks: the claim, then the tenant's row,
# which is locked for no longer than this statement runs. Nobody waits for the disk: a claim and a
# charge that a crash takes away are taken again by whoever repeats.
_RESERVE = text(
    f"""
    WITH standing AS (
        SELECT set_config('synchronous_commit', 'off', true)
        FROM state
        WHERE state_id = :state_id AND tenant = :tenant AND generation = :generation
          AND updated_at = :updated_at AND deleted_at IS NULL
    ), taken AS (
        {CLAIM.format(source="FROM standing")}
    ), charged AS (
        UPDATE quota_tenant AS held SET
            payload_bytes = held.payload_bytes + CAST(:payload_bytes AS bigint),
            entries = held.entries + 1,
            transfers = held.transfers + 1
        FROM taken
        WHERE tenant = :tenant
          AND (CAST(:max_payload_bytes AS bigint) = 0
               OR held.payload_bytes + CAST(:payload_bytes AS bigint)
                  <= CAST(:max_payload_bytes AS bigint))
          AND (CAST(:max_entries AS bigint) = 0 OR held.entries < CAST(:max_entries AS bigint))
          AND (CAST(:max_transfers AS bigint) = 0
               OR held.transfers < CAST(:max_transfers AS bigint))
          AND NOT EXISTS (
              SELECT FROM quota_charge
              WHERE tenant = :tenant
                AND (kind, charge_id) IN (('payload', :session_id), ('transfer', :session_id)))
        RETURNING held.payload_bytes, held.entries, held.transfers
    ), listed AS (
        INSERT INTO quota_charge
            (tenant, kind, charge_id, payload_bytes, entries, worker, created_at, expires_at)
        SELECT :tenant, kind, :session_id, bytes, 1, CAST(:worker AS text),
               CAST(:now AS timestamptz), CAST(:expires_at AS timestamptz)
        FROM charged, (VALUES ('payload', CAST(:payload_bytes AS bigint)), ('transfer', 0))
             AS new(kind, bytes)
    )
    SELECT (SELECT count(*) FROM taken) AS taken, used.payload_bytes, used.entries, used.transfers
    FROM (VALUES (1)) AS one LEFT JOIN charged AS used ON true
    """  # noqa: S608 - statements of this service only
)


@dataclass(frozen=True, slots=True)
class Movement:
    """What is charged with a claim: a transfer, and the payload that it brings."""

    session_id: str
    payload_bytes: int
    worker: str
    limits: Limits


@dataclass(frozen=True, slots=True)
class Reserved:
    """What became of it: a claim may be taken and, for a reason to be found, nothing charged: then
    `seen` is None, and otherwise what the tenant had before.
    """

    taken: bool
    seen: QuotaSeen | None


async def reserve(
    session: SingleSession, stored: StoredState, claim: ClaimRequest, movement: Movement
) -> Reserved:
    """Take the claim and charge the movement, if the state stands as it is given here.

    Not taken: the state changed, or the option is consumed or claimed. Not charged: the tenant
    never held anything, was charged for this before, or would be beyond a limit.
    """
    values = claim_values(claim) | {
        "state_id": stored.state_id,
        "generation": stored.generation,
        "updated_at": stored.updated_at,
        "session_id": movement.session_id,
        "payload_bytes": movement.payload_bytes,
        "worker": movement.worker,
        "max_payload_bytes": movement.limits.payload_bytes,
        "max_entries": movement.limits.entries,
        "max_transfers": movement.limits.transfers,
    }
    try:
        row = (await session.execute(_RESERVE, values)).one()
    except asyncpg.UniqueViolationError:
        # Charged by another attempt while this one waited for the claim: nothing of this happened.
        return Reserved(taken=False, seen=None)
    if row.payload_bytes is None:
        return Reserved(bool(row.taken), None)
    before = row.payload_bytes - movement.payload_bytes, row.entries - 1, row.transfers - 1
    return Reserved(bool(row.taken), QuotaSeen(movement.payload_bytes, *before))
