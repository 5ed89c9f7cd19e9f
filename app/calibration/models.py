"""Tables of calibration: what is learnt of each part, and how far outcomes were read."""

from datetime import datetime
from uuid import UUID

from sqlalchemy import BigInteger, Boolean, CheckConstraint, DateTime, Double, Integer, Text, Uuid
from sqlalchemy.orm import Mapped, mapped_column

from app.db.base import Base


class CostCalibrationRow(Base):
    """What is known of one part of a model on hardware, both "" for a link.

    `basis` says what its factor is of: the version of a profile, or a link as the topology has it.
    """

    __tablename__ = "cost_calibration"

    model: Mapped[str] = mapped_column(Text, primary_key=True)
    hardware: Mapped[str] = mapped_column(Text, primary_key=True)
    part: Mapped[str] = mapped_column(Text, primary_key=True)
    basis: Mapped[str] = mapped_column(Text)
    log_factor: Mapped[float] = mapped_column(Double)
    spread: Mapped[float] = mapped_column(Double)
    observations: Mapped[int] = mapped_column(BigInteger)
    risen: Mapped[float] = mapped_column(Double)
    fallen: Mapped[float] = mapped_column(Double)
    fast: Mapped[int] = mapped_column(Integer)
    drifts: Mapped[int] = mapped_column(BigInteger)
    updated_at: Mapped[datetime] = mapped_column(DateTime(timezone=True))


class CalibrationCursorRow(Base):
    """One row: the outcome that was read last, and how often anything was learnt."""

    __tablename__ = "calibration_cursor"
    __table_args__ = (CheckConstraint("singleton", name="one_row"),)

    singleton: Mapped[bool] = mapped_column(Boolean, primary_key=True)
    xid: Mapped[int] = mapped_column(BigInteger)
    outcome_id: Mapped[UUID] = mapped_column(Uuid)
    changes: Mapped[int] = mapped_column(BigInteger)
