"""The wire form of `POST /v1/match`.

The hot path decodes with `app.api.match_wire`; a test holds both to the same accept and reject set.
"""

from datetime import datetime
from typing import Annotated, Any, Literal, Self
from uuid import UUID

from pydantic import BaseModel, ConfigDict, Field, StrictInt, StrictStr, model_validator

from app.engines.fields import MAX_HASHES
from app.engines.reach import Tier
from app.engines.views import ViewState
from app.settings import MAX_QUERY_TOKENS

MAX_QUERIES = 64
# In one request: hashes and entries of extra_keys, and what the entries have in them.
MAX_QUERY_HASHES = MAX_HASHES
MAX_EXTRA_VALUES = 32_768
MAX_SCOPE_CHARS = 128
MAX_TEXT_CHARS = 512
# Of base64: four characters for three bytes, four bytes a token.
MAX_B64_CHARS = (4 * MAX_QUERY_TOKENS + 2) // 3 * 4
# Of whole tokens: three in 16 characters, then the padding of one or two.
B64_PATTERN = (
    "^([A-Za-z0-9+/]{16})*([A-Za-z0-9+/]{5}[AQgw]==|[A-Za-z0-9+/]{10}[AEIMQUYcgkosw048]=)?$"
)
MAX_BLOCK_TOKENS = 1 << 20
HASH_PATTERN = "^([0-9a-fA-F]{2}){1,64}$"

Tenant = Annotated[
    StrictStr, Field(min_length=1, max_length=MAX_SCOPE_CHARS, pattern=r"^[^\x00]+$")
]
Text = Annotated[StrictStr, Field(min_length=1, max_length=MAX_TEXT_CHARS, pattern=r"^[^\x00]+$")]
AnyText = Annotated[StrictStr, Field(max_length=MAX_TEXT_CHARS, pattern=r"^[^\x00]*$")]
Token = Annotated[StrictInt, Field(ge=0, le=2**32 - 1)]
HashText = Annotated[StrictStr, Field(pattern=HASH_PATTERN)]
HashNumber = Annotated[StrictInt, Field(ge=-(2**63), le=2**64 - 1)]


class StateScope(BaseModel):
    """Which registered states are meant, beside tenant and model."""

    model_config = ConfigDict(extra="forbid")

    namespace: Tenant = "default"
    engine_family: Tenant
    semantic_type: Tenant


class MatchQuery(BaseModel):
    """A prompt, as exactly one of `tokens`, `tokens_b64` and `hashes`."""

    model_config = ConfigDict(extra="forbid")

    tenant: Tenant = Field(description="Whose blocks may match; the API key must cover it.")
    model: Text = Field(description="As the engines are registered.")
    revision: AnyText | None = Field(None, description="Only engines of this revision; null: any.")
    layout: AnyText | None = Field(None, description="Only engines of this layout; null: any.")
    instance_id: Text | None = Field(None, description="Only this engine instance.")
    lora: Text | None = Field(None, description="The adapter's name, as in the engines' events.")
    cache_salt: Text | None = Field(
        None,
        description="The salt that the request to the engine will have. Null: unsalted blocks, and "
        "those of the tenant's salt where it has exactly one at an engine of several tenants.",
    )
    extra_keys: (
        Annotated[list[list[Any] | None], Field(max_length=MAX_HASHES, fail_fast=True)] | None
    ) = Field(
        None,
        description="For each whole block what makes it differ beyond its tokens, as the engine's "
        "events have it: multimodal ids. Only blocks of that size can match. "
        "All entries of a request have at most 32,768 values, where a list or map counts for two.",
    )
    tokens: Annotated[list[Token], Field(max_length=MAX_QUERY_TOKENS, fail_fast=True)] | None = None
    tokens_b64: (
        Annotated[StrictStr, Field(max_length=MAX_B64_CHARS, pattern=B64_PATTERN)] | None
    ) = Field(None, description="The token ids as little-endian u32, in base64.")
    hashes: (
        Annotated[list[HashNumber | HashText], Field(max_length=MAX_HASHES, fail_fast=True)] | None
    ) = Field(
        None,
        description="The engines' own hashes of the prompt's blocks, from the first one: integers, "
        "signed or not, or the hash in hexadecimal. Adapter and salt are in them.",
    )
    block_tokens: Annotated[StrictInt, Field(ge=1, le=MAX_BLOCK_TOKENS)] | None = Field(
        None, description="With `hashes`: only blocks of so many tokens."
    )
    states: StateScope | None = Field(
        None,
        description="With tokens: registered states of this scope are looked for as well, to the "
        "exact token. What is compatible, a lookup says.",
    )

    @model_validator(mode="after")
    def _one_prompt(self) -> Self:
        given = (self.tokens, self.tokens_b64, self.hashes)
        if sum(each is not None for each in given) != 1:
            raise ValueError("one of tokens, tokens_b64 and hashes")
        if self.hashes is not None and self.states is not None:
            raise ValueError("states only with tokens")
        return self


class MatchQueries(BaseModel):
    """Queries that are answered together: at most 1,000,000 tokens in all, and 65,536 hashes and
    entries of `extra_keys`, where a hash in hexadecimal counts for two.
    """

    model_config = ConfigDict(extra="forbid")

    queries: Annotated[list[MatchQuery], Field(min_length=1, max_length=MAX_QUERIES)]


class TierTokensView(BaseModel):
    """Usable tokens: from this tier alone, and from it together with every nearer one."""

    only: int
    cumulative: int


class CandidateView(BaseModel):
    """A location that has a usable prefix, and what is known of its freshness."""

    source: Literal["engine"] = Field(description="Learnt from the engine's own events.")
    instance_id: str
    dp_rank: int
    node: str | None
    matched_tokens: int = Field(description="The largest boundary that its tiers together allow.")
    block_tokens: int
    tiers: dict[Tier, TierTokensView] = Field(description="From the nearest tier to the farthest.")
    cache_salt: str | None = Field(description="The salt of the matched blocks.")
    state: ViewState
    epoch: int = Field(description="One more whenever the engine's process began anew.")
    last_sequence: int | None
    lag_us: int | None = Field(
        description="Our clock minus the publisher's when its last frame came; below 0 where its "
        "clock is ahead; null where it does not say."
    )
    age_us: int | None = Field(description="Since the last frame.")
    gap: bool = Field(description="Frames are missing: it may hold more than is known.")


class StateView(BaseModel):
    """A registered state that shares a usable extent with the prompt."""

    source: Literal["state"] = Field(description="Registered.")
    state_id: UUID
    entry_id: str
    generation: int
    tier: str
    locator: str
    worker: str | None = Field(description="The worker that holds it, where the locator names one.")
    matched_tokens: int
    classification: Literal["exact", "prefix", "partial"]
    learnt: Literal["registration"] = Field(
        description="Where it was learnt: from whoever registered it, not from events."
    )
    registered_at: datetime = Field(description="When it was registered last.")
    age_us: int = Field(description="Since then.")
    freshness: Literal["current", "loading", "behind"] = Field(
        description="Whether this process has all changes of registered states; else it may be "
        "deleted already."
    )


class StatesView(BaseModel):
    """Registered states, the longest first."""

    freshness: Literal["current", "loading", "behind"] = Field(
        description="Only `current` says that there are no others."
    )
    candidates: list[StateView] = Field(description="At most 64.")
    left_off: int = Field(description="At least so many were left off.")


class EnginesView(BaseModel):
    """The engines of the model that the tenant may see, by state."""

    asked: int
    live: int
    pending: int
    unknown: int
    stale: int


class MatchView(BaseModel):
    """One answer. `unknown` is not a miss: an engine that is not live may have the prompt."""

    result: Literal["hit", "miss", "unknown"] = Field(
        description="Of engines' blocks, and of registered states where the query asks for them."
    )
    reason: (
        Literal[
            "no_engine", "not_cached", "unknown_attention_kind",
            "engine_not_live", "too_many_spaces", "index_busy", "index_away",
            "states_not_current",
        ]
        | None
    ) = Field(description="Why it is no hit.")  # fmt: skip
    matched_tokens: int = Field(description="Of the best candidate, registered states included.")
    query_tokens: int | None = Field(description="Null for hashes.")
    candidates: list[CandidateView] = Field(description="The longest first.")
    left_off: int = Field(description="Candidates beyond the first 1,000.")
    engines: EnginesView


class MatchResults(BaseModel):
    """One answer for each query, in order."""

    results: list[MatchView]
    states: list[StatesView | None] | None = Field(
        None,
        description="For each query in order, null where it asked for none; absent if all did.",
    )
