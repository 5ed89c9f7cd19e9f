"""SQL of the registry of engines.

`changed_xid` is the writing transaction; a poll follows it behind a fence, as for states.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from sqlalchemy import bindparam, text
from sqlalchemy.dialects.postgresql import BOOLEAN, INTEGER, JSONB, TIMESTAMP

from app.db.session import ReadSession, WriteSession
from app.engines.registration import EngineKey


@dataclass(frozen=True, slots=True)
class StoredEngine:
    """A row; `spec` as it was stored, perhaps by another version."""

    key: EngineKey
    spec: dict[str, Any]
    registered_at: datetime
    forgotten: bool


@dataclass(frozen=True, slots=True)
class EngineChanges:
    """The engines changed at or after a fence, and the fence of the next poll."""

    xmin: int
    engines: tuple[StoredEngine, ...]


_REGISTER = text(
    """
    INSERT INTO engine AS present (instance_id, dp_rank, spec, registered_at)
    VALUES (:instance_id, :dp_rank, :spec, :now)
    ON CONFLICT (instance_id, dp_rank) DO UPDATE SET
        spec = excluded.spec,
        registered_at = excluded.registered_at,
        forgotten_at = NULL
    WHERE present.forgotten_at IS NOT NULL OR :replace
    RETURNING instance_id
    """
).bindparams(
    bindparam("dp_rank", type_=INTEGER()),
    bindparam("spec", type_=JSONB()),
    bindparam("now", type_=TIMESTAMP(timezone=True)),
    bindparam("replace", type_=BOOLEAN()),
)
_ONE = text(
    "SELECT spec, registered_at FROM engine WHERE instance_id = :instance_id AND dp_rank = :dp_rank"
    " AND forgotten_at IS NULL"
).bindparams(bindparam("dp_rank", type_=INTEGER())).columns(spec=JSONB())  # fmt: skip
_FORGET = text(
    """
    UPDATE engine SET forgotten_at = clock_timestamp()
    WHERE instance_id = :instance_id AND dp_rank = :dp_rank AND forgotten_at IS NULL
    RETURNING instance_id
    """
).bindparams(bindparam("dp_rank", type_=INTEGER()))
_SWEEP = text(
    "DELETE FROM engine WHERE forgotten_at < clock_timestamp() - CAST('1 day' AS interval)"
)
_LISTENING = text(
    """
    SELECT instance_id, dp_rank, spec, registered_at FROM engine
    WHERE forgotten_at IS NULL AND spec->>'attach' = 'bind' AND spec->>'endpoint' = :endpoint
        AND (instance_id, dp_rank) <> (:instance_id, :dp_rank)
    LIMIT 1
    """
).bindparams(bindparam("dp_rank", type_=INTEGER())).columns(spec=JSONB())  # fmt: skip
_COUNT = text("SELECT count(*) FROM engine WHERE forgotten_at IS NULL")
# Who names a state can be told only while no other registration changes.
_LOCK = text("LOCK TABLE engine IN EXCLUSIVE MODE")
_NAMED_ALONE = text(
    """
    WITH named AS (
        SELECT instance_id, dp_rank,
               state->'entry'->'identity'->'key'->>'tenant' AS tenant,
               state->'entry'->'identity'->>'entry_id' AS entry_id
        FROM engine, jsonb_array_elements(spec->'states') AS state
        WHERE forgotten_at IS NULL AND spec->'tenants' ?| ARRAY(
            SELECT jsonb_array_elements_text(spec->'tenants') FROM engine
            WHERE instance_id = :instance_id AND dp_rank = :dp_rank
        )
    )
    SELECT tenant, entry_id FROM named
    WHERE instance_id = :instance_id AND dp_rank = :dp_rank
    EXCEPT
    SELECT tenant, entry_id FROM named
    WHERE (instance_id, dp_rank) <> (:instance_id, :dp_rank)
    """
).bindparams(bindparam("dp_rank", type_=INTEGER()))
_CHANGED = text(
    """
    SELECT poll.xmin, instance_id, dp_rank, spec, registered_at,
           forgotten_at IS NOT NULL AS forgotten
    FROM (SELECT pg_snapshot_xmin(pg_current_snapshot())::text AS xmin) AS poll
    LEFT JOIN engine ON changed_xid >= CAST(CAST(:fence AS text) AS xid8)
    """
).columns(spec=JSONB())


async def engines_lock(session: WriteSession) -> None:
    """No other registration changes until this transaction ends; polls go on."""
    await session.execute(_LOCK)


async def engines_count(session: ReadSession) -> int:
    """How many are registered."""
    return int(await session.scalar(_COUNT))


async def engine_listening(
    session: ReadSession, key: EngineKey, endpoint: str
) -> StoredEngine | None:
    """Another engine than `key` whose events are listened for at the endpoint; None for none."""
    rows = (await session.execute(_LISTENING, key._asdict() | {"endpoint": endpoint})).all()
    if not rows:
        return None
    found = EngineKey(rows[0].instance_id, rows[0].dp_rank)
    return StoredEngine(found, rows[0].spec, rows[0].registered_at, forgotten=False)


async def engine_states_alone(session: ReadSession, key: EngineKey) -> set[tuple[str, str]]:
    """(tenant, entry id) of the states that this registration names and no other one does."""
    rows = await session.execute(_NAMED_ALONE, key._asdict())
    return {(row.tenant, row.entry_id) for row in rows}


async def engine_register(
    session: WriteSession, key: EngineKey, spec: Mapping[str, Any], now: datetime, *, replace: bool
) -> bool:
    """Store a registration. False, and nothing is stored, when there is one and not `replace`."""
    values = key._asdict() | {"spec": dict(spec), "now": now, "replace": replace}
    return (await session.execute(_REGISTER, values)).scalar_one_or_none() is not None


async def engine_by_key(session: ReadSession, key: EngineKey) -> StoredEngine | None:
    """What is registered under the key; None when nothing is."""
    rows = (await session.execute(_ONE, key._asdict())).all()
    return StoredEngine(key, rows[0].spec, rows[0].registered_at, forgotten=False) if rows else None


async def engine_forget(session: WriteSession, key: EngineKey) -> bool:
    """Leave a tombstone in the engine's place; False when there is no such engine."""
    await session.execute(_SWEEP)
    return (await session.execute(_FORGET, key._asdict())).scalar_one_or_none() is not None


async def engines_changed_since(session: ReadSession, fence: int) -> EngineChanges:
    """The engines whose last change is not certainly older than `fence`; 0 gives all.

    Tombstones are among them, for a day. Rows may come twice; see `keys_changed_since` of the
    control plane for why the fence is what it is.
    """
    rows = (await session.execute(_CHANGED, {"fence": str(fence)})).all()
    engines = tuple(
        StoredEngine(EngineKey(row.instance_id, row.dp_rank), *row[3:])
        for row in rows
        if row.instance_id is not None
    )
    return EngineChanges(xmin=int(rows[0].xmin), engines=engines)
