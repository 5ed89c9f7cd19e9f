"""Cost profiles, and the topology that plans know, each in versions.

Revision: e57a3c0d9b18
After: b41d7e92c605
"""

import sqlalchemy as sa
from alembic import op

revision = "e57a3c0d9b18"
down_revision = "b41d7e92c605"
branch_labels = None
depends_on = None

TIMESTAMP = sa.DateTime(timezone=True)
INSERT_ONLY = ("cost_profile", "topology")


def upgrade() -> None:
    limits()
    op.create_table(
        "cost_profile",
        sa.Column("number", sa.BigInteger(), sa.Identity(always=True), nullable=False),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("model", sa.Text(), nullable=False),
        sa.Column("hardware", sa.Text(), nullable=False),
        sa.Column("content_sha256", sa.LargeBinary(), nullable=False),
        sa.Column("document", sa.Text(), nullable=False),
        sa.Column("source", sa.Text(), nullable=False),
        sa.Column("message", sa.Text(), nullable=True),
        sa.Column("key_id", sa.Text(), nullable=False),
        sa.Column("created_at", TIMESTAMP, nullable=False),
        sa.PrimaryKeyConstraint("number", name="pk_cost_profile"),
        sa.UniqueConstraint("content_sha256", name="uq_cost_profile_content_sha256"),
        sa.CheckConstraint(
            "octet_length(content_sha256) = 32", name=op.f("ck_cost_profile_content_sha256_bytes")
        ),
    )
    op.create_index("ix_cost_profile_name", "cost_profile", ["name", "number"])
    op.create_table(
        "topology",
        sa.Column("version", sa.BigInteger(), sa.Identity(always=True), nullable=False),
        sa.Column("content_sha256", sa.LargeBinary(), nullable=False),
        sa.Column("document", sa.Text(), nullable=False),
        sa.Column("message", sa.Text(), nullable=True),
        sa.Column("key_id", sa.Text(), nullable=False),
        sa.Column("created_at", TIMESTAMP, nullable=False),
        sa.PrimaryKeyConstraint("version", name="pk_topology"),
        sa.CheckConstraint(
            "octet_length(content_sha256) = 32", name=op.f("ck_topology_content_sha256_bytes")
        ),
    )
    for table in INSERT_ONLY:
        op.execute(
            f"CREATE TRIGGER refuse_change BEFORE UPDATE OR DELETE ON {table}"
            " FOR EACH ROW EXECUTE FUNCTION refuse_change()"
        )
        op.execute(
            f"CREATE TRIGGER refuse_truncate BEFORE TRUNCATE ON {table}"
            " FOR EACH STATEMENT EXECUTE FUNCTION refuse_change()"
        )


def downgrade() -> None:
    limits()
    for table in INSERT_ONLY:
        op.drop_table(table)


def limits() -> None:
    op.execute("SET LOCAL lock_timeout = '4s'")
    op.execute("SET LOCAL statement_timeout = '60s'")
