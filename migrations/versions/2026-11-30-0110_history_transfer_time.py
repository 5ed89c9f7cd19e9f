"""Outcomes tell how long the bytes took at the worker, beside how long the request did; the content
of policy files is kept, so that decisions under them can be made again.

Revision: b41d7e92c605
After: 8c2f6a10b7d3
"""

import sqlalchemy as sa
from alembic import op

revision = "b41d7e92c605"
down_revision = "8c2f6a10b7d3"
branch_labels = None
depends_on = None

SHOWN = (
    "outcome_id, created_at, decision_id, tenant, model, kind, backend, policy_version, status,"
    " fallback_reason, physical, tokens, bytes_transferred, observed_us, predicted_us,"
    " recompute_us, gain_us, reported_at, detail"
)


def upgrade() -> None:
    limits()
    # Without a default no row is written, in any partition.
    op.execute("ALTER TABLE decision_outcome ADD COLUMN IF NOT EXISTS transfer_us bigint")
    show(f"{SHOWN}, transfer_us", replace=True)
    op.create_table(
        "policy_file",
        sa.Column("version", sa.Text(), primary_key=True),
        sa.Column("document", sa.Text(), nullable=False),
        sa.Column("first_seen_at", sa.DateTime(timezone=True), nullable=False),
    )


def downgrade() -> None:
    limits()
    op.drop_table("policy_file")
    op.execute("DROP VIEW history.outcomes")
    op.drop_column("decision_outcome", "transfer_us")
    show(SHOWN, replace=False)


def show(columns: str, *, replace: bool) -> None:
    create = "CREATE OR REPLACE VIEW" if replace else "CREATE VIEW"
    op.execute(f"{create} history.outcomes AS SELECT {columns} FROM decision_outcome")  # noqa: S608


def limits() -> None:
    op.execute("SET LOCAL lock_timeout = '4s'")
    op.execute("SET LOCAL statement_timeout = '60s'")
