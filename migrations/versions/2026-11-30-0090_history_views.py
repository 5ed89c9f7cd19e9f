"""The history as views with a name and columns that stay: what dashboards may read.

Revision: 3e9b51d7c0f4
After: 7d21c04be95a
"""

from alembic import op

revision = "3e9b51d7c0f4"
down_revision = "7d21c04be95a"
branch_labels = None
depends_on = None

# What a dashboard has no use for stays inside: keys, hashes of prompts, recorded inputs.
DECISIONS = (
    "decision_id",
    "created_at",
    "tenant",
    "namespace",
    "model",
    "kind",
    "outcome",
    "action",
    "fallback_reason",
    "backend",
    "tier",
    "target",
    "freshness",
    "durability",
    "policy_version",
    "parent_id",
    "root_id",
    "trace_id",
    "entry_id",
    "state_id",
    "query_tokens",
    "matched_tokens",
    "predicted_us",
    "recompute_us",
    "latency_us",
    "excluded",
    "estimate",
)
OUTCOMES = (
    "outcome_id",
    "created_at",
    "decision_id",
    "tenant",
    "model",
    "kind",
    "backend",
    "policy_version",
    "status",
    "fallback_reason",
    "physical",
    "tokens",
    "bytes_transferred",
    "observed_us",
    "predicted_us",
    "recompute_us",
    "gain_us",
    "reported_at",
    "detail",
)
GROUP = ("bucket", "tenant", "model", "kind", "backend", "policy_version")
DECISIONS_HOURLY = (
    *GROUP,
    "outcome",
    "action",
    "reason",
    "decisions",
    "query_tokens",
    "matched_tokens",
    "latency_us",
    "predicted_us",
    "recompute_us",
    "latency_counts",
)
OUTCOMES_HOURLY = (
    *GROUP,
    "status",
    "reason",
    "outcomes",
    "physical",
    "bytes",
    "tokens",
    "gain_us",
    "observed_us",
    "compared",
    "compared_observed_us",
    "predicted_us",
    "error_counts",
)
VIEWS = {
    "decisions": ("decision", DECISIONS, ""),
    "outcomes": ("decision_outcome", OUTCOMES, ""),
    "decisions_hourly": ("decision_rollup", DECISIONS_HOURLY, " WHERE step = 'hour'"),
    "outcomes_hourly": ("outcome_rollup", OUTCOMES_HOURLY, " WHERE step = 'hour'"),
}


def upgrade() -> None:
    limits()
    op.execute("CREATE SCHEMA IF NOT EXISTS history")
    for view, (table, columns, condition) in VIEWS.items():
        shown = ", ".join(columns)
        op.execute(f"CREATE VIEW history.{view} AS SELECT {shown} FROM {table}{condition}")  # noqa: S608


def downgrade() -> None:
    limits()
    for view in reversed(VIEWS):
        op.execute(f"DROP VIEW history.{view}")
    # What somebody else has put there stays, and so does the schema then.
    op.execute(
        "DO $$ BEGIN DROP SCHEMA history; EXCEPTION WHEN dependent_objects_still_exist THEN NULL;"
        " END $$"
    )


def limits() -> None:
    op.execute("SET LOCAL lock_timeout = '4s'")
    op.execute("SET LOCAL statement_timeout = '60s'")
