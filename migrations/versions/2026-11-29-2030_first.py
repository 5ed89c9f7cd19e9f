"""The first schema: keys, states, option claims, and the partitioned history.

Revision: 8c2f4b61d0a7
After: nothing
"""

from typing import Any

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects.postgresql import ARRAY, JSONB

revision = "8c2f4b61d0a7"
down_revision = None
branch_labels = None
depends_on = None

TIMESTAMP = sa.DateTime(timezone=True)
PARTITIONED = ("decision", "decision_outcome")

# The day partitions around the day the migration runs, so that the first insert finds its place;
# app.decisions.partitions makes the later ones.
FIRST_PARTITIONS = """
DO $$
DECLARE
    today date := (now() AT TIME ZONE 'utc')::date;
    first timestamp;
BEGIN
    FOR ahead IN -1..7 LOOP
        first := today + ahead;
        EXECUTE format(
            'CREATE TABLE %I PARTITION OF %I FOR VALUES FROM (%L) TO (%L)',
            '{table}_p' || to_char(first, 'YYYYMMDD'), '{table}',
            first AT TIME ZONE 'utc', (first + interval '1 day') AT TIME ZONE 'utc'
        );
    END LOOP;
END
$$
"""

REFUSE_CHANGE = """
CREATE FUNCTION refuse_change() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    RAISE EXCEPTION '% of % is refused: the history is insert-only', TG_OP, TG_TABLE_NAME
        USING ERRCODE = 'restrict_violation';
END
$$
"""

STAMP_CHANGE = """
CREATE FUNCTION stamp_change() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    NEW.changed_xid := pg_current_xact_id();
    RETURN NEW;
END
$$
"""


class Xid8(sa.types.UserDefinedType[int]):
    cache_ok = True

    def get_col_spec(self, **_: Any) -> str:
        return "XID8"


def changed_xid() -> "sa.Column[int]":
    return sa.Column(
        "changed_xid", Xid8(), server_default=sa.text("pg_current_xact_id()"), nullable=False
    )


def upgrade() -> None:
    op.execute("SET LOCAL lock_timeout = '4s'")
    op.execute("SET LOCAL statement_timeout = '60s'")
    op.execute(STAMP_CHANGE)
    op.execute(REFUSE_CHANGE)
    create_control()
    create_state()
    create_option_claim()
    create_decision()
    create_decision_outcome()
    for table in ("api_key", "state"):
        # A poll over changed_xid must not depend on every UPDATE remembering to set it.
        op.execute(
            f"CREATE TRIGGER stamp_change BEFORE UPDATE ON {table}"
            " FOR EACH ROW EXECUTE FUNCTION stamp_change()"
        )
    for table in PARTITIONED:
        op.execute(
            f"CREATE TRIGGER refuse_change BEFORE UPDATE OR DELETE ON {table}"
            " FOR EACH ROW EXECUTE FUNCTION refuse_change()"
        )
        op.execute(
            f"CREATE TRIGGER refuse_truncate BEFORE TRUNCATE ON {table}"
            " FOR EACH STATEMENT EXECUTE FUNCTION refuse_change()"
        )
        op.execute(FIRST_PARTITIONS.format(table=table))


def create_control() -> None:
    op.create_table(
        "deployment_secret",
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("secret", sa.LargeBinary(), nullable=False),
        sa.Column("created_at", TIMESTAMP, server_default=sa.text("now()"), nullable=False),
        sa.PrimaryKeyConstraint("name", name="pk_deployment_secret"),
    )
    op.create_table(
        "api_key",
        sa.Column("key_id", sa.Text(), nullable=False),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("key_sha256", sa.LargeBinary(), nullable=False),
        sa.Column("scopes", ARRAY(sa.Text()), nullable=False),
        sa.Column("tenants", ARRAY(sa.Text()), nullable=False),
        sa.Column("created_at", TIMESTAMP, server_default=sa.text("now()"), nullable=False),
        sa.Column("revoked_at", TIMESTAMP, nullable=True),
        changed_xid(),
        sa.PrimaryKeyConstraint("key_id", name="pk_api_key"),
        sa.UniqueConstraint("key_sha256", name="uq_api_key_key_sha256"),
        sa.CheckConstraint(
            "octet_length(key_sha256) = 32", name=op.f("ck_api_key_key_sha256_bytes")
        ),
    )
    op.create_index("ix_api_key_changed_xid", "api_key", ["changed_xid"])


def create_state() -> None:
    op.create_table(
        "state",
        sa.Column("state_id", sa.Uuid(), nullable=False),
        sa.Column("tenant", sa.Text(), nullable=False),
        sa.Column("entry_id", sa.Text(), nullable=False),
        sa.Column("generation", sa.BigInteger(), nullable=False),
        sa.Column("lineage", sa.Text(), nullable=False),
        sa.Column("namespace", sa.Text(), nullable=False),
        sa.Column("model", sa.Text(), nullable=False),
        sa.Column("engine_family", sa.Text(), nullable=False),
        sa.Column("semantic_type", sa.Text(), nullable=False),
        sa.Column("tier", sa.Text(), nullable=False),
        sa.Column("locator", sa.Text(), nullable=False),
        sa.Column("token_count", sa.Integer(), nullable=False),
        sa.Column("identity_hash", sa.LargeBinary(), nullable=False),
        sa.Column("content_hash", sa.LargeBinary(), nullable=False),
        sa.Column("body", JSONB(), nullable=True),
        sa.Column("tokens", sa.LargeBinary(), nullable=True),
        sa.Column("created_at", TIMESTAMP, nullable=False),
        sa.Column("updated_at", TIMESTAMP, nullable=False),
        sa.Column("deleted_at", TIMESTAMP, nullable=True),
        changed_xid(),
        sa.PrimaryKeyConstraint("state_id", name="pk_state"),
        sa.UniqueConstraint("tenant", "entry_id", name="uq_state_tenant_entry_id"),
        sa.CheckConstraint("generation BETWEEN 0 AND 4294967295", name=op.f("ck_state_generation")),
        sa.CheckConstraint("token_count >= 1", name=op.f("ck_state_token_count")),
        sa.CheckConstraint(
            "octet_length(content_hash) = 32", name=op.f("ck_state_content_hash_bytes")
        ),
        sa.CheckConstraint(
            "(body IS NULL) = (deleted_at IS NOT NULL)", name=op.f("ck_state_tombstone")
        ),
        sa.CheckConstraint(
            "(tokens IS NULL) = (deleted_at IS NOT NULL)", name=op.f("ck_state_tokens")
        ),
    )
    op.create_index("ix_state_changed_xid", "state", ["changed_xid"])
    op.create_index("ix_state_tenant_state_id", "state", ["tenant", "state_id"])


def create_option_claim() -> None:
    op.create_table(
        "option_claim",
        sa.Column("option_id", sa.LargeBinary(), nullable=False),
        sa.Column("tenant", sa.Text(), nullable=False),
        sa.Column("import_id", sa.Text(), nullable=False),
        sa.Column("sink_namespace", sa.Text(), nullable=False),
        sa.Column("sink_value", sa.Text(), nullable=False),
        sa.Column("status", sa.Text(), nullable=False),
        sa.Column("fence", sa.BigInteger(), nullable=False),
        sa.Column("claimed_at", TIMESTAMP, nullable=False),
        sa.Column("claim_expires_at", TIMESTAMP, nullable=False),
        sa.Column("consumed_at", TIMESTAMP, nullable=True),
        sa.Column("receipt", JSONB(), nullable=True),
        sa.Column("decision_id", sa.Uuid(), nullable=True),
        sa.PrimaryKeyConstraint("option_id", name="pk_option_claim"),
        sa.CheckConstraint(
            "octet_length(option_id) = 16", name=op.f("ck_option_claim_option_id_bytes")
        ),
        sa.CheckConstraint(
            "status IN ('claimed', 'consumed')", name=op.f("ck_option_claim_status")
        ),
    )
    op.create_index("ix_option_claim_claimed_at", "option_claim", ["claimed_at"])


def create_decision() -> None:
    op.create_table(
        "decision",
        sa.Column("decision_id", sa.Uuid(), nullable=False),
        sa.Column("created_at", TIMESTAMP, nullable=False),
        sa.Column("tenant", sa.Text(), nullable=False),
        sa.Column("namespace", sa.Text(), nullable=False),
        sa.Column("model", sa.Text(), nullable=False),
        sa.Column("kind", sa.Text(), nullable=False),
        sa.Column("outcome", sa.Text(), nullable=False),
        sa.Column("fallback_reason", sa.Text(), nullable=True),
        sa.Column("identity_hash", sa.LargeBinary(), nullable=True),
        sa.Column("parent_id", sa.Uuid(), nullable=True),
        sa.Column("root_id", sa.Uuid(), nullable=False),
        sa.Column("key_id", sa.Text(), nullable=False),
        sa.Column("trace_id", sa.Text(), nullable=True),
        sa.Column("policy_version", sa.Text(), nullable=False),
        sa.Column("entry_id", sa.Text(), nullable=True),
        sa.Column("state_id", sa.Uuid(), nullable=True),
        sa.Column("match", JSONB(), nullable=True),
        sa.Column("compatibility", JSONB(), nullable=True),
        sa.Column("excluded", JSONB(), nullable=False),
        sa.Column("estimate", JSONB(), nullable=True),
        sa.Column("selected_path", sa.Text(), nullable=True),
        sa.Column("path", ARRAY(sa.Text()), nullable=False),
        sa.Column("index_revision", sa.BigInteger(), nullable=False),
        sa.Column("latency_us", sa.BigInteger(), nullable=False),
        sa.Column("inputs", JSONB(), nullable=False),
        sa.Column("writer_id", sa.Uuid(), nullable=False),
        sa.Column("writer_seq", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("created_at", "decision_id", name="pk_decision"),
        postgresql_partition_by="RANGE (created_at)",
    )
    op.create_index(
        "ix_decision_tenant_created_at",
        "decision",
        ["tenant", sa.text("created_at DESC"), sa.text("decision_id DESC")],
    )
    op.create_index("ix_decision_decision_id", "decision", ["decision_id"])
    op.create_index("ix_decision_root_id", "decision", ["root_id"])
    op.create_index(
        "ix_decision_created_at_brin", "decision", ["created_at"], postgresql_using="brin"
    )


def create_decision_outcome() -> None:
    op.create_table(
        "decision_outcome",
        sa.Column("outcome_id", sa.Uuid(), nullable=False),
        sa.Column("created_at", TIMESTAMP, nullable=False),
        sa.Column("decision_id", sa.Uuid(), nullable=False),
        sa.Column("tenant", sa.Text(), nullable=False),
        sa.Column("status", sa.Text(), nullable=False),
        sa.Column("fallback_reason", sa.Text(), nullable=True),
        sa.Column("observed_us", sa.BigInteger(), nullable=True),
        sa.Column("bytes_transferred", sa.BigInteger(), nullable=True),
        sa.Column("physical", sa.Boolean(), nullable=False),
        sa.Column("detail", JSONB(), nullable=False),
        sa.Column("writer_id", sa.Uuid(), nullable=False),
        sa.Column("writer_seq", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("created_at", "outcome_id", name="pk_decision_outcome"),
        postgresql_partition_by="RANGE (created_at)",
    )
    op.create_index("ix_decision_outcome_decision_id", "decision_outcome", ["decision_id"])


def downgrade() -> None:
    op.execute("SET LOCAL lock_timeout = '4s'")
    op.execute("SET LOCAL statement_timeout = '60s'")
    for table in ("decision_outcome", "decision", "option_claim", "state", "api_key"):
        op.drop_table(table)
    op.drop_table("deployment_secret")
    op.execute("DROP FUNCTION refuse_change()")
    op.execute("DROP FUNCTION stamp_change()")
