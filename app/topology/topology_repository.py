"""SQL of topologies."""

from dataclasses import dataclass
from datetime import datetime
from typing import Final

from sqlalchemy import select, text
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.sql.functions import max as maximum

from app.db.session import ReadSession, WriteSession
from app.topology.models import TopologyRow


@dataclass(frozen=True, slots=True)
class TopologySummary:
    """One stored version; `content_sha256` is the raw digest of its canonical document."""

    version: int
    content_sha256: bytes
    message: str | None
    key_id: str
    created_at: datetime


@dataclass(frozen=True, slots=True)
class StoredTopology(TopologySummary):
    """One stored version, whole."""

    document: str


_SUMMARY: Final = (
    TopologyRow.version,
    TopologyRow.content_sha256,
    TopologyRow.message,
    TopologyRow.key_id,
    TopologyRow.created_at,
)
_WHOLE: Final = (*_SUMMARY, TopologyRow.document)
# Readers go on; other changes wait. Versions are then given in the order of commits.
_LOCK: Final = text("LOCK TABLE topology IN EXCLUSIVE MODE")


async def lock_topology(session: WriteSession) -> None:
    """Until the transaction ends nobody else changes the topology."""
    await session.execute(_LOCK)


async def insert_topology(
    session: WriteSession,
    *,
    content_sha256: bytes,
    document: str,
    now: datetime,
    key_id: str,
    message: str | None,
) -> TopologySummary:
    """Make a document the topology in force."""
    statement = (
        insert(TopologyRow)
        .values(
            content_sha256=content_sha256,
            document=document,
            message=message,
            key_id=key_id,
            created_at=now,
        )
        .returning(*_SUMMARY)
    )
    return TopologySummary(*(await session.execute(statement)).one())


async def latest_version(session: ReadSession) -> int:
    """The version in force; 0 when nothing is stored."""
    found: int | None = await session.scalar(select(maximum(TopologyRow.version)))
    return found or 0


async def latest_summary(session: ReadSession) -> TopologySummary | None:
    """What is in force, without its document; None when nothing is stored."""
    statement = select(*_SUMMARY).order_by(TopologyRow.version.desc()).limit(1)
    row = (await session.execute(statement)).one_or_none()
    return None if row is None else TopologySummary(*row)


async def topology_by_version(session: ReadSession, version: int) -> StoredTopology | None:
    """The version; None when there is none."""
    statement = select(*_WHOLE).where(TopologyRow.version == version)
    row = (await session.execute(statement)).one_or_none()
    return None if row is None else StoredTopology(*row)


async def topology_below(session: ReadSession, version: int) -> StoredTopology | None:
    """The newest version below one; None when there is none."""
    where = TopologyRow.version < version
    statement = select(*_WHOLE).where(where).order_by(TopologyRow.version.desc()).limit(1)
    row = (await session.execute(statement)).one_or_none()
    return None if row is None else StoredTopology(*row)


async def topologies_page(
    session: ReadSession, after: int | None, limit_rows: int
) -> list[TopologySummary]:
    """At most `limit_rows` versions below one, newest first."""
    statement = select(*_SUMMARY).order_by(TopologyRow.version.desc()).limit(limit_rows)
    if after is not None:
        statement = statement.where(TopologyRow.version < after)
    return [TopologySummary(*row) for row in await session.execute(statement)]
