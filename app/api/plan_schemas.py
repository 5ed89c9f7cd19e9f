"""The wire form of `/v1/plans`.

The hot path decodes with `app.api.plan_wire`; a test holds both to the same accept and reject set.
"""

from datetime import datetime
from typing import Annotated, Any, Final, Literal, Self
from uuid import UUID

import msgspec
from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    StrictInt,
    StrictStr,
    WithJsonSchema,
    model_validator,
)

from app.api.match_schemas import AnyText, MatchQuery, Tenant, Text
from app.contract.enums import DeviceClass
from app.contract.evidence import QueryEvidence
from app.engines.reach import Tier
from app.engines.views import ViewState
from app.planner.choose import PlanAction
from app.planner.cost import Provenance
from app.planner.question import PlanExclusion
from app.settings import MAX_QUERY_TOKENS

MAX_TARGETS: Final = 64
MAX_PREVIOUS: Final = 1_000
MAX_PREVIOUS_STATES: Final = 64
MAX_TOKENS: Final = 2**40
MAX_COUNT: Final = 10**6
MAX_GENERATION: Final = 2**63 - 1
# Eleven days: what is later is no deadline of a request.
MAX_DEADLINE_US: Final = 10**12
EVIDENCE_REF: Final = "#/components/schemas/ContractQueryEvidence"

Tokens = Annotated[StrictInt, Field(ge=0, le=MAX_TOKENS)]
Count = Annotated[StrictInt, Field(ge=0, le=MAX_COUNT)]
Generation = Annotated[StrictInt, Field(ge=1, le=MAX_GENERATION)]
Deadline = Annotated[StrictInt, Field(ge=1, le=MAX_DEADLINE_US)]
Rank = Annotated[StrictInt, Field(ge=0, le=65_535)]
Node = Annotated[StrictStr, Field(min_length=1, max_length=128, pattern=r"^[^\x00/]+$")]
Instance = Annotated[StrictStr, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._:-]{0,127}$")]


def _evidence(value: Any) -> Any:
    try:
        return msgspec.to_builtins(msgspec.convert(value, QueryEvidence))
    except msgspec.ValidationError as error:
        raise ValueError(str(error)) from None


Evidence = Annotated[
    dict[str, Any], BeforeValidator(_evidence), WithJsonSchema({"$ref": EVIDENCE_REF})
]


class PlanTarget(BaseModel):
    """An engine that may run the request. What is left out is not known: its term has a default,
    more uncertainty, and says so.
    """

    model_config = ConfigDict(extra="forbid")

    engine_id: Instance = Field(description="Its `instance_id`.")
    dp_rank: Rank = 0
    generation: Generation | None = Field(
        None,
        description="Its `epoch` in answers of `/v1/match`. One that is over may not be used; of "
        "one that was not heard of, the cache is not counted; null: whichever is known.",
    )
    residency: Node | None = Field(
        None, description="Its node; null: as the topology or its registration says."
    )
    device_class: DeviceClass | None = Field(None, description="For what the policy allows.")
    hardware: AnyText | None = Field(
        None, description="By which its cost profile is found; null: as the topology says."
    )
    queue_depth: Count | None = Field(None, description="Requests before this one.")
    running_prefill_tokens: Tokens | None = Field(
        None,
        description="Prompt tokens that it computes before this request's, queued and running.",
    )
    running_decode_tokens: Tokens | None = Field(
        None, description="Tokens of context of the requests that decode beside it."
    )
    free_blocks: Tokens | None = None
    block_tokens: Annotated[StrictInt, Field(ge=1, le=1 << 20)] | None = Field(
        None, description="Of one block; null: as it is registered."
    )
    parallel_layout: AnyText | None = Field(
        None, description="Null: as it is registered. Blocks of another layout are not brought."
    )


class PreviousTier(BaseModel):
    """As in an answer of `/v1/match`."""

    only: Tokens
    cumulative: Tokens


class PreviousCandidate(BaseModel):
    """A candidate as `/v1/match` answered it; its other fields may stay."""

    instance_id: Instance
    dp_rank: Rank = 0
    epoch: Generation
    tiers: dict[Tier, PreviousTier]
    state: ViewState = ViewState.LIVE


class PreviousState(BaseModel):
    """A registered state as `/v1/match` answered it; its other fields may stay."""

    entry_id: Text
    generation: Annotated[StrictInt, Field(ge=0, le=MAX_GENERATION)]
    matched_tokens: Annotated[StrictInt, Field(ge=1, le=MAX_QUERY_TOKENS)]


class PreviousMatch(BaseModel):
    """What was matched before, and for whom. Epochs and generations are checked against what is
    known now; what has changed since is excluded.
    """

    model_config = ConfigDict(extra="forbid")

    tenant: Tenant
    model: Text
    revision: AnyText | None = None
    layout: AnyText | None = None
    query_tokens: Annotated[StrictInt, Field(ge=1, le=MAX_QUERY_TOKENS)]
    candidates: Annotated[list[PreviousCandidate], Field(max_length=MAX_PREVIOUS)] = []
    states: Annotated[list[PreviousState], Field(max_length=MAX_PREVIOUS_STATES)] = []


class PlanRequest(BaseModel):
    """One request to be placed: what it is, as `query` or `match`, and where it may run."""

    model_config = ConfigDict(extra="forbid")

    query: MatchQuery | None = Field(
        None, description="As one of `/v1/match`, with tokens; `hashes` do not say how many."
    )
    match: PreviousMatch | None = Field(None, description="Instead of `query`: an earlier answer.")
    evidence: Evidence | None = Field(
        None,
        description="Under what the request is computed. Without it no registered state is reused.",
    )
    targets: Annotated[list[PlanTarget], Field(min_length=1, max_length=MAX_TARGETS)]
    deadline_us: Deadline | None = Field(
        None, description="The first token is wanted within this time from now, in microseconds."
    )
    slo_ttft_us: Deadline | None = Field(
        None, description="The objective for the first token; not later than the deadline."
    )
    policy: Annotated[StrictInt, Field(ge=1, le=MAX_GENERATION)] | None = Field(
        None,
        description="A dry run under this stored version, which needs `policies:read`: nothing is "
        "recorded or reserved.",
    )
    explain: Literal["brief", "full"] = Field(
        "brief", description="`full` answers with every alternative, at most 1,024."
    )

    @model_validator(mode="after")
    def _one_of(self) -> Self:
        if (self.query is None) == (self.match is None):
            raise ValueError("one of query and match")
        if self.query is not None and self.query.hashes is not None:
            raise ValueError("a plan needs tokens")
        if self.query is not None and not (self.query.tokens or self.query.tokens_b64):
            raise ValueError("a plan needs at least one token")
        if self.deadline_us and self.slo_ttft_us and self.slo_ttft_us > self.deadline_us:
            raise ValueError("the objective is later than the deadline")
        names = [(target.engine_id, target.dp_rank) for target in self.targets]
        if len(set(names)) < len(names):
            raise ValueError("a target is there twice")
        return self


class TermView(BaseModel):
    """One addend of a cost, in microseconds."""

    name: Literal[
        "lookup", "queue", "transfer", "restore", "sync", "schedule", "recompute", "interference"
    ] = Field(description="`transfer` is what of it the queue does not hide.")
    value_us: int
    uncertainty_us: int = Field(description="A standard deviation.")
    provenance: Provenance


class SourceView(BaseModel):
    """Where state is brought from."""

    kind: Literal["engine", "state"] = Field(
        description="An engine's own blocks, or a registered state."
    )
    name: str = Field(description="The engine's, or the entry's id.")
    generation: int | None
    tier: str
    node: str
    tokens: int = Field(description="Of the prompt's prefix.")
    backend: str | None = Field(description="Which the policy puts first; null if none may.")


class WayView(BaseModel):
    """One way to serve the request. Terms add up to `total_us`, but for roundings."""

    action: PlanAction
    engine_id: str
    dp_rank: int
    generation: int = Field(description="0 where it is not known.")
    residency: str
    source: SourceView | None = Field(description="Null where nothing is brought.")
    path: str
    reused_tokens: int
    computed_tokens: int
    moved_bytes: int
    total_us: int = Field(description="From now to the first token.")
    uncertainty_us: int
    gain_us: int = Field(
        description="Of what is brought, against computing on the same target what that has not; "
        "of what the target has, against computing all."
    )
    gain_uncertainty_us: int
    transfer_us: int = Field(description="The whole transfer, also what the queue hides.")
    terms: list[TermView]
    lost: PlanExclusion | None = Field(description="Why it is not taken; null for what is.")


class ExclusionView(BaseModel):
    """How many alternatives were not taken for one reason; an alternative is a target with one
    source, or without."""

    reason: PlanExclusion
    count: int


class ConsideredView(BaseModel):
    """One alternative of all; without costs where it was not priced."""

    engine_id: str
    dp_rank: int
    source: SourceView | None
    total_us: int | None
    gain_us: int | None
    lost: PlanExclusion | None
    terms: list[TermView]


class NoteView(BaseModel):
    """What of a question is not as its caller said, or is not known."""

    about: str
    note: str


class PlanView(BaseModel):
    """The choice, and what it was chosen among."""

    decision_id: UUID | None = Field(description="In the history; null for a dry run.")
    made_at: datetime
    policy_version: str
    topology_version: int | None = Field(description="Null while none was ever put.")
    engines: Literal["hit", "miss", "unknown", "previous"] = Field(
        description="What is known of engines' caches; `unknown` is not a miss."
    )
    states: str = Field(description="How fresh the index of registered states is.")
    tokens: int
    action: PlanAction
    start_by: datetime = Field(description="When what the plan counts on must begin at the latest.")
    ready_by: datetime = Field(description="When the first token is expected.")
    chosen: WayView
    fallback: WayView = Field(description="Computing all of it on the chosen target.")
    margin_us: int | None = Field(
        description="To the best other alternative; below zero where this one was taken to learn."
    )
    late: bool = Field(description="Nothing meets the deadline; this is the soonest.")
    explored: bool = Field(description="It was taken to learn what it costs.")
    alternatives: list[WayView] = Field(
        description="The best of each action and target, the soonest first, at most 16."
    )
    excluded: list[ExclusionView]
    notes: list[NoteView]
    considered: list[ConsideredView] | None = Field(description="With `full`: all, at most 1,024.")
    considered_left_off: int
