"""The tables of execution: claims on options, and transfer sessions."""

from datetime import datetime
from typing import Any
from uuid import UUID

from sqlalchemy import BigInteger, CheckConstraint, DateTime, Index, LargeBinary, Text, Uuid
from sqlalchemy.dialects.postgresql import JSONB
from sqlalchemy.orm import Mapped, mapped_column

from app.db.base import Base


class OptionClaimRow(Base):
    """One option, claimed before execution and then consumed; the fence outranks a dead claimant.

    `receipt` is the answer a retry of the same import gets.
    """

    __tablename__ = "option_claim"
    __table_args__ = (
        CheckConstraint("octet_length(option_id) = 16", name="option_id_bytes"),
        CheckConstraint("status IN ('claimed', 'consumed')", name="status"),
        Index("ix_option_claim_claimed_at", "claimed_at"),
    )

    option_id: Mapped[bytes] = mapped_column(LargeBinary, primary_key=True)
    tenant: Mapped[str] = mapped_column(Text)
    import_id: Mapped[str] = mapped_column(Text)
    sink_namespace: Mapped[str] = mapped_column(Text)
    sink_value: Mapped[str] = mapped_column(Text)
    status: Mapped[str] = mapped_column(Text)
    fence: Mapped[int] = mapped_column(BigInteger)
    claimed_at: Mapped[datetime] = mapped_column(DateTime(timezone=True))
    claim_expires_at: Mapped[datetime] = mapped_column(DateTime(timezone=True))
    consumed_at: Mapped[datetime | None] = mapped_column(DateTime(timezone=True))
    receipt: Mapped[dict[str, Any] | None] = mapped_column(JSONB(none_as_null=True))
    decision_id: Mapped[UUID | None] = mapped_column(Uuid)


class TransferSessionRow(Base):
    """One transfer, under the id its caller gave it; `app.execution.sessions` has the statuses."""

    __tablename__ = "transfer_session"
    __table_args__ = (Index("ix_transfer_session_updated_at", "updated_at"),)

    tenant: Mapped[str] = mapped_column(Text, primary_key=True)
    transfer_id: Mapped[str] = mapped_column(Text, primary_key=True)
    asked: Mapped[dict[str, Any]] = mapped_column(JSONB)
    status: Mapped[str] = mapped_column(Text)
    fence: Mapped[int] = mapped_column(BigInteger)
    decision_id: Mapped[UUID] = mapped_column(Uuid)
    created_at: Mapped[datetime] = mapped_column(DateTime(timezone=True))
    updated_at: Mapped[datetime] = mapped_column(DateTime(timezone=True))
    expires_at: Mapped[datetime] = mapped_column(DateTime(timezone=True))
    route: Mapped[dict[str, Any] | None] = mapped_column(JSONB(none_as_null=True))
    ended: Mapped[dict[str, Any] | None] = mapped_column(JSONB(none_as_null=True))
