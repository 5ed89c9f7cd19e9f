"""States without tokens, whose extent an engine's blocks say.

Revision: f4d0a61b7e28
After: e2b6f4907c15
"""

from alembic import op

revision = "f4d0a61b7e28"
down_revision = "e2b6f4907c15"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.execute("SET LOCAL lock_timeout = '4s'")
    op.execute("SET LOCAL statement_timeout = '60s'")
    op.execute("ALTER TABLE state DROP CONSTRAINT ck_state_token_count")
    # Wider than the one before, so rows need not be looked at.
    op.execute(
        "ALTER TABLE state ADD CONSTRAINT ck_state_token_count CHECK (token_count >= 0) NOT VALID"
    )


def downgrade() -> None:
    op.execute("SET LOCAL lock_timeout = '4s'")
    op.execute("SET LOCAL statement_timeout = '60s'")
    op.execute("ALTER TABLE state DROP CONSTRAINT ck_state_token_count")
    op.execute(
        "ALTER TABLE state ADD CONSTRAINT ck_state_token_count CHECK (token_count >= 1) NOT VALID"
    )
