"""The wire form of reports on what came of decisions."""

from math import isfinite
from typing import Annotated, Final, Literal
from uuid import UUID

import orjson
from pydantic import AfterValidator, BaseModel, ConfigDict, Field, JsonValue, StringConstraints

from app.decisions.record import OutcomeStatus
from app.decisions.reports import OutcomeReport, ReportResult
from app.decisions.schemas import OutcomeView

MAX_REPORTS: Final = 1_000
MAX_DETAIL_BYTES: Final = 4_096
MAX_COUNT: Final = 2**53 - 1
# No prompt and no state is larger; sums of so many reports as a day can bring stay in 64 bits.
MAX_TOKENS: Final = 10**9
MAX_BYTES: Final = 2**48


def _bounded(detail: dict[str, JsonValue]) -> dict[str, JsonValue]:
    try:
        text = orjson.dumps(detail)
    except (TypeError, orjson.JSONEncodeError) as error:
        raise ValueError("must be JSON with integers of 64 bits and no lone surrogates") from error
    if not _finite(detail):
        raise ValueError("must be JSON, which has no NaN and no infinity")
    if len(text) > MAX_DETAIL_BYTES:
        raise ValueError(f"must be at most {MAX_DETAIL_BYTES} bytes as JSON")
    # Postgres keeps no U+0000, in no text.
    if b"\\u0000" in text and "\x00" in _all_text(detail):
        raise ValueError("must not hold the character U+0000")
    return detail


def _finite(value: JsonValue) -> bool:
    if isinstance(value, float):
        return isfinite(value)
    if isinstance(value, dict):
        return all(map(_finite, value.values()))
    return not isinstance(value, list) or all(map(_finite, value))


def _all_text(value: JsonValue) -> str:
    if isinstance(value, str):
        return value
    if isinstance(value, dict):
        return "".join(name + _all_text(inner) for name, inner in value.items())
    return "".join(map(_all_text, value)) if isinstance(value, list) else ""


Count = Annotated[int, Field(ge=0, le=MAX_COUNT, strict=True)]
ReportId = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9._:-]{1,128}$")]
Reason = Annotated[str, StringConstraints(pattern=r"^[a-z0-9_]{1,64}$")]
Detail = Annotated[
    dict[str, JsonValue],
    AfterValidator(_bounded),
    Field(
        description=f"Whatever else is to be kept, at most {MAX_DETAIL_BYTES} bytes as JSON."
        " Nothing of a prompt belongs here."
    ),
]


class ReportBody(BaseModel):
    """What a runtime says of a decision it was answered with."""

    model_config = ConfigDict(extra="forbid")

    status: Literal["consumed", "discarded", "expired", "recomputed"] = Field(
        description="`consumed`: the state was used. `discarded`, `expired`: it was there and was"
        " not used. `recomputed`: the tokens were computed again all the same."
    )
    report_id: ReportId | None = Field(
        None,
        description="Tells reports of the same decision and status apart: without it there is one"
        " of each status.",
    )
    reason: Reason | None = Field(None, description="Why it was not used, as one word.")
    tokens: Count | None = Field(None, le=MAX_TOKENS, description="Tokens that were reused.")
    observed_us: Count | None = Field(
        None, description="How long it took until the state could be used, in microseconds."
    )
    bytes: Count | None = Field(None, le=MAX_BYTES, description="Bytes that were moved.")
    detail: Detail = Field(default_factory=dict)

    def report(self, decision_id: UUID) -> OutcomeReport:
        return OutcomeReport(
            decision_id=decision_id,
            status=OutcomeStatus(self.status),
            report_id=self.report_id,
            reason=self.reason,
            tokens=self.tokens,
            observed_us=self.observed_us,
            payload_bytes=self.bytes,
            detail=self.detail,
        )


class BatchedReport(ReportBody):
    """A report of a batch names its decision."""

    decision_id: UUID


class ReportBatch(BaseModel):
    """Reports, each taken by itself; those that are new are stored together."""

    model_config = ConfigDict(extra="forbid")

    reports: list[BatchedReport] = Field(min_length=1, max_length=MAX_REPORTS)


class ReportView(BaseModel):
    """A report that is stored."""

    result: Literal[ReportResult.STORED, ReportResult.ALREADY_STORED]
    outcome: OutcomeView


class ReportItem(BaseModel):
    """What became of one report of a batch."""

    index: int = Field(description="Position in `reports`, from 0.")
    decision_id: UUID
    outcome_id: UUID = Field(description="The same for the same report sent again.")
    result: ReportResult = Field(
        description="`not_found`: no such decision, or not yet stored; send it again in a second."
        " `conflict`: it was reported with other content before."
    )


class ReportItems(BaseModel):
    """One result for each report, in order."""

    results: list[ReportItem]
