"""The table of engines: what an operator registered of each publisher of events."""

from datetime import datetime
from typing import Any

from sqlalchemy import CheckConstraint, DateTime, Integer, Text, func
from sqlalchemy.dialects.postgresql import JSONB
from sqlalchemy.orm import Mapped, mapped_column

from app.db.base import Base, Xid8


class EngineRow(Base):
    """One registration; or its tombstone, once it is forgotten.

    No index but the key's: a poll scans the table, which has a few thousand rows at most.
    """

    __tablename__ = "engine"
    __table_args__ = (
        CheckConstraint("octet_length(instance_id) BETWEEN 1 AND 128", name="instance_id_bytes"),
        CheckConstraint("dp_rank BETWEEN 0 AND 65535", name="dp_rank"),
        CheckConstraint("jsonb_typeof(spec) = 'object'", name="spec"),
    )

    instance_id: Mapped[str] = mapped_column(Text, primary_key=True)
    dp_rank: Mapped[int] = mapped_column(Integer, primary_key=True, autoincrement=False)
    spec: Mapped[dict[str, Any]] = mapped_column(JSONB)
    registered_at: Mapped[datetime] = mapped_column(DateTime(timezone=True))
    forgotten_at: Mapped[datetime | None] = mapped_column(DateTime(timezone=True))
    changed_xid: Mapped[int] = mapped_column(Xid8, server_default=func.pg_current_xact_id())
