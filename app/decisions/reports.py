"""What a runtime says, from outside, of a decision it was answered with; said again, it is one.

A report's row has its decision's `created_at` and an id made of what the report is about, so that
the primary key tells a retry from another report.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Final
from uuid import UUID, uuid5

import orjson
from sqlalchemy import Row

from app.clock import Clock
from app.control.keys import Principal
from app.db.partitions import day_of
from app.db.session import Database, NoPartitionError
from app.decisions.copier.repository import add_rollups
from app.decisions.partitions import ensure_day
from app.decisions.record import DecisionOutcome, Outcome, OutcomeStatus
from app.decisions.reports_repository import (
    decisions_reported,
    one_at_a_time,
    reports_insert,
    reports_stored,
)
from app.decisions.rollups import fold_outcomes
from app.errors import ErrorCode, NexusError

# How decisions end that brought state to where it can be used.
_BROUGHT: Final = frozenset(
    {DecisionOutcome.MATERIALIZED, DecisionOutcome.ACKNOWLEDGED, DecisionOutcome.TRANSFERRED}
)


class ReportResult(StrEnum):
    """What became of a report."""

    STORED = "stored"
    ALREADY_STORED = "already_stored"
    NOT_FOUND = "not_found"
    CONFLICT = "conflict"


@dataclass(frozen=True, slots=True)
class OutcomeReport:
    """One report. `report_id` tells reports of the same decision and status apart."""

    decision_id: UUID
    status: OutcomeStatus
    report_id: str | None = None
    reason: str | None = None
    tokens: int | None = None
    observed_us: int | None = None
    payload_bytes: int | None = None
    detail: Mapping[str, Any] = field(default_factory=dict)

    @property
    def outcome_id(self) -> UUID:
        """The same for every retry."""
        return uuid5(self.decision_id, f"{self.status}:{self.report_id or ''}")


@dataclass(frozen=True, slots=True)
class Reported:
    """A report and what became of it. `outcome` is what is stored, of either."""

    report: OutcomeReport
    result: ReportResult
    outcome: Row[Any] | None = None


class OutcomeReports:
    """Stores reports, each once, with what they add to the sums."""

    def __init__(self, database: Database, clock: Clock) -> None:
        self._database = database
        self._clock = clock

    async def take(self, reports: Sequence[OutcomeReport], principal: Principal) -> list[Reported]:
        """One result for each report, in order; all that are new are stored together.

        Raises DATABASE_UNAVAILABLE; the same reports may be sent again.
        """
        try:
            return await self._take(reports, principal)
        except NoPartitionError:
            async with self._database.read() as session:
                about = await decisions_reported(session, _ids(reports), principal.tenants)
            for day in {day_of(row.created_at) for row in about.values()}:
                await ensure_day(self._database, day)
            return await self._take(reports, principal)

    async def take_one(self, report: OutcomeReport, principal: Principal) -> Reported:
        """As `take`. Raises NOT_FOUND and OUTCOME_CONFLICT, too."""
        (taken,) = await self.take([report], principal)
        if taken.result is ReportResult.NOT_FOUND:
            raise NexusError(
                ErrorCode.NOT_FOUND,
                "No such decision of this key's tenants, or it is not stored yet: a decision is"
                " stored moments after its answer, so send the report again in a second",
            )
        if taken.result is ReportResult.CONFLICT:
            raise NexusError(
                ErrorCode.OUTCOME_CONFLICT,
                "This was reported before with other content. Send what was sent then, or give"
                " this report a `report_id` of its own",
            )
        return taken

    async def _take(self, reports: Sequence[OutcomeReport], principal: Principal) -> list[Reported]:
        now = self._clock.now()
        used = {report.decision_id for report in reports if _is_use(report)}
        async with self._database.write() as session:
            # Who comes second sees that use and gain were counted.
            await one_at_a_time(session, used)
            about = await decisions_reported(session, _ids(reports), principal.tenants)
            rows = _rows(reports, about)
            made = await reports_insert(
                session, [*rows.values()], reporter=principal.key_id, reported_at=now
            )
            if made:
                new = [rows[outcome_id] for outcome_id in made]
                again = _told_again(new, about)
                await add_rollups(session, fold_outcomes(new, again=again))
            stored = await reports_stored(
                session, [(row.created_at, row.outcome_id) for row in rows.values()]
            )
        return _results(reports, rows, stored, made)


def _ids(reports: Sequence[OutcomeReport]) -> set[UUID]:
    return {report.decision_id for report in reports}


def _rows(reports: Sequence[OutcomeReport], about: Mapping[UUID, Row[Any]]) -> dict[UUID, Outcome]:
    """The rows of what is about known decisions, by `outcome_id`; the first of equals.

    What was predicted and gained counts once for each decision: a worker that moved the state has
    told it already, and otherwise the first report of its use does.
    """
    rows: dict[UUID, Outcome] = {}
    counted = {decision_id for decision_id, found in about.items() if found.counted}
    for report in reports:
        decision = about.get(report.decision_id)
        if decision is None or report.outcome_id in rows:
            continue
        row = _row(report, decision)
        timed = _is_use(report) and report.observed_us is not None
        if timed and report.decision_id not in counted:
            counted.add(report.decision_id)
            row = _with_gain(row, decision)
        rows[report.outcome_id] = row
    return rows


def _is_use(report: OutcomeReport) -> bool:
    return report.status is OutcomeStatus.CONSUMED


def _told_again(rows: Sequence[Outcome], about: Mapping[UUID, Row[Any]]) -> set[UUID]:
    """The outcomes that are not the first to tell of the use of what was brought."""
    seen = {decision_id for decision_id, found in about.items() if found.used}
    again = set()
    for row in rows:
        if row.decision_id in seen or about[row.decision_id].outcome not in _BROUGHT:
            again.add(row.outcome_id)
        elif row.status is OutcomeStatus.CONSUMED:
            seen.add(row.decision_id)
    return again


def _row(report: OutcomeReport, decision: Row[Any]) -> Outcome:
    """The row of a report; what it copies is its decision's."""
    return Outcome(
        outcome_id=report.outcome_id,
        created_at=decision.created_at,
        decision_id=report.decision_id,
        tenant=decision.tenant,
        status=report.status,
        fallback_reason=report.reason,
        observed_us=report.observed_us,
        bytes_transferred=report.payload_bytes,
        # A worker verifies bytes; a report from outside is a runtime's word.
        physical=False,
        detail=orjson.dumps(report.detail).decode(),
        model=decision.model,
        kind=decision.kind,
        backend=decision.backend,
        policy_version=decision.policy_version,
        tokens=report.tokens,
    )


def _with_gain(row: Outcome, decision: Row[Any]) -> Outcome:
    recompute_us, observed_us = decision.recompute_us, row.observed_us
    known = recompute_us is not None and observed_us is not None
    return row._replace(
        predicted_us=decision.predicted_us,
        recompute_us=recompute_us,
        gain_us=recompute_us - observed_us if known else None,
    )


def _results(
    reports: Sequence[OutcomeReport],
    rows: Mapping[UUID, Outcome],
    stored: Mapping[UUID, Row[Any]],
    made: Collection[UUID],
) -> list[Reported]:
    results: list[Reported] = []
    new = set(made)
    for report in reports:
        outcome_id = report.outcome_id
        said, outcome = rows.get(outcome_id), stored.get(outcome_id)
        if said is None or outcome is None:
            results.append(Reported(report, ReportResult.NOT_FOUND))
            continue
        if not _same(report, outcome):
            result = ReportResult.CONFLICT
        else:
            result = ReportResult.STORED if outcome_id in new else ReportResult.ALREADY_STORED
            new.discard(outcome_id)
        results.append(Reported(report, result, outcome))
    return results


def _same(report: OutcomeReport, outcome: Row[Any]) -> bool:
    """Whether a stored row says what the report says."""
    said = (report.reason, report.tokens, report.observed_us, report.payload_bytes, report.detail)
    return said == (
        outcome.fallback_reason,
        outcome.tokens,
        outcome.observed_us,
        outcome.bytes_transferred,
        outcome.detail,
    )
