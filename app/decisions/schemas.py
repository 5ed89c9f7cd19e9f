"""The wire form of decisions: what may be asked for and what is answered."""

import re
from datetime import UTC, datetime
from typing import Annotated, Literal
from uuid import UUID

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, JsonValue, StringConstraints

from app.control.auth import require_tenant
from app.control.keys import Principal
from app.decisions.export import ExportFormat
from app.decisions.record import DecisionKind, DecisionOutcome
from app.decisions.repository import DecisionFilter
from app.paging import DEFAULT_PAGE_ITEMS, Cursor, PageSize
from app.planner.cost import Provenance

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
TraceId = Annotated[str, StringConstraints(pattern=r"^[0-9a-f]{32}$")]
HexBytes = Annotated[
    str, BeforeValidator(lambda value: value.hex() if isinstance(value, bytes) else value)
]


class DecisionFilters(BaseModel):
    """Filters of the history; all given ones must hold."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    tenant: FilterText | None = Field(None, description="Only this tenant; the key must have it.")
    namespace: FilterText | None = Field(None, description="Only this namespace.")
    model: FilterText | None = Field(None, description="Only this model.")
    kind: DecisionKind | None = Field(None, description="Only this kind of request.")
    outcome: DecisionOutcome | None = Field(None, description="Only this outcome.")
    action: FilterText | None = Field(None, description="Only what chose this action.")
    backend: FilterText | None = Field(None, description="Only what chose this backend.")
    tier: FilterText | None = Field(None, description="Only what chose a state in this tier.")
    reason: FilterText | None = Field(None, description="Only this `fallback_reason`.")
    policy_version: FilterText | None = Field(None, description="Only under this policy.")
    trace_id: TraceId | None = Field(
        None,
        description="Only of this W3C trace, also of one that the service began in its answer.",
    )
    created_from: Instant | None = Field(
        None, alias="from", description="Made at this time or later (RFC 3339 with a zone)."
    )
    created_to: Instant | None = Field(
        None, alias="to", description="Made before this time (RFC 3339 with a zone)."
    )

    def chosen(self, principal: Principal) -> DecisionFilter:
        """These filters for a caller. Raises TENANT_FORBIDDEN for a tenant that the key lacks."""
        if self.tenant is not None:
            require_tenant(principal, self.tenant)
        named = self.model_dump(include=set(DecisionFilters.model_fields))
        return DecisionFilter(tenants=principal.tenants, **named)


class DecisionQuery(DecisionFilters):
    """Filters of the list, and which page of it."""

    page_size: PageSize = DEFAULT_PAGE_ITEMS
    cursor: Cursor = None


class StreamQuery(DecisionFilters):
    """Filters of the stream, and how long it may go on."""

    for_s: Annotated[float, Field(ge=0, le=86_400)] = Field(
        3600.0, description="Ends after so many seconds; a client that wants more comes back."
    )


class ExportQuery(DecisionFilters):
    """Filters of an export, and its form."""

    format: ExportFormat = Field(ExportFormat.NDJSON, description="How rows are written.")


class OutcomeView(BaseModel):
    """What happened after a decision."""

    model_config = ConfigDict(from_attributes=True)

    outcome_id: UUID
    decision_id: UUID = Field(description="The decision of the chain that this completes.")
    created_at: datetime
    status: str = Field(
        description="completed, registered, fell_back, consumed, discarded, expired or recomputed."
    )
    fallback_reason: str | None = Field(description="Why it fell back; null when it completed.")
    observed_us: int | None = Field(
        description="How long the whole request took, in microseconds; of a report, what it says."
    )
    transfer_us: int | None = Field(
        description="Of that, the bytes alone, in microseconds, by the clock of their worker."
    )
    bytes_transferred: int | None = Field(description="Bytes moved; null when not known.")
    physical: bool = Field(description="True only when a worker verified the bytes.")
    detail: JsonValue
    model: str | None = Field(description="Of its decision, as are the next three.")
    kind: str | None
    backend: str | None
    policy_version: str | None
    tokens: int | None = Field(description="Tokens moved or reused; null when not known.")
    predicted_us: int | None = Field(description="What was predicted, in microseconds.")
    recompute_us: int | None = Field(
        description="Predicted time to compute the tokens again, in microseconds."
    )
    gain_us: int | None = Field(
        description="Time saved, in microseconds; negative when it cost more, null if not known."
    )
    reporter: str | None = Field(description="The API key of a report from outside; else null.")
    reported_at: datetime | None = Field(
        description="When that report came; `created_at` is then its decision's."
    )


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
    action: str | None = Field(description="What was chosen; null in rows of older versions.")
    backend: str | None = Field(description="The backend chosen, if any.")
    tier: str | None = Field(description="Where the chosen state lies.")
    target: str | None = Field(description="Where it was to go.")
    freshness: str | None = Field(description="How fresh the index was.")
    durability: str | None = Field(description="How safe the record was before the answer left.")
    query_tokens: int | None = Field(description="Tokens asked for.")
    matched_tokens: int | None = Field(description="Tokens that the chosen entry matched.")
    predicted_us: int | None = Field(description="Predicted time to reuse, in microseconds.")
    recompute_us: int | None = Field(
        description="Predicted time to compute the matched tokens again, in microseconds."
    )


class TermView(BaseModel):
    """One addend of a cost."""

    model_config = ConfigDict(from_attributes=True)

    name: str
    value_us: int
    provenance: Provenance = Field(description="How far the figure can be trusted.")


class CandidateView(BaseModel):
    """One way to go: a state, a backend, the engine's own way, or computing again."""

    model_config = ConfigDict(from_attributes=True)

    kind: Literal["state", "backend", "engine", "recompute"]
    name: str
    chosen: bool
    lost: str | None = Field(description="Why it was not chosen; null for what was.")
    detail: str
    classification: str | None
    matched_tokens: int | None
    tier: str | None
    predicted_us: int | None = Field(description="Sum of the terms; null where nothing is known.")
    terms: list[TermView] = Field(description="What it would cost, in microseconds.")


class DecisionDetail(DecisionView):
    """A decision with its inputs, its chain and what came of it."""

    inputs: JsonValue = Field(description="Versioned record of everything the answer came from.")
    candidates: list[CandidateView] = Field(
        description="What it could have come to, the chosen one first; rows of older versions have"
        " fewer."
    )
    chain: list[DecisionView] = Field(
        description="Decisions of the same chain, oldest first, this one among them: 500 at most."
    )
    outcomes: list[OutcomeView] = Field(
        description="Outcomes of the decisions of the chain, oldest first: 1,000 at most."
    )
    cut: bool = Field(description="Whether there are more of either.")


class DecisionPage(BaseModel):
    """A page of decisions, newest first."""

    items: list[DecisionView]
    next_cursor: str | None = Field(description="Ask with it for the next page; null at the end.")
