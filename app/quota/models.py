"""Tables of quotas: what tenants hold, and by which charges."""

from datetime import datetime

from sqlalchemy import BigInteger, CheckConstraint, DateTime, ForeignKey, Index, Text, text
from sqlalchemy.orm import Mapped, mapped_column

from app.db.base import Base


class QuotaTenantRow(Base):
    """What a tenant holds: the sums of its charges. This row is the lock that every change takes.

    `transfers` counts charges of kind `transfer`, the other two those of kind `payload`.
    """

    __tablename__ = "quota_tenant"
    __table_args__ = (
        CheckConstraint(
            "payload_bytes >= 0 AND entries >= 0 AND transfers >= 0", name="not_negative"
        ),
    )

    tenant: Mapped[str] = mapped_column(Text, primary_key=True)
    payload_bytes: Mapped[int] = mapped_column(BigInteger, server_default="0")
    entries: Mapped[int] = mapped_column(BigInteger, server_default="0")
    transfers: Mapped[int] = mapped_column(BigInteger, server_default="0")


class QuotaChargeRow(Base):
    """One payload held, or one transfer running. Without `expires_at` it stays until released."""

    __tablename__ = "quota_charge"
    __table_args__ = (
        CheckConstraint("kind IN ('payload', 'transfer')", name="kind"),
        CheckConstraint("payload_bytes >= 0 AND entries >= 1", name="amounts"),
        Index("ix_quota_charge_worker", "worker", postgresql_where=text("worker IS NOT NULL")),
        Index(
            "ix_quota_charge_expires_at",
            "tenant",
            "expires_at",
            postgresql_where=text("expires_at IS NOT NULL"),
        ),
    )

    tenant: Mapped[str] = mapped_column(Text, ForeignKey("quota_tenant.tenant"), primary_key=True)
    kind: Mapped[str] = mapped_column(Text, primary_key=True)
    charge_id: Mapped[str] = mapped_column(Text, primary_key=True)
    payload_bytes: Mapped[int] = mapped_column(BigInteger)
    entries: Mapped[int] = mapped_column(BigInteger, server_default="1")
    worker: Mapped[str | None] = mapped_column(Text)
    created_at: Mapped[datetime] = mapped_column(DateTime(timezone=True))
    expires_at: Mapped[datetime | None] = mapped_column(DateTime(timezone=True))
