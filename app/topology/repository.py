"""SQL of the registry of workers.

Heartbeats are dated by Postgres, so that replicas need not agree on the time to agree on who is
silent. `changed_xid` is the writing transaction; a poll follows it behind a fence, as for states.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

from sqlalchemy import Interval, bindparam, text
from sqlalchemy.dialects.postgresql import ARRAY, JSONB, TEXT, TIMESTAMP
from sqlalchemy.dialects.postgresql import UUID as PG_UUID

from app.db.session import ReadSession, WriteSession


@dataclass(frozen=True, slots=True)
class WorkerWrite:
    """What one heartbeat stores."""

    name: str
    instance_id: UUID
    url: str
    data_address: str
    backends: list[str]
    tiers: list[str]
    load: Mapping[str, int]


@dataclass(frozen=True, slots=True)
class StoredWorker:
    """A row. `heartbeat_us` is comparable with itself only; `age_us` says how long ago it was."""

    name: str
    instance_id: UUID
    url: str
    data_address: str
    backends: list[str]
    tiers: list[str]
    load: dict[str, Any]
    instance_since: datetime
    heartbeat_us: int
    age_us: int
    forgotten: bool


@dataclass(frozen=True, slots=True)
class WorkerChanges:
    """The workers changed at or after a fence, and the fence of the next poll."""

    xmin: int
    workers: tuple[StoredWorker, ...]


_SILENT = "present.heartbeat_at < clock_timestamp() - :silence"
_CLAIM = text(
    f"""
    INSERT INTO worker AS present
        (name, instance_id, url, data_address, backends, tiers, load, instance_since, heartbeat_at)
    VALUES (:name, :instance_id, :url, :data_address, :backends, :tiers, :load, :now,
            clock_timestamp())
    ON CONFLICT (name) DO UPDATE SET
        instance_id = excluded.instance_id,
        previous_instance_id = CASE
            WHEN present.instance_id = excluded.instance_id THEN present.previous_instance_id
            ELSE present.instance_id END,
        url = excluded.url,
        data_address = excluded.data_address,
        backends = excluded.backends,
        tiers = excluded.tiers,
        load = excluded.load,
        instance_since = CASE
            WHEN present.instance_id = excluded.instance_id THEN present.instance_since
            ELSE excluded.instance_since END,
        heartbeat_at = clock_timestamp(),
        forgotten_at = NULL
    WHERE present.instance_id = excluded.instance_id
       OR present.forgotten_at IS NOT NULL
       OR {_SILENT}
       OR (present.url = excluded.url
           AND present.previous_instance_id IS DISTINCT FROM excluded.instance_id)
    RETURNING instance_since
    """  # noqa: S608 - a condition of this module only
).bindparams(
    bindparam("instance_id", type_=PG_UUID()),
    bindparam("backends", type_=ARRAY(TEXT())),
    bindparam("tiers", type_=ARRAY(TEXT())),
    bindparam("load", type_=JSONB()),
    bindparam("now", type_=TIMESTAMP(timezone=True)),
    bindparam("silence", type_=Interval()),
)
_FORGET = text(
    """
    UPDATE worker SET forgotten_at = clock_timestamp()
    WHERE name = :name AND forgotten_at IS NULL
    RETURNING name
    """
)
_SWEEP = text(
    "DELETE FROM worker WHERE forgotten_at < clock_timestamp() - CAST('1 day' AS interval)"
)
_CHANGED = text(
    """
    SELECT poll.xmin, name, instance_id, url, data_address, backends, tiers, load, instance_since,
           (extract(epoch FROM heartbeat_at) * 1000000)::bigint AS heartbeat_us,
           (extract(epoch FROM clock_timestamp() - heartbeat_at) * 1000000)::bigint AS age_us,
           forgotten_at IS NOT NULL AS forgotten
    FROM (SELECT pg_snapshot_xmin(pg_current_snapshot())::text AS xmin) AS poll
    LEFT JOIN worker ON changed_xid >= CAST(CAST(:fence AS text) AS xid8)
    """
).columns(load=JSONB())


async def worker_claim(
    session: WriteSession, write: WorkerWrite, now: datetime, *, silence: timedelta
) -> datetime | None:
    """Store a heartbeat; since when this instance has the name.

    None, and nothing is stored, when a live worker at another URL has it, or when this instance
    was followed by another one at the same URL.
    """
    values = {name: getattr(write, name) for name in WorkerWrite.__slots__}
    found = await session.execute(_CLAIM, values | {"now": now, "silence": silence})
    since: datetime | None = found.scalar_one_or_none()
    return since


async def worker_forget(session: WriteSession, name: str) -> bool:
    """Leave a tombstone in the worker's place; False when there is no such worker."""
    await session.execute(_SWEEP)
    return (await session.execute(_FORGET, {"name": name})).scalar_one_or_none() is not None


async def workers_changed_since(session: ReadSession, fence: int) -> WorkerChanges:
    """The workers whose last change is not certainly older than `fence`; 0 gives all.

    Tombstones are among them, for a day. Rows may come twice; see `keys_changed_since` of the
    control plane for why the fence is what it is.
    """
    rows = (await session.execute(_CHANGED, {"fence": str(fence)})).all()
    workers = tuple(StoredWorker(*row[1:]) for row in rows if row.name is not None)
    return WorkerChanges(xmin=int(rows[0].xmin), workers=workers)
