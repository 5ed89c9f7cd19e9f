"""The table of registered states: what the in-memory index is rebuilt from."""

from datetime import datetime
from typing import Any
from uuid import UUID

from sqlalchemy import (
    BigInteger,
    CheckConstraint,
    DateTime,
    Index,
    Integer,
    LargeBinary,
    Text,
    UniqueConstraint,
    Uuid,
    func,
)
from sqlalchemy.dialects.postgresql import JSONB
from sqlalchemy.orm import Mapped, mapped_column

from app.db.base import Base, Xid8


class StateRow(Base):
    """One (tenant, entry_id) at its newest generation, or its tombstone.

    `changed_xid` is the transaction of the last change; a trigger stamps it on every update, so a
    poll over it sees registrations, supersessions and deletions alike.
    """

    __tablename__ = "state"
    __table_args__ = (
        UniqueConstraint("tenant", "entry_id", name="uq_state_tenant_entry_id"),
        CheckConstraint("generation BETWEEN 0 AND 4294967295", name="generation"),
        CheckConstraint("token_count >= 0", name="token_count"),
        CheckConstraint("octet_length(content_hash) = 32", name="content_hash_bytes"),
        CheckConstraint("(body IS NULL) = (deleted_at IS NOT NULL)", name="tombstone"),
        CheckConstraint("(tokens IS NULL) = (deleted_at IS NOT NULL)", name="tokens"),
        Index("ix_state_changed_xid", "changed_xid"),
        Index("ix_state_tenant_state_id", "tenant", "state_id"),
    )

    state_id: Mapped[UUID] = mapped_column(Uuid, primary_key=True)
    tenant: Mapped[str] = mapped_column(Text)
    entry_id: Mapped[str] = mapped_column(Text)
    generation: Mapped[int] = mapped_column(BigInteger)
    lineage: Mapped[str] = mapped_column(Text)
    namespace: Mapped[str] = mapped_column(Text)
    model: Mapped[str] = mapped_column(Text)
    engine_family: Mapped[str] = mapped_column(Text)
    semantic_type: Mapped[str] = mapped_column(Text)
    tier: Mapped[str] = mapped_column(Text)
    locator: Mapped[str] = mapped_column(Text)
    token_count: Mapped[int] = mapped_column(Integer)
    identity_hash: Mapped[bytes] = mapped_column(LargeBinary)
    content_hash: Mapped[bytes] = mapped_column(LargeBinary)
    # The registration, but of its tokens only the first: all of them are in `tokens`, packed as
    # little-endian u32, which is a tenth of their size as JSON and needs no parsing.
    body: Mapped[dict[str, Any] | None] = mapped_column(JSONB(none_as_null=True))
    tokens: Mapped[bytes | None] = mapped_column(LargeBinary)
    created_at: Mapped[datetime] = mapped_column(DateTime(timezone=True))
    updated_at: Mapped[datetime] = mapped_column(DateTime(timezone=True))
    deleted_at: Mapped[datetime | None] = mapped_column(DateTime(timezone=True))
    changed_xid: Mapped[int] = mapped_column(Xid8, server_default=func.pg_current_xact_id())
