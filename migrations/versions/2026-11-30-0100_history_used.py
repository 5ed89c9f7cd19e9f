"""Outcome sums count used decisions once, however many reports tell of their use.

Revision: 8c2f6a10b7d3
After: 3e9b51d7c0f4
"""

from alembic import op

revision = "8c2f6a10b7d3"
down_revision = "3e9b51d7c0f4"
branch_labels = None
depends_on = None

SHOWN = (
    "bucket, tenant, model, kind, backend, policy_version, status, reason, outcomes, physical,"
    " bytes, tokens, gain_us, observed_us, compared, compared_observed_us, predicted_us,"
    " error_counts"
)

BACKFILL = """
DO $$
DECLARE changed bigint;
BEGIN
    LOOP
        UPDATE outcome_rollup SET used = outcomes WHERE ctid = ANY (ARRAY(
            SELECT ctid FROM outcome_rollup
            WHERE status = 'consumed' AND kind IN ('materialize', 'prefetch', 'store')
                AND used = 0 AND outcomes > 0
            LIMIT 2000));
        GET DIAGNOSTICS changed = ROW_COUNT;
        EXIT WHEN changed = 0;
        COMMIT;
    END LOOP;
END $$
"""


def upgrade() -> None:
    limits()
    # A constant default is written into no row, and what an older process adds has it.
    # May be there from an upgrade that was cut short behind it.
    op.execute("ALTER TABLE outcome_rollup ADD COLUMN IF NOT EXISTS used bigint NOT NULL DEFAULT 0")
    show(f"{SHOWN}, used", replace=True)
    # With the table's lock given back: writers wait for single rows, no longer than for a batch.
    # Of sums that are there no more is known than how many reports they have.
    with op.get_context().autocommit_block():
        op.execute(BACKFILL)


def downgrade() -> None:
    limits()
    op.execute("DROP VIEW history.outcomes_hourly")
    op.drop_column("outcome_rollup", "used")
    show(SHOWN, replace=False)


def show(columns: str, *, replace: bool) -> None:
    create = "CREATE OR REPLACE VIEW" if replace else "CREATE VIEW"
    op.execute(
        f"{create} history.outcomes_hourly AS"  # noqa: S608 - names of our own
        f" SELECT {columns} FROM outcome_rollup WHERE step = 'hour'"
    )


def limits() -> None:
    op.execute("SET LOCAL lock_timeout = '4s'")
    op.execute("SET LOCAL statement_timeout = '60s'")
