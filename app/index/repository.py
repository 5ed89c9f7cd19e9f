"""SQL of registered states.

A state is (tenant, entry id). A higher generation takes its place; deletion keeps the row as a
tombstone, so that an older or equal generation can never come back. `changed_xid` is the writing
transaction: readers follow changes by it, in an order that late commits cannot break.
"""

from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any
from uuid import UUID

from sqlalchemy import bindparam, text
from sqlalchemy.dialects.postgresql import ARRAY, BIGINT, BYTEA, TEXT, TIMESTAMP
from sqlalchemy.dialects.postgresql import UUID as PG_UUID
from sqlalchemy.types import TypeEngine

from app.db.session import ReadSession, WriteSession


@dataclass(frozen=True, slots=True)
class StateWrite:
    """One validated registration, ready to be stored."""

    state_id: UUID
    tenant: str
    entry_id: str
    generation: int
    lineage: str
    namespace: str
    model: str
    engine_family: str
    semantic_type: str
    tier: str
    locator: str
    token_count: int
    identity_hash: bytes
    content_hash: bytes
    body: str
    tokens: bytes


@dataclass(frozen=True, slots=True)
class StoredState:
    """A state's row. `body` (JSON, its token lists empty) and `tokens` are None in a tombstone
    and where a listing left them out."""

    state_id: UUID
    tenant: str
    entry_id: str
    generation: int
    lineage: str
    namespace: str
    model: str
    engine_family: str
    semantic_type: str
    tier: str
    locator: str
    token_count: int
    content_hash: bytes
    created_at: datetime
    updated_at: datetime
    deleted_at: datetime | None
    body: str | None = None
    tokens: bytes | None = None


@dataclass(frozen=True, slots=True)
class StateFilter:
    """Which states a listing shows; None is no restriction."""

    tenants: tuple[str, ...] | None = None
    namespace: str | None = None
    model: str | None = None
    engine_family: str | None = None
    semantic_type: str | None = None
    tier: str | None = None
    entry_id: str | None = None


_SUMMARY = (
    "state_id, tenant, entry_id, generation, lineage, namespace, model, engine_family, "
    "semantic_type, tier, locator, token_count, content_hash, created_at, updated_at, deleted_at"
)
_WHOLE = _SUMMARY + ", body::text AS body, tokens"
_WRITE_TYPES: dict[str, TypeEngine[Any]] = {
    "state_id": PG_UUID(),
    "generation": BIGINT(),
    "token_count": BIGINT(),
    "identity_hash": BYTEA(),
    "content_hash": BYTEA(),
    "tokens": BYTEA(),
}
_WRITE_COLUMNS = tuple(StateWrite.__dataclass_fields__)
_UPSERT = text(
    """
    INSERT INTO state AS present
        (state_id, tenant, entry_id, generation, lineage, namespace, model, engine_family,
         semantic_type, tier, locator, token_count, identity_hash, content_hash, body, tokens,
         created_at, updated_at)
    SELECT state_id, tenant, entry_id, generation, lineage, namespace, model, engine_family,
           semantic_type, tier, locator, token_count, identity_hash, content_hash,
           CAST(body AS jsonb), tokens, :now, :now
    FROM unnest(:state_id, :tenant, :entry_id, :generation, :lineage, :namespace, :model,
                :engine_family, :semantic_type, :tier, :locator, :token_count, :identity_hash,
                :content_hash, :body, :tokens)
        AS incoming(state_id, tenant, entry_id, generation, lineage, namespace, model,
                    engine_family, semantic_type, tier, locator, token_count, identity_hash,
                    content_hash, body, tokens)
    ORDER BY tenant, entry_id
    ON CONFLICT (tenant, entry_id) DO UPDATE SET
        generation = excluded.generation,
        lineage = excluded.lineage,
        namespace = excluded.namespace,
        model = excluded.model,
        engine_family = excluded.engine_family,
        semantic_type = excluded.semantic_type,
        tier = excluded.tier,
        locator = excluded.locator,
        token_count = excluded.token_count,
        identity_hash = excluded.identity_hash,
        content_hash = excluded.content_hash,
        body = excluded.body,
        tokens = excluded.tokens,
        updated_at = excluded.updated_at,
        deleted_at = NULL,
        changed_xid = pg_current_xact_id()
    WHERE present.generation < excluded.generation
    RETURNING state_id, tenant, entry_id
    """
).bindparams(
    *(bindparam(name, type_=ARRAY(_WRITE_TYPES.get(name, TEXT()))) for name in _WRITE_COLUMNS),
    bindparam("now", type_=TIMESTAMP(timezone=True)),
)
_WANTED = "JOIN unnest(:tenants, :entry_ids) AS wanted(tenant, entry_id) USING (tenant, entry_id)"
_KEY_PARAMS = (
    bindparam("tenants", type_=ARRAY(TEXT())),
    bindparam("entry_ids", type_=ARRAY(TEXT())),
)
_BY_KEYS = text(
    f"SELECT {_SUMMARY} FROM state {_WANTED}"  # noqa: S608 - names of this module only
).bindparams(*_KEY_PARAMS)
_WHOLE_BY_KEYS = text(
    f"SELECT {_WHOLE} FROM state {_WANTED}"  # noqa: S608 - names of this module only
).bindparams(*_KEY_PARAMS)
_GET = text(f"SELECT {_WHOLE} FROM state WHERE state_id = :state_id")  # noqa: S608
_RENEW = text(
    """
    UPDATE state SET updated_at = :now
    WHERE state_id = ANY(:state_ids) AND deleted_at IS NULL AND updated_at < :now
    """
).bindparams(
    bindparam("state_ids", type_=ARRAY(PG_UUID())),
    bindparam("now", type_=TIMESTAMP(timezone=True)),
)
_DELETE = text(
    """
    UPDATE state
    SET deleted_at = :now, updated_at = :now, body = NULL, tokens = NULL,
        changed_xid = pg_current_xact_id()
    WHERE state_id = :state_id AND deleted_at IS NULL
    RETURNING generation
    """
)
_REVIVE = text(
    """
    UPDATE state AS present
    SET body = CAST(incoming.body AS jsonb), tokens = incoming.tokens, updated_at = :now,
        deleted_at = NULL, changed_xid = pg_current_xact_id()
    FROM unnest(:tenant, :entry_id, :generation, :content_hash, :body, :tokens)
        AS incoming(tenant, entry_id, generation, content_hash, body, tokens)
    WHERE present.tenant = incoming.tenant AND present.entry_id = incoming.entry_id
        AND present.deleted_at IS NOT NULL AND present.token_count = 0
        AND present.generation = incoming.generation
        AND present.content_hash = incoming.content_hash
    """
).bindparams(
    *(
        bindparam(name, type_=ARRAY(_WRITE_TYPES.get(name, TEXT())))
        for name in ("tenant", "entry_id", "generation", "content_hash", "body", "tokens")
    ),
    bindparam("now", type_=TIMESTAMP(timezone=True)),
)
_DROP_BACKED = text(
    """
    UPDATE state
    SET deleted_at = :now, updated_at = :now, body = NULL, tokens = NULL,
        changed_xid = pg_current_xact_id()
    FROM unnest(:tenants, :entry_ids) AS dropped(tenant, entry_id)
    WHERE state.tenant = dropped.tenant AND state.entry_id = dropped.entry_id
        AND state.deleted_at IS NULL AND state.token_count = 0
    """
).bindparams(*_KEY_PARAMS, bindparam("now", type_=TIMESTAMP(timezone=True)))
_LIVE = text(f"SELECT {_WHOLE} FROM state WHERE deleted_at IS NULL")  # noqa: S608
_FENCE = text("SELECT pg_snapshot_xmin(pg_current_snapshot())::text")
_CHANGED = text(
    """
    SELECT state_id, changed_xid::text AS changed_xid FROM state
    WHERE changed_xid >= CAST(CAST(:fence AS text) AS xid8)
    """
)
_BY_IDS = text(
    f"SELECT {_WHOLE} FROM state WHERE state_id = ANY(:state_ids)"  # noqa: S608
).bindparams(bindparam("state_ids", type_=ARRAY(PG_UUID())))


async def states_upsert(
    session: WriteSession, writes: Sequence[StateWrite], now: datetime
) -> dict[tuple[str, str], UUID]:
    """Stores what is new or has a higher generation; the keys it stored, with their state ids.

    `writes` must not name one (tenant, entry id) twice.
    """
    values: dict[str, Any] = {
        name: [getattr(write, name) for write in writes] for name in _WRITE_COLUMNS
    }
    rows = await session.execute(_UPSERT, values | {"now": now})
    return {(row.tenant, row.entry_id): row.state_id for row in rows}


async def states_renew(session: WriteSession, state_ids: Sequence[UUID], now: datetime) -> None:
    """Date these live states anew."""
    await session.execute(_RENEW, {"state_ids": list(state_ids), "now": now})


async def states_by_key(
    session: ReadSession | WriteSession, keys: Sequence[tuple[str, str]], *, whole: bool = False
) -> dict[tuple[str, str], StoredState]:
    """Tombstones included; a key that was never registered is absent. `whole`: with their body."""
    rows = await session.execute(
        _WHOLE_BY_KEYS if whole else _BY_KEYS,
        {"tenants": [tenant for tenant, _ in keys], "entry_ids": [entry for _, entry in keys]},
    )
    return {(row.tenant, row.entry_id): StoredState(**row._mapping) for row in rows}  # noqa: SLF001


async def state_get(session: ReadSession | WriteSession, state_id: UUID) -> StoredState | None:
    """The whole row, a tombstone too; None when the id was never given."""
    row = (await session.execute(_GET, {"state_id": state_id})).one_or_none()
    return None if row is None else StoredState(**row._mapping)  # noqa: SLF001


async def state_delete(session: WriteSession, state_id: UUID, now: datetime) -> int | None:
    """Leaves a tombstone, and returns its generation; None when no live state has that id."""
    result = await session.execute(_DELETE, {"state_id": state_id, "now": now})
    deleted: int | None = result.scalar_one_or_none()
    return deleted


async def backed_states_revive(
    session: WriteSession, writes: Sequence[StateWrite], now: datetime
) -> None:
    """Those of them that were deleted as they are are live again, under their state ids.

    Only states without tokens: what such a one promises is what its engine holds, not what was
    there when it was deleted.
    """
    names = ("tenant", "entry_id", "generation", "content_hash", "body", "tokens")
    values: dict[str, Any] = {name: [getattr(write, name) for write in writes] for name in names}
    await session.execute(_REVIVE, values | {"now": now})


async def backed_states_drop(
    session: WriteSession, keys: Sequence[tuple[str, str]], now: datetime
) -> None:
    """Leaves tombstones of these (tenant, entry id); one that has tokens by now stays."""
    await session.execute(
        _DROP_BACKED,
        {
            "tenants": [tenant for tenant, _ in keys],
            "entry_ids": [entry for _, entry in keys],
            "now": now,
        },
    )


async def states_list(
    session: ReadSession, where: StateFilter, after: UUID | None, limit_rows: int
) -> list[StoredState]:
    """Live states by ascending id, without body and tokens."""
    clauses = ["deleted_at IS NULL"]
    values: dict[str, Any] = {"limit_rows": limit_rows}
    if where.tenants is not None:
        clauses.append("tenant = ANY(:tenants)")
        values["tenants"] = list(where.tenants)
    for name in ("namespace", "model", "engine_family", "semantic_type", "tier", "entry_id"):
        value = getattr(where, name)
        if value is not None:
            clauses.append(f"{name} = :{name}")
            values[name] = value
    if after is not None:
        clauses.append("state_id > :after")
        values["after"] = after
    query = text(
        f"SELECT {_SUMMARY} FROM state WHERE {' AND '.join(clauses)} "  # noqa: S608 - fixed names
        "ORDER BY state_id LIMIT :limit_rows"
    )
    return [StoredState(**row._mapping) for row in await session.execute(query, values)]  # noqa: SLF001


async def states_stream(session: ReadSession, batch_rows: int) -> AsyncIterator[list[StoredState]]:
    """Every live state, in batches, through a server-side cursor."""
    result = await session.stream(_LIVE.execution_options(yield_per=batch_rows))
    async for rows in result.partitions(batch_rows):
        yield [StoredState(**row._mapping) for row in rows]  # noqa: SLF001


async def change_fence(session: ReadSession) -> str:
    """Every transaction below this id has ended: what it wrote is visible from now on."""
    return str((await session.execute(_FENCE)).scalar_one())


async def states_changed_since(session: ReadSession, fence: str) -> dict[UUID, str]:
    """State id to writing transaction, of all rows written at or after `fence`."""
    rows = await session.execute(_CHANGED, {"fence": fence})
    return {row.state_id: row.changed_xid for row in rows}


async def states_by_id(session: ReadSession, state_ids: Sequence[UUID]) -> list[StoredState]:
    """Whole rows, tombstones included."""
    rows = await session.execute(_BY_IDS, {"state_ids": list(state_ids)})
    return [StoredState(**row._mapping) for row in rows]  # noqa: SLF001
