"""Transfer sessions: what was asked for over /v1/transfers, and how it ended.

Revision: d4a8e2c91f37
After: c7d95e1b8a20
"""

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects.postgresql import JSONB

revision = "d4a8e2c91f37"
down_revision = "c7d95e1b8a20"
branch_labels = None
depends_on = None

TIMESTAMP = sa.DateTime(timezone=True)


def upgrade() -> None:
    op.execute("SET LOCAL lock_timeout = '4s'")
    op.execute("SET LOCAL statement_timeout = '60s'")
    op.create_table(
        "transfer_session",
        sa.Column("tenant", sa.Text(), nullable=False),
        sa.Column("transfer_id", sa.Text(), nullable=False),
        sa.Column("asked", JSONB(), nullable=False),
        sa.Column("status", sa.Text(), nullable=False),
        sa.Column("fence", sa.BigInteger(), nullable=False),
        sa.Column("decision_id", sa.Uuid(), nullable=False),
        sa.Column("created_at", TIMESTAMP, nullable=False),
        sa.Column("updated_at", TIMESTAMP, nullable=False),
        sa.Column("expires_at", TIMESTAMP, nullable=False),
        sa.Column("route", JSONB(), nullable=True),
        sa.Column("ended", JSONB(), nullable=True),
        sa.PrimaryKeyConstraint("tenant", "transfer_id", name="pk_transfer_session"),
    )
    op.create_index("ix_transfer_session_updated_at", "transfer_session", ["updated_at"])


def downgrade() -> None:
    op.execute("SET LOCAL lock_timeout = '4s'")
    op.execute("SET LOCAL statement_timeout = '60s'")
    op.drop_table("transfer_session")
