"""Policies with their activations, and what each tenant's own transfers hold.

Revision: b1f0c6a2d3e4
After: 8c2f4b61d0a7
"""

import sqlalchemy as sa
from alembic import op

revision = "b1f0c6a2d3e4"
down_revision = "8c2f4b61d0a7"
branch_labels = None
depends_on = None

TIMESTAMP = sa.DateTime(timezone=True)
INSERT_ONLY = ("execution_policy", "policy_activation")


def upgrade() -> None:
    op.execute("SET LOCAL lock_timeout = '4s'")
    op.execute("SET LOCAL statement_timeout = '60s'")
    create_policies()
    create_quotas()
    for table in INSERT_ONLY:
        op.execute(
            f"CREATE TRIGGER refuse_change BEFORE UPDATE OR DELETE ON {table}"
            " FOR EACH ROW EXECUTE FUNCTION refuse_change()"
        )
        op.execute(
            f"CREATE TRIGGER refuse_truncate BEFORE TRUNCATE ON {table}"
            " FOR EACH STATEMENT EXECUTE FUNCTION refuse_change()"
        )


def create_policies() -> None:
    op.create_table(
        "execution_policy",
        sa.Column("number", sa.BigInteger(), sa.Identity(always=True), nullable=False),
        sa.Column("content_sha256", sa.LargeBinary(), nullable=False),
        sa.Column("document", sa.Text(), nullable=False),
        sa.Column("source", sa.Text(), nullable=False),
        sa.Column("message", sa.Text(), nullable=True),
        sa.Column("key_id", sa.Text(), nullable=False),
        sa.Column("created_at", TIMESTAMP, nullable=False),
        sa.PrimaryKeyConstraint("number", name="pk_execution_policy"),
        sa.UniqueConstraint("content_sha256", name="uq_execution_policy_content_sha256"),
        sa.CheckConstraint(
            "octet_length(content_sha256) = 32",
            name=op.f("ck_execution_policy_content_sha256_bytes"),
        ),
    )
    op.create_table(
        "policy_activation",
        sa.Column("activation_id", sa.BigInteger(), sa.Identity(always=True), nullable=False),
        sa.Column("number", sa.BigInteger(), nullable=False),
        sa.Column("activated_at", TIMESTAMP, nullable=False),
        sa.Column("key_id", sa.Text(), nullable=False),
        sa.Column("message", sa.Text(), nullable=True),
        sa.PrimaryKeyConstraint("activation_id", name="pk_policy_activation"),
        sa.ForeignKeyConstraint(
            ["number"],
            ["execution_policy.number"],
            name="fk_policy_activation_number_execution_policy",
        ),
    )
    op.create_index("ix_policy_activation_number", "policy_activation", ["number"])


def create_quotas() -> None:
    op.create_table(
        "quota_tenant",
        sa.Column("tenant", sa.Text(), nullable=False),
        sa.Column("payload_bytes", sa.BigInteger(), server_default="0", nullable=False),
        sa.Column("entries", sa.BigInteger(), server_default="0", nullable=False),
        sa.Column("transfers", sa.BigInteger(), server_default="0", nullable=False),
        sa.PrimaryKeyConstraint("tenant", name="pk_quota_tenant"),
        sa.CheckConstraint(
            "payload_bytes >= 0 AND entries >= 0 AND transfers >= 0",
            name=op.f("ck_quota_tenant_not_negative"),
        ),
    )
    op.create_table(
        "quota_charge",
        sa.Column("tenant", sa.Text(), nullable=False),
        sa.Column("kind", sa.Text(), nullable=False),
        sa.Column("charge_id", sa.Text(), nullable=False),
        sa.Column("payload_bytes", sa.BigInteger(), nullable=False),
        sa.Column("entries", sa.BigInteger(), server_default="1", nullable=False),
        sa.Column("worker", sa.Text(), nullable=True),
        sa.Column("created_at", TIMESTAMP, nullable=False),
        sa.Column("expires_at", TIMESTAMP, nullable=True),
        sa.PrimaryKeyConstraint("tenant", "kind", "charge_id", name="pk_quota_charge"),
        sa.ForeignKeyConstraint(
            ["tenant"], ["quota_tenant.tenant"], name="fk_quota_charge_tenant_quota_tenant"
        ),
        sa.CheckConstraint("kind IN ('payload', 'transfer')", name=op.f("ck_quota_charge_kind")),
        sa.CheckConstraint(
            "payload_bytes >= 0 AND entries >= 1", name=op.f("ck_quota_charge_amounts")
        ),
    )
    op.create_index(
        "ix_quota_charge_worker",
        "quota_charge",
        ["worker"],
        postgresql_where=sa.text("worker IS NOT NULL"),
    )
    op.create_index(
        "ix_quota_charge_expires_at",
        "quota_charge",
        ["tenant", "expires_at"],
        postgresql_where=sa.text("expires_at IS NOT NULL"),
    )


def downgrade() -> None:
    op.execute("SET LOCAL lock_timeout = '4s'")
    op.execute("SET LOCAL statement_timeout = '60s'")
    for table in ("quota_charge", "quota_tenant", "policy_activation", "execution_policy"):
        op.drop_table(table)
