"""Tables of policies: versions, and their activations."""

from datetime import datetime

from sqlalchemy import (
    BigInteger,
    CheckConstraint,
    DateTime,
    ForeignKey,
    Identity,
    Index,
    LargeBinary,
    Text,
)
from sqlalchemy.orm import Mapped, mapped_column

from app.db.base import Base


class ExecutionPolicyRow(Base):
    """One version, never changed: `document` is the canonical text that `content_sha256` digests,
    `source` what was uploaded, comments and all."""

    __tablename__ = "execution_policy"
    __table_args__ = (
        CheckConstraint("octet_length(content_sha256) = 32", name="content_sha256_bytes"),
    )

    number: Mapped[int] = mapped_column(BigInteger, Identity(always=True), primary_key=True)
    content_sha256: Mapped[bytes] = mapped_column(LargeBinary, unique=True)
    document: Mapped[str] = mapped_column(Text)
    source: Mapped[str] = mapped_column(Text)
    message: Mapped[str | None] = mapped_column(Text)
    key_id: Mapped[str] = mapped_column(Text)
    created_at: Mapped[datetime] = mapped_column(DateTime(timezone=True))


class PolicyFileRow(Base):
    """The canonical content of a file that a process was started with, by its short version."""

    __tablename__ = "policy_file"

    version: Mapped[str] = mapped_column(Text, primary_key=True)
    document: Mapped[str] = mapped_column(Text)
    first_seen_at: Mapped[datetime] = mapped_column(DateTime(timezone=True))


class PolicyActivationRow(Base):
    """One change of the active policy, never changed itself: the highest id is what is active."""

    __tablename__ = "policy_activation"
    __table_args__ = (Index("ix_policy_activation_number", "number"),)

    activation_id: Mapped[int] = mapped_column(BigInteger, Identity(always=True), primary_key=True)
    number: Mapped[int] = mapped_column(BigInteger, ForeignKey("execution_policy.number"))
    activated_at: Mapped[datetime] = mapped_column(DateTime(timezone=True))
    key_id: Mapped[str] = mapped_column(Text)
    message: Mapped[str | None] = mapped_column(Text)
