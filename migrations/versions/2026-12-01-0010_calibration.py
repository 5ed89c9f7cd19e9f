"""What is learnt of costs from outcomes, and how far these were read.

Revision: 1f6b8ce20d47
After: e57a3c0d9b18
"""

import sqlalchemy as sa
from alembic import op

revision = "1f6b8ce20d47"
down_revision = "e57a3c0d9b18"
branch_labels = None
depends_on = None


def upgrade() -> None:
    limits()
    op.create_table(
        "cost_calibration",
        sa.Column("model", sa.Text(), nullable=False),
        sa.Column("hardware", sa.Text(), nullable=False),
        sa.Column("part", sa.Text(), nullable=False),
        sa.Column("basis", sa.Text(), nullable=False),
        sa.Column("log_factor", sa.Double(), nullable=False),
        sa.Column("spread", sa.Double(), nullable=False),
        sa.Column("observations", sa.BigInteger(), nullable=False),
        sa.Column("risen", sa.Double(), nullable=False),
        sa.Column("fallen", sa.Double(), nullable=False),
        sa.Column("fast", sa.Integer(), nullable=False),
        sa.Column("drifts", sa.BigInteger(), nullable=False),
        sa.Column("updated_at", sa.DateTime(timezone=True), nullable=False),
        sa.PrimaryKeyConstraint("model", "hardware", "part", name="pk_cost_calibration"),
    )
    op.create_table(
        "calibration_cursor",
        sa.Column("singleton", sa.Boolean(), nullable=False),
        sa.Column("xid", sa.BigInteger(), nullable=False),
        sa.Column("outcome_id", sa.Uuid(), nullable=False),
        sa.Column("changes", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("singleton", name="pk_calibration_cursor"),
        sa.CheckConstraint("singleton", name=op.f("ck_calibration_cursor_one_row")),
    )


def downgrade() -> None:
    limits()
    op.drop_table("calibration_cursor")
    op.drop_table("cost_calibration")


def limits() -> None:
    op.execute("SET LOCAL lock_timeout = '4s'")
    op.execute("SET LOCAL statement_timeout = '60s'")
