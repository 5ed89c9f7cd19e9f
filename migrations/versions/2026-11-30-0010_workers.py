"""The registry of workers.

Revision: c7d95e1b8a20
After: b1f0c6a2d3e4
"""

from typing import Any

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects.postgresql import ARRAY, JSONB

revision = "c7d95e1b8a20"
down_revision = "b1f0c6a2d3e4"
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
        "worker",
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("instance_id", sa.Uuid(), nullable=False),
        sa.Column("previous_instance_id", sa.Uuid(), nullable=True),
        sa.Column("url", sa.Text(), nullable=False),
        sa.Column("data_address", sa.Text(), nullable=False),
        sa.Column("backends", ARRAY(sa.Text()), nullable=False),
        sa.Column("tiers", ARRAY(sa.Text()), nullable=False),
        sa.Column("load", JSONB(), nullable=False),
        sa.Column("instance_since", TIMESTAMP, nullable=False),
        sa.Column("heartbeat_at", TIMESTAMP, nullable=False),
        sa.Column("forgotten_at", TIMESTAMP, nullable=True),
        sa.Column(
            "changed_xid", Xid8(), server_default=sa.text("pg_current_xact_id()"), nullable=False
        ),
        sa.PrimaryKeyConstraint("name", name="pk_worker"),
        sa.CheckConstraint(
            "octet_length(name) BETWEEN 1 AND 128", name=op.f("ck_worker_name_bytes")
        ),
        sa.CheckConstraint("octet_length(url) BETWEEN 1 AND 512", name=op.f("ck_worker_url_bytes")),
        sa.CheckConstraint(
            "octet_length(data_address) BETWEEN 1 AND 512",
            name=op.f("ck_worker_data_address_bytes"),
        ),
        sa.CheckConstraint("cardinality(backends) <= 16", name=op.f("ck_worker_backends")),
        sa.CheckConstraint("cardinality(tiers) <= 16", name=op.f("ck_worker_tiers")),
        # Half of each page is left for the next heartbeats of its rows.
        postgresql_with={"fillfactor": "50"},
    )
    op.execute(
        "CREATE TRIGGER stamp_change BEFORE UPDATE ON worker"
        " FOR EACH ROW EXECUTE FUNCTION stamp_change()"
    )


def downgrade() -> None:
    op.execute("SET LOCAL lock_timeout = '4s'")
    op.execute("SET LOCAL statement_timeout = '60s'")
    op.drop_table("worker")
