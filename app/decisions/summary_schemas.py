"""The wire form of summaries."""

from datetime import datetime, timedelta
from typing import Annotated, Final, Self

from pydantic import AfterValidator, BaseModel, ConfigDict, Field

from app.control.auth import require_tenant
from app.control.keys import Principal
from app.decisions.record import DecisionKind, DecisionOutcome
from app.decisions.schemas import FilterText, Instant
from app.decisions.summary import (
    MAX_GROUPS,
    Cell,
    Dimension,
    Summary,
    SummaryQuestion,
    SummaryStep,
)

DEFAULT_SPAN: Final = timedelta(days=1)


def _distinct(groups: list[Dimension]) -> list[Dimension]:
    if len(set(groups)) < len(groups):
        raise ValueError("must not name a dimension twice")
    return groups


class SummaryQuery(BaseModel):
    """What to sum up; all given filters must hold."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    group_by: Annotated[
        list[Dimension],
        AfterValidator(_distinct),
        Field(
            max_length=MAX_GROUPS,
            description="What to tell sums apart by: repeat it for up to three.",
            json_schema_extra={"uniqueItems": True},
        ),
    ] = []
    step: SummaryStep = Field(SummaryStep.HOUR, description="How time is divided.")
    created_from: Instant | None = Field(
        None, alias="from", description="Begin (RFC 3339 with a zone); a day before `to` if absent."
    )
    created_to: Instant | None = Field(
        None, alias="to", description="End (RFC 3339 with a zone); now if absent."
    )
    tenant: FilterText | None = Field(None, description="Only this tenant; the key must have it.")
    model: FilterText | None = Field(None, description="Only this model.")
    kind: DecisionKind | None = Field(None, description="Only this kind of request.")
    action: FilterText | None = Field(None, description="Only what chose this action.")
    backend: FilterText | None = Field(None, description="Only this backend.")
    reason: FilterText | None = Field(None, description="Only this `fallback_reason`.")
    outcome: DecisionOutcome | None = Field(None, description="Only this outcome.")
    policy_version: FilterText | None = Field(None, description="Only under this policy.")

    def question(self, principal: Principal, now: datetime) -> SummaryQuestion:
        """For a caller. Raises TENANT_FORBIDDEN for a tenant that the key lacks."""
        if self.tenant is not None:
            require_tenant(principal, self.tenant)
        end = self.created_to or now
        try:
            begin = self.created_from or end - DEFAULT_SPAN
        except OverflowError:
            begin = end
        asked = {name: getattr(self, name) for name in Dimension}
        return SummaryQuestion(
            tenants=principal.tenants,
            created_from=begin,
            created_to=end,
            step=self.step,
            group_by=tuple(self.group_by),
            filters={name: value for name, value in asked.items() if value is not None},
        )


class RatesView(BaseModel):
    """Four facts, kept apart; null where there was nothing of which to be a part."""

    logical_match: float | None = Field(description="Of lookups, those with a match: hits.")
    physical_availability: float | None = Field(
        description="Of lookups with a match, those whose state could be reached."
    )
    completed_materialization: float | None = Field(
        description="Of attempts to move state, those that a worker completed."
    )
    useful_reuse: float | None = Field(
        description="Of decisions that brought state, those whose state a runtime says it used."
    )


class LatencyView(BaseModel):
    """Time to the answer in microseconds, exact to a fifth; null without decisions."""

    p50: float | None
    p95: float | None
    p99: float | None


class OutcomesView(BaseModel):
    """What came of decisions. Counted by the time of the outcome's row."""

    count: int
    completed: int = Field(description="A worker verified the bytes at their destination.")
    moved: int = Field(description="Of these, those asked for by materialize, prefetch or store.")
    fell_back: int = Field(description="Of the same, those in which nothing was executed.")
    consumed: int = Field(description="Reports of a runtime that it used the state.")
    delivered: int = Field(
        description="Moves that ended with the state in place: completed by a worker, or registered"
        " by the protocol alone."
    )
    used: int = Field(
        description="Moves whose state was used: each once, however many reports tell of it."
    )
    tokens: int = Field(description="Tokens moved or reused.")
    bytes: int = Field(description="Bytes moved.")
    gain_us: int = Field(description="Time saved in microseconds; negative when it cost more.")


class PredictionView(BaseModel):
    """Observed time over predicted time: 1 is exact, 2 is twice as long as predicted."""

    compared: int = Field(description="Moves with both, whose bytes a worker verified.")
    p50: float | None
    p90: float | None
    p99: float | None
    bias: float | None = Field(description="Of the sums; above 1, predictions are too short.")


class SummaryCell(BaseModel):
    """Sums of one bucket of time and one group."""

    bucket: datetime | None = Field(description="Where it begins; null for step `none`.")
    group: dict[Dimension, str | None] = Field(
        description="By what was asked for; null for decisions that have no such value."
    )
    decisions: int
    lookups: int
    hits: int = Field(description="Lookups with a match that can be used.")
    unavailable: int = Field(description="Lookups whose every match could not be reached.")
    query_tokens: int = Field(description="Tokens that lookups asked for.")
    matched_tokens: int = Field(description="Tokens of them that a chosen entry matched.")
    rates: RatesView
    latency_us: LatencyView
    outcomes: OutcomesView | None = Field(
        description="Null when asked by `outcome`, which outcomes do not have."
    )
    prediction: PredictionView | None = Field(description="Null as `outcomes`.")

    @classmethod
    def of(cls, cell: Cell) -> Self:
        return cls(
            bucket=cell.bucket,
            group={Dimension(name): value for name, value in cell.group.items()},
            decisions=cell.decisions,
            lookups=cell.lookups,
            hits=cell.hits,
            unavailable=cell.unavailable,
            query_tokens=cell.query_tokens,
            matched_tokens=cell.matched_tokens,
            rates=RatesView(
                logical_match=cell.logical_match,
                physical_availability=cell.physical_availability,
                completed_materialization=cell.completed_materialization,
                useful_reuse=cell.useful_reuse,
            ),
            latency_us=LatencyView(
                p50=cell.latency_p50_us, p95=cell.latency_p95_us, p99=cell.latency_p99_us
            ),
            outcomes=_outcomes(cell),
            prediction=_prediction(cell),
        )


class SummaryView(BaseModel):
    """Cells by bucket, then group. Where nothing was decided and nothing came, there is none."""

    created_from: datetime = Field(alias="from", description="At a bound of the step.")
    created_to: datetime = Field(alias="to", description="Likewise; not included.")
    step: SummaryStep
    cells: list[SummaryCell]

    @classmethod
    def of(cls, summary: Summary, step: SummaryStep) -> Self:
        cells = [SummaryCell.of(cell) for cell in summary.cells]
        return cls.model_validate(
            {"from": summary.created_from, "to": summary.created_to, "step": step, "cells": cells}
        )


def _outcomes(cell: Cell) -> OutcomesView | None:
    if cell.outcomes is None:
        return None
    names = set(OutcomesView.model_fields) - {"count"}
    return OutcomesView(count=cell.outcomes, **{name: getattr(cell, name) for name in names})


def _prediction(cell: Cell) -> PredictionView | None:
    if cell.compared is None:
        return None
    return PredictionView(
        compared=cell.compared,
        p50=cell.error_p50,
        p90=cell.error_p90,
        p99=cell.error_p99,
        bias=cell.bias,
    )
