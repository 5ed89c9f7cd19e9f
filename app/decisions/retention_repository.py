"""The SQL of retention: its rules, and deleting in batches of bounded length, one transaction each.

Deleting from the history is refused but to a transaction that says `nexuskv.deletes`.
"""

from dataclasses import dataclass
from datetime import date, datetime
from typing import Any, Final, NamedTuple

from sqlalchemy import ARRAY, BigInteger, DateTime, Text, TextClause, bindparam, text

from app.db.partitions import partition_name
from app.db.session import Database, ReadSession, WriteSession

ROLLUPS = ("decision_rollup", "outcome_rollup")

# Held by the one replica that removes what is old.
_REMOVAL_LOCK: Final = 0x6E6B_765F_6B65_6570
_ROW_ID: Final = {"decision": "decision_id", "decision_outcome": "outcome_id"}
# Nor does it queue before the traffic.
_EXPIRED = (
    text("SET LOCAL lock_timeout = '1s'"),
    text("SET LOCAL nexuskv.deletes = 'expired'"),
)


class KeepRule(NamedTuple):
    """Rows of `tenant` ("*" for every one) and `kind` ("" for every one) are kept `days` days."""

    tenant: str
    kind: str
    days: int


@dataclass(frozen=True, slots=True)
class Leaving:
    """Rows of one tenant that leave a day: of these kinds, or of all `but` these."""

    kinds: tuple[str, ...]
    but: bool


_RULES = text("SELECT tenant, kind, days FROM history_keep ORDER BY tenant, kind")
_SET_RULE = text(
    "INSERT INTO history_keep (tenant, kind, days, changed_at)"
    " VALUES (:tenant, :kind, :days, now()) ON CONFLICT (tenant, kind)"
    " DO UPDATE SET days = excluded.days, changed_at = excluded.changed_at"
).bindparams(bindparam("days", type_=BigInteger))
_UNSET_RULE = text("DELETE FROM history_keep WHERE tenant = :tenant AND kind = :kind RETURNING 1")
_COUNT_RULES = text("SELECT count(*) FROM history_keep")


async def keep_rules(session: ReadSession) -> list[KeepRule]:
    """Every rule, by tenant and kind; their number is limited where they are set."""
    return [KeepRule(*row) for row in (await session.execute(_RULES)).all()]


async def count_keep_rules(session: ReadSession) -> int:
    count: int = await session.scalar(_COUNT_RULES)
    return count


async def set_keep_rule(session: WriteSession, rule: KeepRule) -> None:
    """Keep it from now on; what has left already does not come back."""
    await session.execute(_SET_RULE, rule._asdict())


async def unset_keep_rule(session: WriteSession, tenant: str, kind: str) -> bool:
    """False when there was none."""
    return bool(await session.scalar(_UNSET_RULE, {"tenant": tenant, "kind": kind}))


_NOW = text("SELECT now()")
_TRY_LOCK = text("SELECT pg_try_advisory_lock(:key)").bindparams(key=_REMOVAL_LOCK)


async def database_now(database: Database) -> datetime:
    """The database's clock."""
    async with database.read() as session:
        now: datetime = await session.scalar(_NOW)
        return now


async def take_removal_turn(connection: Any) -> bool:
    """Whether this connection is now the only one that removes; its end gives the turn back."""
    return bool(await connection.scalar(_TRY_LOCK))


async def next_tenant(database: Database, table: str, day: date, after: str) -> str | None:
    """The first tenant beyond `after` with rows on a day; None when there is none.

    One step through the index by tenant, however many rows each has.
    """
    name = partition_name(table, day)
    statement = text(
        f"SELECT tenant FROM {name} WHERE tenant > :after ORDER BY tenant LIMIT 1"  # noqa: S608
    )
    async with database.read() as session:
        found: str | None = await session.scalar(statement, {"after": after})
        return found


async def delete_expired(
    database: Database,
    table: str,
    day: date,
    tenant: str,
    leaving: Leaving,
    *,
    start: datetime,
    limit_rows: int,
) -> tuple[int, datetime]:
    """Delete at most `limit_rows` rows of a tenant from one day, the oldest from `start` on.

    Returns how many, and where to go on when there were as many. The highest number of each writer
    among them is noted: numbers up to it prove nothing any more. Raises NexusError when
    unavailable.
    """
    statement = _delete_statement(table, partition_name(table, day))
    values = {
        "tenant": tenant,
        "kinds": list(leaving.kinds),
        "but": leaving.but,
        "start": start,
        "limit_rows": limit_rows,
    }
    # Not waiting for the disk: what a crash brings back leaves with a later round.
    async with database.write(durable=False) as session:
        for saying in _EXPIRED:
            await session.execute(saying)
        rows, reached = (await session.execute(statement, values)).one()
        return rows, reached or start


def _delete_statement(table: str, partition: str) -> TextClause:
    row_id = _ROW_ID[table]
    return text(
        f"""
        WITH leaving AS (
            SELECT created_at, {row_id} AS row_id FROM {partition}
            WHERE tenant = :tenant AND created_at >= :start
                AND (coalesce(kind, '') = ANY (:kinds)) <> :but
            ORDER BY created_at LIMIT :limit_rows
        ), gone AS (
            DELETE FROM {partition} p USING leaving l
            WHERE p.created_at = l.created_at AND p.{row_id} = l.row_id
            RETURNING p.created_at, p.writer_id, p.writer_seq
        ), noted AS (
            INSERT INTO decision_removed AS r (writer_id, through_seq, removed_rows, removed_at)
            SELECT writer_id, max(writer_seq), count(*), now() FROM gone
            WHERE writer_id IS NOT NULL GROUP BY writer_id ORDER BY writer_id
            ON CONFLICT (writer_id) DO UPDATE SET
                through_seq = greatest(r.through_seq, excluded.through_seq),
                removed_rows = r.removed_rows + excluded.removed_rows,
                removed_at = excluded.removed_at
        )
        SELECT count(*), max(created_at) FROM gone
        """  # noqa: S608 - names of our own
    ).bindparams(
        bindparam("kinds", type_=ARRAY(Text)),
        bindparam("start", type_=DateTime(timezone=True)),
        bindparam("limit_rows", type_=BigInteger),
    )


def _delete_rollups(table: str) -> TextClause:
    # What a late row is being added to just now is left for the next time.
    return text(
        f"""
        WITH gone AS (
            DELETE FROM {table} WHERE ctid = ANY (ARRAY(
                SELECT ctid FROM {table} WHERE step = :step AND bucket < :before
                ORDER BY bucket LIMIT :limit_rows FOR UPDATE SKIP LOCKED
            )) RETURNING 1
        )
        SELECT count(*) FROM gone
        """  # noqa: S608 - names of our own
    ).bindparams(
        bindparam("before", type_=DateTime(timezone=True)),
        bindparam("limit_rows", type_=BigInteger),
    )


_DELETE_ROLLUPS = {table: _delete_rollups(table) for table in ROLLUPS}


async def delete_rollups(
    database: Database, table: str, step: str, before: datetime, *, limit_rows: int
) -> int:
    """Delete at most `limit_rows` sums of `step` that began before a moment; returns how many."""
    values = {"step": step, "before": before, "limit_rows": limit_rows}
    async with database.write(durable=False) as session:
        return int(await session.scalar(_DELETE_ROLLUPS[table], values))


def _forget(table: str, key: str, at: str, condition: str) -> TextClause:
    return text(
        f"""
        DELETE FROM {table} WHERE ({key}) IN (
            SELECT {key} FROM {table} t WHERE {at} < :before AND {condition} LIMIT :limit_rows
        )
        """  # noqa: S608 - names of our own
    ).bindparams(
        bindparam("before", type_=DateTime(timezone=True)),
        bindparam("limit_rows", type_=BigInteger),
    )


_UNKNOWN_WRITER: Final = (
    "NOT EXISTS (SELECT 1 FROM decision_writer w WHERE w.writer_id = t.writer_id)"
)
_FORGET_WRITERS: Final = (
    _forget("decision_writer", "writer_id", "committed_at", "true"),
    _forget("decision_gap", "writer_id, first_seq", "recorded_at", _UNKNOWN_WRITER),
    _forget("decision_removed", "writer_id", "removed_at", _UNKNOWN_WRITER),
)


async def forget_writers(database: Database, before: datetime, *, limit_rows: int) -> None:
    """Delete what is known of writers that stored nothing since; at most so many rows of a table.

    What is left over leaves with a later call.
    """
    for statement in _FORGET_WRITERS:
        async with database.write(durable=False) as session:
            await session.execute(statement, {"before": before, "limit_rows": limit_rows})
