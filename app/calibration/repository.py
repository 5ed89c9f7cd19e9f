"""SQL of calibration: outcomes in the order of their transactions, estimators, and the cursor."""

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any, Final, NamedTuple
from uuid import UUID

from sqlalchemy import Row, literal, or_, select, text, tuple_, update
from sqlalchemy.dialects.postgresql import insert

from app.calibration.models import CalibrationCursorRow, CostCalibrationRow
from app.calibration.parts import Learnt, PartKey
from app.db.base import Xid8
from app.db.session import ReadSession, WriteSession
from app.decisions.models import DecisionOutcomeRow, DecisionRow
from app.decisions.record import made_at
from app.planner.calibrate import Estimator

MAX_PARTS: Final = 16_384
_NO_ID: Final = UUID(int=0)
# Below the oldest transaction that still runs nothing can be added any more.
_FENCE: Final = text(
    "SELECT CAST(CAST(pg_snapshot_xmin(pg_current_snapshot()) AS text) AS bigint) AS fence"
)
_O: Final = DecisionOutcomeRow
_C: Final = CostCalibrationRow


class ReadTo(NamedTuple):
    """The outcome that was read last; `changes` goes up whenever anything was learnt."""

    xid: int
    outcome_id: UUID
    changes: int


async def begin_cursor(session: WriteSession) -> None:
    """From now on: what is older than the first calibration is not learnt from."""
    fence = (await session.execute(_FENCE)).scalar_one()
    values = {"singleton": True, "xid": fence, "outcome_id": _NO_ID, "changes": 0}
    await session.execute(insert(CalibrationCursorRow).values(**values).on_conflict_do_nothing())


async def claim_cursor(session: WriteSession) -> ReadTo | None:
    """Until the transaction ends nobody else learns; None while somebody else does, or before
    `begin_cursor`.
    """
    row = (
        await session.execute(
            select(
                CalibrationCursorRow.xid,
                CalibrationCursorRow.outcome_id,
                CalibrationCursorRow.changes,
            ).with_for_update(skip_locked=True)
        )
    ).one_or_none()
    return None if row is None else ReadTo(*row)


async def move_cursor(session: WriteSession, to: ReadTo) -> None:
    values = {"xid": to.xid, "outcome_id": to.outcome_id, "changes": to.changes}
    await session.execute(update(CalibrationCursorRow).values(**values))


async def changes_of(session: ReadSession) -> int:
    """0 before anything was learnt."""
    return await session.scalar(select(CalibrationCursorRow.changes)) or 0


async def outcomes_after(
    session: WriteSession, after: ReadTo, limit_rows: int
) -> Sequence[Row[Any]]:
    """Outcomes that say how long something took, in the order of their transactions."""
    fence = (await session.execute(_FENCE)).scalar_one()
    xid = literal(after.xid, Xid8())
    statement = (
        select(
            _O.xid,
            _O.outcome_id,
            _O.decision_id,
            _O.status,
            _O.transfer_us,
            _O.bytes_transferred,
            _O.detail,
        )
        .where(
            _O.xid.is_not(None),
            _O.xid >= xid,
            or_(_O.xid > xid, _O.outcome_id > after.outcome_id),
            _O.xid < literal(fence, Xid8()),
            or_(
                _O.transfer_us.is_not(None),
                _O.detail.has_key("prefill_us"),
                _O.detail.has_key("transfer_us"),
            ),
        )
        .order_by(_O.xid, _O.outcome_id)
        .limit(limit_rows)
    )
    found: Sequence[Row[Any]] = (await session.execute(statement)).all()
    return found


async def decisions_named(session: WriteSession, ids: Sequence[UUID]) -> Mapping[UUID, Row[Any]]:
    """Those of them that are still there."""
    if not ids:
        return {}
    names = [(made_at(each), each) for each in ids]
    statement = select(
        DecisionRow.decision_id,
        DecisionRow.kind,
        DecisionRow.model,
        DecisionRow.inputs,
        DecisionRow.estimate,
        DecisionRow.query_tokens,
    ).where(tuple_(DecisionRow.created_at, DecisionRow.decision_id).in_(names))
    return {row.decision_id: row for row in await session.execute(statement)}


async def learnt_parts(session: ReadSession) -> dict[PartKey, Learnt]:
    """All of them, at most MAX_PARTS, those that were updated last."""
    statement = (
        select(
            _C.model, _C.hardware, _C.part, _C.basis, _C.log_factor, _C.spread,
            _C.observations, _C.risen, _C.fallen, _C.fast, _C.drifts,
        )
        .order_by(_C.updated_at.desc(), _C.model, _C.hardware, _C.part)
        .limit(MAX_PARTS)
    )  # fmt: skip
    return {
        PartKey(row.model, row.hardware, row.part): Learnt(
            Estimator(
                row.log_factor, row.spread, row.observations, row.risen, row.fallen, row.fast
            ),
            row.basis,
            row.drifts,
        )
        for row in await session.execute(statement)
    }


async def store_learnt(
    session: WriteSession, learnt: Mapping[PartKey, Learnt], now: datetime
) -> None:
    """Put each in the place of what was there."""
    if not learnt:
        return
    rows = [
        {
            **key._asdict(),
            "basis": one.basis,
            "drifts": one.drifts,
            "updated_at": now,
            **{name: getattr(one.estimator, name) for name in one.estimator.__struct_fields__},
        }
        for key, one in learnt.items()
    ]
    statement = insert(CostCalibrationRow).values(rows)
    names = [name for name in rows[0] if name not in PartKey._fields]
    await session.execute(
        statement.on_conflict_do_update(
            index_elements=list(PartKey._fields),
            set_={name: statement.excluded[name] for name in names},
        )
    )
