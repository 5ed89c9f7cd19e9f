"""The tables of workers, what each said last of itself, and of topologies."""

from datetime import datetime
from typing import Any
from uuid import UUID

from sqlalchemy import (
    BigInteger,
    CheckConstraint,
    DateTime,
    Identity,
    LargeBinary,
    Text,
    Uuid,
    func,
)
from sqlalchemy.dialects.postgresql import ARRAY, JSONB
from sqlalchemy.orm import Mapped, mapped_column

from app.db.base import Base, Xid8


class WorkerRow(Base):
    """One name, and the process that has it; or its tombstone, once it is forgotten.

    No index but the key's: every heartbeat changes the row, and with no other indexed column
    Postgres does that in place. A poll scans the table, which has a thousand rows at most.
    """

    __tablename__ = "worker"
    __table_args__ = (
        CheckConstraint("octet_length(name) BETWEEN 1 AND 128", name="name_bytes"),
        CheckConstraint("octet_length(url) BETWEEN 1 AND 512", name="url_bytes"),
        CheckConstraint("octet_length(data_address) BETWEEN 1 AND 512", name="data_address_bytes"),
        CheckConstraint("cardinality(backends) <= 16", name="backends"),
        CheckConstraint("cardinality(tiers) <= 16", name="tiers"),
        {"postgresql_with": {"fillfactor": "50"}},
    )

    name: Mapped[str] = mapped_column(Text, primary_key=True)
    instance_id: Mapped[UUID] = mapped_column(Uuid)
    # Whose late heartbeat must not take the name back.
    previous_instance_id: Mapped[UUID | None] = mapped_column(Uuid)
    url: Mapped[str] = mapped_column(Text)
    data_address: Mapped[str] = mapped_column(Text)
    backends: Mapped[list[str]] = mapped_column(ARRAY(Text))
    tiers: Mapped[list[str]] = mapped_column(ARRAY(Text))
    load: Mapped[dict[str, Any]] = mapped_column(JSONB)
    # By the clock of the API, which also dates states.
    instance_since: Mapped[datetime] = mapped_column(DateTime(timezone=True))
    # By the clock of Postgres, which all replicas share.
    heartbeat_at: Mapped[datetime] = mapped_column(DateTime(timezone=True))
    forgotten_at: Mapped[datetime | None] = mapped_column(DateTime(timezone=True))
    changed_xid: Mapped[int] = mapped_column(Xid8, server_default=func.pg_current_xact_id())


class TopologyRow(Base):
    """One version of the topology, never changed: the highest is in force. `document` is the
    canonical text that `content_sha256` digests; content may come back, so it is not unique."""

    __tablename__ = "topology"
    __table_args__ = (
        CheckConstraint("octet_length(content_sha256) = 32", name="content_sha256_bytes"),
    )

    version: Mapped[int] = mapped_column(BigInteger, Identity(always=True), primary_key=True)
    content_sha256: Mapped[bytes] = mapped_column(LargeBinary)
    document: Mapped[str] = mapped_column(Text)
    message: Mapped[str | None] = mapped_column(Text)
    key_id: Mapped[str] = mapped_column(Text)
    created_at: Mapped[datetime] = mapped_column(DateTime(timezone=True))
