"""The history's tables.

`decision` and `decision_outcome` are insert-only, one partition per UTC day, no DEFAULT partition;
the column order is the order of `app.decisions.record`'s tuples, then the writer's two columns.
`xid` is the transaction that stored a row: what has committed is told from what may still come.
Writers and gaps prove that nothing is missing; the rollups outlive the rows that they sum up.
"""

from datetime import datetime
from decimal import Decimal
from typing import Annotated, Any
from uuid import UUID

from sqlalchemy import (
    BigInteger,
    Boolean,
    CheckConstraint,
    DateTime,
    Index,
    Integer,
    LargeBinary,
    Numeric,
    PrimaryKeyConstraint,
    Text,
    Uuid,
    desc,
    func,
    text,
)
from sqlalchemy.dialects.postgresql import ARRAY, JSONB
from sqlalchemy.orm import Mapped, mapped_column

from app.db.base import Base, Xid8


def _newest(column: str, condition: str | None = None) -> Index:
    """For pages of one value, newest first; `condition` leaves out what is in every page."""
    return Index(
        f"ix_decision_{column}_created_at",
        column,
        desc("created_at"),
        desc("decision_id"),
        postgresql_where=None if condition is None else text(condition),
    )


class DecisionRow(Base):
    """One answered lookup, estimate or materialize, with the inputs it was taken on."""

    __tablename__ = "decision"
    __table_args__ = (
        PrimaryKeyConstraint("created_at", "decision_id"),
        Index(
            "ix_decision_tenant_created_at",
            "tenant",
            desc("created_at"),
            desc("decision_id"),
        ),
        _newest("model"),
        _newest("namespace"),
        _newest("outcome"),
        _newest("policy_version"),
        _newest("kind", "kind <> 'lookup'"),
        _newest("fallback_reason", "fallback_reason IS NOT NULL"),
        _newest("backend", "backend IS NOT NULL"),
        _newest("tier", "tier IS NOT NULL"),
        _newest("action", "action <> ALL (ARRAY['reuse', 'recompute'])"),
        Index("ix_decision_chain", "root_id", postgresql_where=text("root_id <> decision_id")),
        Index("ix_decision_trace_id", "trace_id", postgresql_where=text("trace_id IS NOT NULL")),
        Index("ix_decision_xid", "xid", postgresql_where=text("xid IS NOT NULL")),
        {"postgresql_partition_by": "RANGE (created_at)"},
    )

    decision_id: Mapped[UUID] = mapped_column(Uuid)
    created_at: Mapped[datetime] = mapped_column(DateTime(timezone=True))
    tenant: Mapped[str] = mapped_column(Text)
    namespace: Mapped[str] = mapped_column(Text)
    model: Mapped[str] = mapped_column(Text)
    kind: Mapped[str] = mapped_column(Text)
    outcome: Mapped[str] = mapped_column(Text)
    fallback_reason: Mapped[str | None] = mapped_column(Text)
    identity_hash: Mapped[bytes | None] = mapped_column(LargeBinary)
    parent_id: Mapped[UUID | None] = mapped_column(Uuid)
    root_id: Mapped[UUID] = mapped_column(Uuid)
    key_id: Mapped[str] = mapped_column(Text)
    trace_id: Mapped[str | None] = mapped_column(Text)
    policy_version: Mapped[str] = mapped_column(Text)
    entry_id: Mapped[str | None] = mapped_column(Text)
    state_id: Mapped[UUID | None] = mapped_column(Uuid)
    match: Mapped[Any | None] = mapped_column(JSONB(none_as_null=True))
    compatibility: Mapped[Any | None] = mapped_column(JSONB(none_as_null=True))
    excluded: Mapped[Any] = mapped_column(JSONB)
    estimate: Mapped[Any | None] = mapped_column(JSONB(none_as_null=True))
    selected_path: Mapped[str | None] = mapped_column(Text)
    path: Mapped[list[str]] = mapped_column(ARRAY(Text))
    index_revision: Mapped[int] = mapped_column(BigInteger)
    latency_us: Mapped[int] = mapped_column(BigInteger)
    inputs: Mapped[Any] = mapped_column(JSONB)
    writer_id: Mapped[UUID] = mapped_column(Uuid)
    writer_seq: Mapped[int] = mapped_column(BigInteger)
    action: Mapped[str | None] = mapped_column(Text)
    backend: Mapped[str | None] = mapped_column(Text)
    tier: Mapped[str | None] = mapped_column(Text)
    target: Mapped[str | None] = mapped_column(Text)
    freshness: Mapped[str | None] = mapped_column(Text)
    durability: Mapped[str | None] = mapped_column(Text)
    query_tokens: Mapped[int | None] = mapped_column(BigInteger)
    matched_tokens: Mapped[int | None] = mapped_column(BigInteger)
    predicted_us: Mapped[int | None] = mapped_column(BigInteger)
    recompute_us: Mapped[int | None] = mapped_column(BigInteger)
    xid: Mapped[int | None] = mapped_column(Xid8, server_default=func.pg_current_xact_id())


class DecisionOutcomeRow(Base):
    """What really happened after a decision, told later by whoever saw it."""

    __tablename__ = "decision_outcome"
    __table_args__ = (
        PrimaryKeyConstraint("created_at", "outcome_id"),
        Index("ix_decision_outcome_decision_id", "decision_id"),
        Index("ix_decision_outcome_tenant_created_at", "tenant", "created_at"),
        Index("ix_decision_outcome_xid", "xid", postgresql_where=text("xid IS NOT NULL")),
        {"postgresql_partition_by": "RANGE (created_at)"},
    )

    outcome_id: Mapped[UUID] = mapped_column(Uuid)
    created_at: Mapped[datetime] = mapped_column(DateTime(timezone=True))
    decision_id: Mapped[UUID] = mapped_column(Uuid)
    tenant: Mapped[str] = mapped_column(Text)
    status: Mapped[str] = mapped_column(Text)
    fallback_reason: Mapped[str | None] = mapped_column(Text)
    observed_us: Mapped[int | None] = mapped_column(BigInteger)
    bytes_transferred: Mapped[int | None] = mapped_column(BigInteger)
    physical: Mapped[bool] = mapped_column(Boolean)
    detail: Mapped[Any] = mapped_column(JSONB)
    writer_id: Mapped[UUID | None] = mapped_column(Uuid)
    writer_seq: Mapped[int | None] = mapped_column(BigInteger)
    model: Mapped[str | None] = mapped_column(Text)
    kind: Mapped[str | None] = mapped_column(Text)
    backend: Mapped[str | None] = mapped_column(Text)
    policy_version: Mapped[str | None] = mapped_column(Text)
    tokens: Mapped[int | None] = mapped_column(BigInteger)
    predicted_us: Mapped[int | None] = mapped_column(BigInteger)
    recompute_us: Mapped[int | None] = mapped_column(BigInteger)
    gain_us: Mapped[int | None] = mapped_column(BigInteger)
    # Of a report from outside: whose key, and when it came; then `created_at` is its decision's.
    reporter: Mapped[str | None] = mapped_column(Text)
    reported_at: Mapped[datetime | None] = mapped_column(DateTime(timezone=True))
    xid: Mapped[int | None] = mapped_column(Xid8, server_default=func.pg_current_xact_id())
    # Of `observed_us`, by the clock of the worker that verified the bytes.
    transfer_us: Mapped[int | None] = mapped_column(BigInteger)


class DecisionWriterRow(Base):
    """Through which number of a writer's sequence every row is stored, or in a gap."""

    __tablename__ = "decision_writer"

    writer_id: Mapped[UUID] = mapped_column(Uuid, primary_key=True)
    committed_seq: Mapped[int] = mapped_column(BigInteger)
    first_seen_at: Mapped[datetime] = mapped_column(DateTime(timezone=True))
    committed_at: Mapped[datetime] = mapped_column(DateTime(timezone=True))


class DecisionGapRow(Base):
    """Numbers of a writer's sequence, both ends included, whose rows were never stored, and why."""

    __tablename__ = "decision_gap"
    __table_args__ = (CheckConstraint("first_seq <= last_seq", name="order"),)

    writer_id: Mapped[UUID] = mapped_column(Uuid, primary_key=True)
    first_seq: Mapped[int] = mapped_column(BigInteger, primary_key=True, autoincrement=False)
    last_seq: Mapped[int] = mapped_column(BigInteger)
    reason: Mapped[str] = mapped_column(Text)
    recorded_at: Mapped[datetime] = mapped_column(DateTime(timezone=True))


_DIMENSIONS = ("step", "bucket", "tenant", "model", "kind", "backend", "policy_version")


class DecisionRemovedRow(Base):
    """Through which number of a writer's sequence rows have left before their day did."""

    __tablename__ = "decision_removed"

    writer_id: Mapped[UUID] = mapped_column(Uuid, primary_key=True)
    through_seq: Mapped[int] = mapped_column(BigInteger)
    removed_rows: Mapped[int] = mapped_column(BigInteger)
    removed_at: Mapped[datetime] = mapped_column(DateTime(timezone=True))


class HistoryKeepRow(Base):
    """For how many days the rows of a tenant ("*" for all) and kind ("" for all) are kept."""

    __tablename__ = "history_keep"
    __table_args__ = (CheckConstraint("days BETWEEN 1 AND 400", name="days"),)

    tenant: Mapped[str] = mapped_column(Text, primary_key=True)
    kind: Mapped[str] = mapped_column(Text, primary_key=True)
    days: Mapped[int] = mapped_column(Integer)
    changed_at: Mapped[datetime] = mapped_column(DateTime(timezone=True))


class _Rollup:
    """Sums over what shares a bucket of time and these; "" where a row had no such value."""

    step: Mapped[str] = mapped_column(Text, sort_order=-1)
    bucket: Mapped[datetime] = mapped_column(DateTime(timezone=True), sort_order=-1)
    tenant: Mapped[str] = mapped_column(Text, sort_order=-1)
    model: Mapped[str] = mapped_column(Text, sort_order=-1)
    kind: Mapped[str] = mapped_column(Text, sort_order=-1)
    backend: Mapped[str] = mapped_column(Text, sort_order=-1)
    policy_version: Mapped[str] = mapped_column(Text, sort_order=-1)


_Sum = Annotated[Decimal, mapped_column(Numeric(40, 0))]
_Count = Annotated[int, mapped_column(BigInteger)]


class DecisionRollupRow(_Rollup, Base):
    """Decisions by `minute`, `hour` or `day` of `created_at`."""

    __tablename__ = "decision_rollup"
    __table_args__ = (
        PrimaryKeyConstraint(*_DIMENSIONS, "outcome", "action", "reason"),
        {"postgresql_with": {"fillfactor": "50"}},
    )

    outcome: Mapped[str] = mapped_column(Text)
    action: Mapped[str] = mapped_column(Text)
    reason: Mapped[str] = mapped_column(Text)
    decisions: Mapped[_Count]
    query_tokens: Mapped[_Count]
    matched_tokens: Mapped[_Count]
    latency_us: Mapped[_Sum]
    predicted_us: Mapped[_Sum]
    recompute_us: Mapped[_Sum]
    latency_counts: Mapped[list[int]] = mapped_column(ARRAY(BigInteger))


class OutcomeRollupRow(_Rollup, Base):
    """Outcomes likewise; `compared` are those with a prediction and an observation, `used` those
    that tell of a decision's use for the first time.
    """

    __tablename__ = "outcome_rollup"
    __table_args__ = (
        PrimaryKeyConstraint(*_DIMENSIONS, "status", "reason"),
        {"postgresql_with": {"fillfactor": "50"}},
    )

    status: Mapped[str] = mapped_column(Text)
    reason: Mapped[str] = mapped_column(Text)
    outcomes: Mapped[_Count]
    physical: Mapped[_Count]
    bytes: Mapped[_Count]
    tokens: Mapped[_Count]
    observed_us: Mapped[_Sum]
    predicted_us: Mapped[_Sum]
    gain_us: Mapped[_Sum]
    compared: Mapped[_Count]
    compared_observed_us: Mapped[_Sum]
    error_counts: Mapped[list[int]] = mapped_column(ARRAY(BigInteger))
    used: Mapped[_Count] = mapped_column(server_default=text("0"))
