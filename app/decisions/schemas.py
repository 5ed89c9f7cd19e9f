"""The wire form of decisions: what may be asked for and what is answered."""

import re
from datetime import UTC, datetime
from typing import Annotated
from uuid import UUID

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, JsonValue, StringConstraints

from app.decisions.record import DecisionKind, DecisionOutcome, OutcomeStatus
from app.paging import DEFAULT_PAGE_ITEMS, Cursor, PageSize

_RFC3339 = re.compile(
    r"\d{4}-\d{2}-\d{2}[Tt]\d{2}:\d{2}:\d{2}(\.\d{1,9})?([Zz]|[+-]\d{2}:\d{2})", re.ASCII
)


def _instant(value: object) -> datetime:
    """Read RFC 3339 only: pydantic alone would also take numbers and times without a zone."""
    if not isinstance(value, str) or not _RFC3339.fullmatch(value):
        raise ValueError(
            "must be an RFC 3339 time with a zone, such as 2026-08-01T12:00:00Z (encode + as %2B)"
        )
    try:
        return datetime.fromisoformat(value.upper()).astimezone(UTC)
    except OverflowError as error:
        raise ValueError("must lie within the years 1 to 9999 in UTC") from error


Instant = Annotated[datetime, BeforeValidator(_instant)]
# Postgres text holds every character but U+0000.
FilterText = Annotated[str, StringConstraints(min_length=1, max_length=512, pattern=r"^[^\x00]*$")]
HexBytes = Annotated[
    str, BeforeValidator(lambda value: value.hex() if isinstance(value, bytes) else value)
]


class DecisionQuery(BaseModel):
    """Filters of the list; all given ones must hold."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    tenant: FilterText | None = Field(None, description="Only this tenant; the key must have it.")
    namespace: FilterText | None = Field(None, description="Only this namespace.")
    model: FilterText | None = Field(None, description="Only this model.")
    kind: DecisionKind | None = Field(None, description="Only this kind of request.")
    outcome: DecisionOutcome | None = Field(None, description="Only this outcome.")
    created_from: Instant | None = Field(
        None, alias="from", description="Made at this time or later (RFC 3339 with a zone)."
    )
    created_to: Instant | None = Field(
        None, alias="to", description="Made before this time (RFC 3339 with a zone)."
    )
    page_size: PageSize = DEFAULT_PAGE_ITEMS
    cursor: Cursor = None

    def filters(self) -> dict[str, object]:
        """What a cursor is bound to: everything that chooses rows, and nothing else."""
        return self.model_dump(exclude={"page_size", "cursor"}, exclude_none=True)


class OutcomeView(BaseModel):
    """What happened after a decision."""

    model_config = ConfigDict(from_attributes=True)

    outcome_id: UUID
    decision_id: UUID = Field(description="The decision of the chain that this completes.")
    created_at: datetime
    status: OutcomeStatus
    fallback_reason: str | None = Field(description="Why it fell back; null when it completed.")
    observed_us: int | None = Field(description="Measured duration in microseconds.")
    bytes_transferred: int | None = Field(description="Bytes moved; null when not known.")
    physical: bool = Field(description="True only when a worker verified the bytes.")
    detail: JsonValue


class DecisionView(BaseModel):
    """One answered lookup, estimate or materialize, without its inputs."""

    model_config = ConfigDict(from_attributes=True)

    decision_id: UUID
    created_at: datetime
    tenant: str
    namespace: str
    model: str
    kind: DecisionKind
    outcome: DecisionOutcome
    fallback_reason: str | None = Field(description="Why the answer was to recompute, if it was.")
    identity_hash: HexBytes | None = Field(
        description="Keyed hash of the prompt's tokens, in hexadecimal; comparable within a tenant."
    )
    parent_id: UUID | None = Field(description="The decision this one followed.")
    root_id: UUID = Field(description="The decision that began the chain.")
    key_id: str = Field(description="The API key that asked.")
    trace_id: str | None = Field(description="W3C trace id of the request.")
    policy_version: str
    entry_id: str | None = Field(description="The cache entry chosen.")
    state_id: UUID | None = Field(description="The state chosen.")
    match: JsonValue = Field(description="How the chosen entry matched; null without a match.")
    compatibility: JsonValue = Field(description="What was compared and found; null when nothing.")
    excluded: JsonValue = Field(description="Candidates ruled out, each with its reason.")
    estimate: JsonValue = Field(description="Terms of the estimate in microseconds; null if none.")
    selected_path: str | None = Field(description="The transfer path chosen.")
    path: list[str] = Field(description="Lifecycle states passed through, in order.")
    index_revision: int = Field(description="Revision of the index the answer came from.")
    latency_us: int = Field(description="Time to the answer in microseconds.")


class DecisionDetail(DecisionView):
    """A decision with its inputs, its chain and what came of it."""

    inputs: JsonValue = Field(description="Versioned record of everything the answer came from.")
    chain: list[DecisionView] = Field(
        description="All decisions of the same chain, oldest first, this one among them."
    )
    outcomes: list[OutcomeView] = Field(
        description="Outcomes of the decisions of the chain, oldest first."
    )


class DecisionPage(BaseModel):
    """A page of decisions, newest first."""

    items: list[DecisionView]
    next_cursor: str | None = Field(description="Ask with it for the next page; null at the end.")
