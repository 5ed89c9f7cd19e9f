"""SQL of the control plane: API keys and the secrets that all replicas share."""

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from sqlalchemy import Select, func, literal, select, true, update
from sqlalchemy.dialects.postgresql import insert

from app.control.models import ApiKeyRow, DeploymentSecretRow
from app.db.base import Xid8
from app.db.session import ReadSession, WriteSession

KeyColumns = tuple[str, str, bytes, list[str], list[str], datetime, datetime | None]


@dataclass(frozen=True, slots=True)
class StoredKey:
    """One row of `api_key`; `sha256` is the digest of the whole key."""

    key_id: str
    name: str
    sha256: bytes
    scopes: list[str]
    tenants: list[str]
    created_at: datetime
    revoked_at: datetime | None


@dataclass(frozen=True, slots=True)
class KeyChanges:
    """The keys changed at or after a fence, and the fence of the next poll."""

    xmin: int
    keys: tuple[StoredKey, ...]


async def insert_key(session: WriteSession, key: StoredKey) -> None:
    """Store a new key. Raises IntegrityError when its id or digest exists."""
    await session.execute(
        insert(ApiKeyRow).values(
            key_id=key.key_id,
            name=key.name,
            key_sha256=key.sha256,
            scopes=key.scopes,
            tenants=key.tenants,
            created_at=key.created_at,
        )
    )


async def list_keys(session: ReadSession) -> list[StoredKey]:
    """Every key, revoked ones too, oldest first."""
    rows = await session.execute(_keys().order_by(ApiKeyRow.created_at, ApiKeyRow.key_id))
    return [_stored(row) for row in rows]


async def revoke_key(session: WriteSession, key_id: str, revoked_at: datetime) -> StoredKey | None:
    """Revoke a key for good; a repeated call keeps the first time. None when there is no such."""
    await session.execute(
        update(ApiKeyRow)
        .where(ApiKeyRow.key_id == key_id, ApiKeyRow.revoked_at.is_(None))
        .values(revoked_at=revoked_at, changed_xid=func.pg_current_xact_id())
    )
    row = (await session.execute(_keys().where(ApiKeyRow.key_id == key_id))).one_or_none()
    return None if row is None else _stored(row)


async def key_by_sha256(session: ReadSession, sha256: bytes) -> StoredKey | None:
    """The key with this digest, revoked or not; None when there is none."""
    row = (await session.execute(_keys().where(ApiKeyRow.key_sha256 == sha256))).one_or_none()
    return None if row is None else _stored(row)


async def keys_changed_since(session: ReadSession, fence: int) -> KeyChanges:
    """Return the keys whose last change is not certainly older than `fence`.

    Transactions commit in another order than their ids, so "newer than the newest seen" would
    lose a change that commits late. The fence is therefore the oldest transaction still running
    when the previous poll took its snapshot: everything older was visible to that poll. Rows and
    the next fence come from one statement, hence from one snapshot; rows may come twice.
    """
    snapshot = select(func.pg_snapshot_xmin(func.pg_current_snapshot(), type_=Xid8).label("xmin"))
    poll = snapshot.subquery("poll")
    changed = _keys().where(ApiKeyRow.changed_xid >= literal(fence, Xid8)).subquery("changed")
    rows = (
        await session.execute(
            select(poll.c.xmin, changed).select_from(poll.outerjoin(changed, true()))
        )
    ).all()
    keys = tuple(_stored(row[1:]) for row in rows if row[1] is not None)
    return KeyChanges(xmin=rows[0].xmin, keys=keys)


async def get_or_create_secret(session: WriteSession, name: str, candidate: bytes) -> bytes:
    """The deployment's secret of this name; `candidate` (random) becomes it if there is none yet.

    Replicas that start together agree: one candidate wins, all read that one.
    """
    await session.execute(
        insert(DeploymentSecretRow)
        .values(name=name, secret=candidate)
        .on_conflict_do_nothing(index_elements=[DeploymentSecretRow.name])
    )
    secret = select(DeploymentSecretRow.secret).where(DeploymentSecretRow.name == name)
    kept: bytes = (await session.execute(secret)).scalar_one()
    return kept


def _keys() -> Select[*KeyColumns]:
    return select(
        ApiKeyRow.key_id,
        ApiKeyRow.name,
        ApiKeyRow.key_sha256,
        ApiKeyRow.scopes,
        ApiKeyRow.tenants,
        ApiKeyRow.created_at,
        ApiKeyRow.revoked_at,
    )


def _stored(columns: Iterable[Any]) -> StoredKey:
    return StoredKey(*columns)
