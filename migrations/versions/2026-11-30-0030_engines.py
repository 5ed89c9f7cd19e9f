"""The registry of engines.

Revision: e2b6f4907c15
After: d4a8e2c91f37
"""

from typing import Any

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects.postgresql import JSONB

revision = "e2b6f4907c15"
down_revision = "d4a8e2c91f37"
branch_labels = None
depends_on = None

TIMESTAMP = sa.DateTime(timezone=True)


class Xid8(sa.types.UserDefinedType[int]):
    cache_ok = True

    def get_col_spec(self, **_: Any) -> str:
        return "XID8"


def upgrade() -> None:
    op.execute("SET LOCAL lock_timeout = '4s'")
    op.execute("SET LOCAL statement_timeout = '60s'")
    op.create_table(
        "engine",
        sa.Column("instance_id", sa.Text(), nullable=False),
        sa.Column("dp_rank", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("spec", JSONB(), nullable=False),
        sa.Column("registered_at", TIMESTAMP, nullable=False),
        sa.Column("forgotten_at", TIMESTAMP, nullable=True),
        sa.Column(
            "changed_xid", Xid8(), server_default=sa.text("pg_current_xact_id()"), nullable=False
        ),
        sa.PrimaryKeyConstraint("instance_id", "dp_rank", name="pk_engine"),
        sa.CheckConstraint(
            "octet_length(instance_id) BETWEEN 1 AND 128", name=op.f("ck_engine_instance_id_bytes")
        ),
        sa.CheckConstraint("dp_rank BETWEEN 0 AND 65535", name=op.f("ck_engine_dp_rank")),
        sa.CheckConstraint("jsonb_typeof(spec) = 'object'", name=op.f("ck_engine_spec")),
    )
    op.execute(
        "CREATE TRIGGER stamp_change BEFORE UPDATE ON engine"
        " FOR EACH ROW EXECUTE FUNCTION stamp_change()"
    )


def downgrade() -> None:
    op.execute("SET LOCAL lock_timeout = '4s'")
    op.execute("SET LOCAL statement_timeout = '60s'")
    op.drop_table("engine")
