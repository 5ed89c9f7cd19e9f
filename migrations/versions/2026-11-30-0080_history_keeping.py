"""How long the history of a tenant is kept, and rows that leave before their day does.

Deleting stays refused but to whoever says in the transaction that the rows are expired.

Revision: 7d21c04be95a
After: 5f0c8d2a9b14
"""

import sqlalchemy as sa
from alembic import context, op

revision = "7d21c04be95a"
down_revision = "5f0c8d2a9b14"
branch_labels = None
depends_on = None

TIMESTAMP = sa.DateTime(timezone=True)
BY_TENANT = "ix_decision_outcome_tenant_created_at"
REFUSE_CHANGE = """
CREATE OR REPLACE FUNCTION refuse_change() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
{exception}    RAISE EXCEPTION '% of % is refused: the history is insert-only', TG_OP, TG_TABLE_NAME
        USING ERRCODE = 'restrict_violation';
END
$$
"""
UNLESS_EXPIRED = """\
    IF TG_OP = 'DELETE' AND current_setting('nexuskv.deletes', true) = 'expired' THEN
        RETURN OLD;
    END IF;
"""


def upgrade() -> None:
    limits()
    op.create_table(
        "history_keep",
        sa.Column("tenant", sa.Text(), nullable=False),
        sa.Column("kind", sa.Text(), nullable=False),
        sa.Column("days", sa.Integer(), nullable=False),
        sa.Column("changed_at", TIMESTAMP, nullable=False),
        sa.PrimaryKeyConstraint("tenant", "kind", name="pk_history_keep"),
        sa.CheckConstraint("days BETWEEN 1 AND 400", name=op.f("ck_history_keep_days")),
    )
    op.create_table(
        "decision_removed",
        sa.Column("writer_id", sa.Uuid(), nullable=False),
        sa.Column("through_seq", sa.BigInteger(), nullable=False),
        sa.Column("removed_rows", sa.BigInteger(), nullable=False),
        sa.Column("removed_at", TIMESTAMP, nullable=False),
        sa.PrimaryKeyConstraint("writer_id", name="pk_decision_removed"),
    )
    op.execute(REFUSE_CHANGE.format(exception=UNLESS_EXPIRED))
    with op.get_context().autocommit_block():
        columns = "(tenant, created_at)"
        op.execute(f"CREATE INDEX IF NOT EXISTS {BY_TENANT} ON ONLY decision_outcome {columns}")
        for partition in partitions("decision_outcome"):
            own = f"{partition}_{BY_TENANT.removeprefix('ix_')}"[:63]
            op.execute(f"DROP INDEX IF EXISTS {own}")
            op.execute(f"CREATE INDEX CONCURRENTLY {own} ON {partition} {columns}")
            op.execute(f"ALTER INDEX {BY_TENANT} ATTACH PARTITION {own}")


def downgrade() -> None:
    limits()
    op.execute(f"DROP INDEX {BY_TENANT}")
    op.execute(REFUSE_CHANGE.format(exception=""))
    op.drop_table("decision_removed")
    op.drop_table("history_keep")


def limits() -> None:
    op.execute("SET LOCAL lock_timeout = '4s'")
    op.execute("SET LOCAL statement_timeout = '60s'")


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
