"""${message}

Revision: ${up_revision}
After: ${down_revision | comma,n}
"""

import sqlalchemy as sa
from alembic import op
${imports if imports else ""}
revision = ${repr(up_revision)}
down_revision = ${repr(down_revision)}
branch_labels = ${repr(branch_labels)}
depends_on = ${repr(depends_on)}


def upgrade() -> None:
    # A migration that cannot get its lock gives way to the traffic instead of queueing before it.
    op.execute("SET LOCAL lock_timeout = '4s'")
    op.execute("SET LOCAL statement_timeout = '60s'")
    ${upgrades if upgrades else "pass"}


def downgrade() -> None:
    op.execute("SET LOCAL lock_timeout = '4s'")
    op.execute("SET LOCAL statement_timeout = '60s'")
    ${downgrades if downgrades else "pass"}
