"""`POST /v1/decisions/{decision_id}/outcome` and `/v1/decisions/outcomes`: reports from outside."""

from typing import Any, Final
from uuid import UUID

from app.api.declared import errors_of
from app.decisions.report_schemas import (
    ReportBatch,
    ReportBody,
    ReportItem,
    ReportItems,
    ReportView,
)
from app.decisions.reports import OutcomeReports
from app.dependencies import DecisionsWriter, ServicesDep
from app.errors import ErrorCode

_BODY: Final = (
    ErrorCode.MISSING_FIELD,
    ErrorCode.UNKNOWN_FIELD,
    ErrorCode.INVALID_JSON,
    ErrorCode.INVALID_BODY,
)


async def report_outcome(
    decision_id: UUID, body: ReportBody, principal: DecisionsWriter, services: ServicesDep
) -> ReportView:
    """Say what came of a decision. The same report again changes nothing and is answered alike;
    a decision is stored moments after its answer, until then it is not found.
    """
    reports = OutcomeReports(services.database, services.clock)
    taken = await reports.take_one(body.report(decision_id), principal)
    return ReportView.model_validate({"result": taken.result, "outcome": taken.outcome})


async def report_outcomes(
    body: ReportBatch, principal: DecisionsWriter, services: ServicesDep
) -> ReportItems:
    """Up to 1,000 reports, each with its own result: one that is not taken stops no other."""
    reports = OutcomeReports(services.database, services.clock)
    taken = await reports.take(
        [report.report(report.decision_id) for report in body.reports], principal
    )
    return ReportItems(
        results=[
            ReportItem(
                index=index,
                decision_id=one.report.decision_id,
                outcome_id=one.report.outcome_id,
                result=one.result,
            )
            for index, one in enumerate(taken)
        ]
    )


def report_errors() -> dict[int | str, dict[str, Any]]:
    return errors_of(*_BODY, ErrorCode.NOT_FOUND, ErrorCode.OUTCOME_CONFLICT)


def batch_errors() -> dict[int | str, dict[str, Any]]:
    return errors_of(*_BODY)
