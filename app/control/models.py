"""Tables of the control plane: API keys, and the secrets every replica shares."""

from datetime import datetime

from sqlalchemy import CheckConstraint, DateTime, Index, LargeBinary, Text, func
from sqlalchemy.dialects.postgresql import ARRAY
from sqlalchemy.orm import Mapped, mapped_column

from app.db.base import Base, Xid8


class DeploymentSecretRow(Base):
    """A random secret of the deployment; `hash` keys the identity hashes of all replicas."""

    __tablename__ = "deployment_secret"

    name: Mapped[str] = mapped_column(Text, primary_key=True)
    secret: Mapped[bytes] = mapped_column(LargeBinary)
    created_at: Mapped[datetime] = mapped_column(DateTime(timezone=True), server_default=func.now())


class ApiKeyRow(Base):
    """A credential, known by the SHA-256 of its secret; `tenants` of `{*}` means every tenant."""

    __tablename__ = "api_key"
    __table_args__ = (
        CheckConstraint("octet_length(key_sha256) = 32", name="key_sha256_bytes"),
        Index("ix_api_key_changed_xid", "changed_xid"),
    )

    key_id: Mapped[str] = mapped_column(Text, primary_key=True)
    name: Mapped[str] = mapped_column(Text)
    key_sha256: Mapped[bytes] = mapped_column(LargeBinary, unique=True)
    scopes: Mapped[list[str]] = mapped_column(ARRAY(Text))
    tenants: Mapped[list[str]] = mapped_column(ARRAY(Text))
    created_at: Mapped[datetime] = mapped_column(DateTime(timezone=True), server_default=func.now())
    revoked_at: Mapped[datetime | None] = mapped_column(DateTime(timezone=True))
    changed_xid: Mapped[int] = mapped_column(Xid8, server_default=func.pg_current_xact_id())
