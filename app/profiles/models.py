"""The table of cost profiles."""

from datetime import datetime

from sqlalchemy import BigInteger, CheckConstraint, DateTime, Identity, Index, LargeBinary, Text
from sqlalchemy.orm import Mapped, mapped_column

from app.db.base import Base


class CostProfileRow(Base):
    """One version, never changed: `document` is the canonical text that `content_sha256` digests,
    `source` what was uploaded, comments and all. Numbers are in the order of commits."""

    __tablename__ = "cost_profile"
    __table_args__ = (
        CheckConstraint("octet_length(content_sha256) = 32", name="content_sha256_bytes"),
        Index("ix_cost_profile_name", "name", "number"),
    )

    number: Mapped[int] = mapped_column(BigInteger, Identity(always=True), primary_key=True)
    name: Mapped[str] = mapped_column(Text)
    model: Mapped[str] = mapped_column(Text)
    hardware: Mapped[str] = mapped_column(Text)
    content_sha256: Mapped[bytes] = mapped_column(LargeBinary, unique=True)
    document: Mapped[str] = mapped_column(Text)
    source: Mapped[str] = mapped_column(Text)
    message: Mapped[str | None] = mapped_column(Text)
    key_id: Mapped[str] = mapped_column(Text)
    created_at: Mapped[datetime] = mapped_column(DateTime(timezone=True))
