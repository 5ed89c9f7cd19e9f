"""The history's two tables: insert-only, one partition per UTC day, no DEFAULT partition.

Column order is the order of `app.decisions.record`'s tuples, then the writer's two columns.
"""

from datetime import datetime
from typing import Any
from uuid import UUID

from sqlalchemy import (
    BigInteger,
    Boolean,
    DateTime,
    Index,
    LargeBinary,
    PrimaryKeyConstraint,
    Text,
    Uuid,
    desc,
)
from sqlalchemy.dialects.postgresql import ARRAY, JSONB
from sqlalchemy.orm import Mapped, mapped_column

from app.db.base import Base


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
        Index("ix_decision_decision_id", "decision_id"),
        Index("ix_decision_root_id", "root_id"),
        Index("ix_decision_created_at_brin", "created_at", postgresql_using="brin"),
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


class DecisionOutcomeRow(Base):
    """What really happened after a decision, told later by whoever saw it."""

    __tablename__ = "decision_outcome"
    __table_args__ = (
        PrimaryKeyConstraint("created_at", "outcome_id"),
        Index("ix_decision_outcome_decision_id", "decision_id"),
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
    writer_id: Mapped[UUID] = mapped_column(Uuid)
    writer_seq: Mapped[int] = mapped_column(BigInteger)
