"""The history: what was chosen and what came of it as columns, its indexes, writers and rollups.

Revision: 5f0c8d2a9b14
After: 0b93d7e5a264
"""

from typing import Any

import sqlalchemy as sa
from alembic import context, op
from sqlalchemy.dialects.postgresql import ARRAY

revision = "5f0c8d2a9b14"
down_revision = "0b93d7e5a264"
branch_labels = None
depends_on = None

TIMESTAMP = sa.DateTime(timezone=True)
NEWEST = "created_at DESC, decision_id DESC"
# Columns, and of which rows; a partition has each under its own name and a number.
INDEXES = {
    "ix_decision_model_created_at": ("decision", f"model, {NEWEST}", ""),
    "ix_decision_namespace_created_at": ("decision", f"namespace, {NEWEST}", ""),
    "ix_decision_outcome_created_at": ("decision", f"outcome, {NEWEST}", ""),
    "ix_decision_policy_version_created_at": ("decision", f"policy_version, {NEWEST}", ""),
    "ix_decision_kind_created_at": ("decision", f"kind, {NEWEST}", " WHERE kind <> 'lookup'"),
    "ix_decision_fallback_reason_created_at": (
        "decision",
        f"fallback_reason, {NEWEST}",
        " WHERE fallback_reason IS NOT NULL",
    ),
    "ix_decision_backend_created_at": (
        "decision",
        f"backend, {NEWEST}",
        " WHERE backend IS NOT NULL",
    ),
    "ix_decision_tier_created_at": ("decision", f"tier, {NEWEST}", " WHERE tier IS NOT NULL"),
    "ix_decision_action_created_at": (
        "decision",
        f"action, {NEWEST}",
        " WHERE action <> ALL (ARRAY['reuse', 'recompute'])",
    ),
    "ix_decision_chain": ("decision", "root_id", " WHERE root_id <> decision_id"),
    "ix_decision_trace_id": ("decision", "trace_id", " WHERE trace_id IS NOT NULL"),
    "ix_decision_xid": ("decision", "xid", " WHERE xid IS NOT NULL"),
    "ix_decision_outcome_xid": ("decision_outcome", "xid", " WHERE xid IS NOT NULL"),
}
REPLACED = {
    "ix_decision_root_id": ("decision", "root_id", ""),
    "ix_decision_decision_id": ("decision", "decision_id", ""),
}
DECISION_COLUMNS: dict[str, sa.types.TypeEngine[Any]] = {
    "action": sa.Text(),
    "backend": sa.Text(),
    "tier": sa.Text(),
    "target": sa.Text(),
    "freshness": sa.Text(),
    "durability": sa.Text(),
    "query_tokens": sa.BigInteger(),
    "matched_tokens": sa.BigInteger(),
    "predicted_us": sa.BigInteger(),
    "recompute_us": sa.BigInteger(),
}
OUTCOME_COLUMNS: dict[str, sa.types.TypeEngine[Any]] = {
    "model": sa.Text(),
    "kind": sa.Text(),
    "backend": sa.Text(),
    "policy_version": sa.Text(),
    "tokens": sa.BigInteger(),
    "predicted_us": sa.BigInteger(),
    "recompute_us": sa.BigInteger(),
    "gain_us": sa.BigInteger(),
    "reporter": sa.Text(),
    "reported_at": TIMESTAMP,
}


class Xid8(sa.types.UserDefinedType[int]):
    cache_ok = True

    def get_col_spec(self, **_: Any) -> str:
        return "XID8"


def upgrade() -> None:
    limits()
    for table, columns in (("decision", DECISION_COLUMNS), ("decision_outcome", OUTCOME_COLUMNS)):
        for name, kind in columns.items():
            op.add_column(table, sa.Column(name, kind, nullable=True))
        # Apart: with its default the column would be written into every row there is.
        op.add_column(table, sa.Column("xid", Xid8(), nullable=True))
        op.execute(f"ALTER TABLE {table} ALTER COLUMN xid SET DEFAULT pg_current_xact_id()")
    for name in ("writer_id", "writer_seq"):
        op.alter_column("decision_outcome", name, nullable=True)
    create_writers()
    create_rollups()
    build(INDEXES)
    drop(REPLACED, "ix_decision_created_at_brin")


def downgrade() -> None:
    limits()
    drop(INDEXES)
    op.execute("CREATE INDEX ix_decision_created_at_brin ON decision USING brin (created_at)")
    op.drop_table("outcome_rollup")
    op.drop_table("decision_rollup")
    op.execute("DROP FUNCTION sum_of_counts(bigint[], bigint[])")
    op.drop_table("decision_gap")
    op.drop_table("decision_writer")
    op.execute("DELETE FROM decision_outcome WHERE writer_id IS NULL")
    for name in ("writer_id", "writer_seq"):
        op.alter_column("decision_outcome", name, nullable=False)
    for table, columns in (("decision", DECISION_COLUMNS), ("decision_outcome", OUTCOME_COLUMNS)):
        for name in (*columns, "xid"):
            op.drop_column(table, name)
    build(REPLACED)


def create_writers() -> None:
    op.create_table(
        "decision_writer",
        sa.Column("writer_id", sa.Uuid(), nullable=False),
        sa.Column("committed_seq", sa.BigInteger(), nullable=False),
        sa.Column("first_seen_at", TIMESTAMP, nullable=False),
        sa.Column("committed_at", TIMESTAMP, nullable=False),
        sa.PrimaryKeyConstraint("writer_id", name="pk_decision_writer"),
    )
    op.create_table(
        "decision_gap",
        sa.Column("writer_id", sa.Uuid(), nullable=False),
        sa.Column("first_seq", sa.BigInteger(), autoincrement=False, nullable=False),
        sa.Column("last_seq", sa.BigInteger(), nullable=False),
        sa.Column("reason", sa.Text(), nullable=False),
        sa.Column("recorded_at", TIMESTAMP, nullable=False),
        sa.PrimaryKeyConstraint("writer_id", "first_seq", name="pk_decision_gap"),
        sa.CheckConstraint("first_seq <= last_seq", name=op.f("ck_decision_gap_order")),
    )


def create_rollups() -> None:
    """Sums by minute, hour and day, updated in place with every batch: room for that is left."""
    # Histograms of equal shape; null is an empty one.
    op.execute(
        "CREATE FUNCTION sum_of_counts(a bigint[], b bigint[]) RETURNS bigint[]"
        " LANGUAGE sql IMMUTABLE PARALLEL SAFE AS"
        " $$ SELECT array_agg(coalesce(x, 0) + coalesce(y, 0) ORDER BY n)"
        " FROM unnest(a, b) WITH ORDINALITY AS t (x, y, n) $$"
    )
    op.create_table(
        "decision_rollup",
        *dimensions("outcome", "action", "reason"),
        *amounts(
            "decisions",
            "query_tokens",
            "matched_tokens",
            "latency_us",
            "predicted_us",
            "recompute_us",
        ),
        sa.Column("latency_counts", ARRAY(sa.BigInteger()), nullable=False),
        key("decision_rollup", "outcome", "action", "reason"),
        postgresql_with={"fillfactor": "50"},
    )
    op.create_table(
        "outcome_rollup",
        *dimensions("status", "reason"),
        *amounts(
            "outcomes", "physical", "bytes", "tokens", "observed_us", "predicted_us", "gain_us"
        ),
        # Of those that have a prediction and an observation.
        *amounts("compared", "compared_observed_us"),
        sa.Column("error_counts", ARRAY(sa.BigInteger()), nullable=False),
        key("outcome_rollup", "status", "reason"),
        postgresql_with={"fillfactor": "50"},
    )


def dimensions(*own: str) -> list[sa.Column[Any]]:
    names = ("tenant", "model", "kind", "backend", "policy_version", *own)
    return [
        sa.Column("step", sa.Text(), nullable=False),
        sa.Column("bucket", TIMESTAMP, nullable=False),
        *(sa.Column(name, sa.Text(), nullable=False) for name in names),
    ]


def amounts(*names: str) -> list[sa.Column[Any]]:
    return [
        sa.Column(name, sa.Numeric(40, 0) if name.endswith("_us") else sa.BigInteger(),
                  nullable=False)
        for name in names
    ]  # fmt: skip


def key(table: str, *own: str) -> sa.PrimaryKeyConstraint:
    names = ("tenant", "model", "kind", "backend", "policy_version", *own)
    return sa.PrimaryKeyConstraint("step", "bucket", *names, name=f"pk_{table}")


def limits() -> None:
    op.execute("SET LOCAL lock_timeout = '4s'")
    op.execute("SET LOCAL statement_timeout = '60s'")


def build(indexes: dict[str, tuple[str, str, str]]) -> None:
    """In one go where no row is in the way yet; else partition by partition, beside the inserts."""
    if not any(rows_in(table) for table in {table for table, _, _ in indexes.values()}):
        for name, (table, columns, where) in indexes.items():
            op.execute(f"CREATE INDEX {name} ON {table} ({columns}){where}")
        return
    with op.get_context().autocommit_block():
        op.execute("SET lock_timeout = '4s'")
        for name, (table, columns, where) in indexes.items():
            op.execute(f"CREATE INDEX IF NOT EXISTS {name} ON ONLY {table} ({columns}){where}")
            for partition in partitions(table):
                # The parent's own becomes valid with the last of them.
                own = f"{partition}_{name.removeprefix('ix_')}"[:63]
                op.execute(f"DROP INDEX IF EXISTS {own}")
                op.execute(f"CREATE INDEX CONCURRENTLY {own} ON {partition} ({columns}){where}")
                op.execute(f"ALTER INDEX {name} ATTACH PARTITION {own}")
        op.execute("RESET lock_timeout")
    limits()


def rows_in(table: str) -> bool:
    if context.is_offline_mode():
        return False
    return bool(op.get_bind().scalar(sa.text(f"SELECT EXISTS (SELECT 1 FROM {table})")))  # noqa: S608


def drop(indexes: dict[str, tuple[str, str, str]], *more: str) -> None:
    limits()
    for name in (*indexes, *more):
        op.execute(f"DROP INDEX {name}")


def partitions(table: str) -> list[str]:
    """Attached ones; none where SQL is only printed."""
    if context.is_offline_mode():
        return []
    found = op.get_bind().execute(
        sa.text(
            "SELECT inhrelid::regclass::text FROM pg_inherits"
            " WHERE inhparent = CAST(:table AS regclass) AND NOT inhdetachpending ORDER BY 1"
        ),
        {"table": table},
    )
    return [name for (name,) in found]
