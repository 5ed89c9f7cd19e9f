"""The SQL that proves a writer's sequence complete: slices of bounded length, in order of time."""

from collections.abc import Sequence
from datetime import datetime
from typing import Any, NamedTuple

from sqlalchemy import BigInteger, DateTime, Uuid, bindparam, text

from app.db.session import ReadSession


class WriterFacts(NamedTuple):
    """What the database says of one writer's sequence."""

    writer_id: Any
    committed_seq: int
    first_seen_at: datetime


class Island(NamedTuple):
    """Numbers of one writer without a hole, and how many rows have them: more are repeats."""

    writer_id: Any
    first_seq: int
    last_seq: int
    rows: int


class GapFacts(NamedTuple):
    """Numbers that were lost, both ends included, and why."""

    writer_id: Any
    first_seq: int
    last_seq: int
    reason: str


_WRITERS = text(
    "SELECT writer_id, committed_seq, first_seen_at FROM decision_writer"
    " WHERE (CAST(:writer_id AS uuid) IS NULL OR writer_id = :writer_id)"
    " ORDER BY first_seen_at, writer_id LIMIT :limit_rows"
).bindparams(bindparam("writer_id", type_=Uuid), bindparam("limit_rows", type_=BigInteger))
_GAPS = text(
    "SELECT writer_id, first_seq, last_seq, reason FROM decision_gap"
    " WHERE writer_id = :writer_id ORDER BY first_seq LIMIT :limit_rows"
).bindparams(bindparam("writer_id", type_=Uuid), bindparam("limit_rows", type_=BigInteger))
_REMOVED = text("SELECT writer_id, through_seq FROM decision_removed")
# Both tables side by side: a writer counts through both.
_BOTH = (
    "(SELECT created_at, writer_id, writer_seq FROM decision UNION ALL"
    " SELECT created_at, writer_id, writer_seq FROM decision_outcome)"
)
_SLICE_END = text(
    f"""
    SELECT max(created_at) FROM (
        SELECT created_at FROM {_BOTH} r WHERE created_at >= :start
        ORDER BY created_at LIMIT :limit_rows
    ) s
    """  # noqa: S608 - a constant of this module
).bindparams(
    bindparam("start", type_=DateTime(timezone=True)), bindparam("limit_rows", type_=BigInteger)
)
_ISLANDS = text(
    f"""
    SELECT writer_id, min(writer_seq), max(writer_seq), count(*) FROM (
        SELECT writer_id, writer_seq,
            writer_seq - dense_rank() OVER (PARTITION BY writer_id ORDER BY writer_seq) AS island
        FROM {_BOTH} r WHERE created_at BETWEEN :start AND :stop AND writer_id IS NOT NULL
            AND (CAST(:writer_id AS uuid) IS NULL OR writer_id = :writer_id)
    ) n
    GROUP BY writer_id, island ORDER BY writer_id, 2
    """  # noqa: S608 - a constant of this module
).bindparams(
    bindparam("start", type_=DateTime(timezone=True)),
    bindparam("stop", type_=DateTime(timezone=True)),
    bindparam("writer_id", type_=Uuid),
)


async def writers(
    session: ReadSession, writer_id: Any | None, *, limit_rows: int
) -> list[WriterFacts]:
    """Every writer, or the one; oldest first."""
    values = {"writer_id": writer_id, "limit_rows": limit_rows}
    return [WriterFacts(*row) for row in (await session.execute(_WRITERS, values)).all()]


async def gaps_of(session: ReadSession, writer_id: Any, *, limit_rows: int) -> list[GapFacts]:
    """The gaps of one writer, in order."""
    values = {"writer_id": writer_id, "limit_rows": limit_rows}
    return [GapFacts(*row) for row in (await session.execute(_GAPS, values)).all()]


async def removed_through(session: ReadSession) -> dict[Any, int]:
    """Through which number of each writer rows have left before their day did."""
    return {row[0]: row[1] for row in (await session.execute(_REMOVED)).all()}


async def slice_end(session: ReadSession, start: datetime, *, limit_rows: int) -> datetime | None:
    """The time of the last of the next `limit_rows` rows of both tables; None when none is left."""
    found: datetime | None = await session.scalar(
        _SLICE_END, {"start": start, "limit_rows": limit_rows}
    )
    return found


async def islands(
    session: ReadSession, start: datetime, stop: datetime, writer_id: Any | None
) -> Sequence[Island]:
    """The numbers stored between two times, both included, of one writer or of all."""
    values = {"start": start, "stop": stop, "writer_id": writer_id}
    return [Island(*row) for row in (await session.execute(_ISLANDS, values)).all()]
