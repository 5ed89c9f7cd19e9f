"""The wire form of registered states."""

from datetime import datetime
from typing import Annotated, Any, Literal
from uuid import UUID

from pydantic import BaseModel, ConfigDict, Field, StringConstraints

from app.contract.enums import EngineFamily, StateSemanticType, TierKind
from app.index.registry import RegisterStatus
from app.paging import DEFAULT_PAGE_ITEMS, Cursor, PageSize
from app.problem import Problem, ProblemField
from app.settings import MAX_BATCH_ENTRIES

# Postgres text holds every character but U+0000.
FilterText = Annotated[str, StringConstraints(min_length=1, max_length=512, pattern=r"^[^\x00]*$")]


class StateBatch(BaseModel):
    """States to register. An element is one of the bridge fixture's `entries[]`.

    Where an identity names no tenant or no namespace, the policy's default applies.
    """

    model_config = ConfigDict(extra="forbid")

    entries: Annotated[
        list[dict[str, Any]],
        Field(
            min_length=1,
            max_length=MAX_BATCH_ENTRIES,
            description="Each `{reuse_key, entry, validation}` of nexuskv.contract.v1; see "
            "`openapi/state_contract.v1.json`. A payload in the memory of a worker has the "
            "`location.locator` `node://WORKER/state/PAYLOAD`.",
        ),
    ]


class ItemProblem(BaseModel):
    """Why one entry was refused."""

    code: str
    detail: str
    errors: list[ProblemField]


class RegisterResult(BaseModel):
    """What became of one entry. `status` is the HTTP status it would have had alone."""

    index: int = Field(description="Position in `entries`, from 0.")
    status: int
    result: RegisterStatus | Literal["rejected"]
    tenant: str | None
    entry_id: str | None
    state_id: UUID | None
    generation: int | None = Field(description="The stored generation, also on a conflict.")
    error: ItemProblem | None


class RegisterResults(BaseModel):
    """One result for each entry, in order."""

    results: list[RegisterResult]


class RegisterProblem(Problem):
    """Every entry was refused with the same status; `results` says why, one by one."""

    results: list[RegisterResult]


class StateQuery(BaseModel):
    """Filters of the list; all given ones must hold."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    tenant: FilterText | None = Field(None, description="Only this tenant; the key must have it.")
    namespace: FilterText | None = Field(None, description="Only this namespace.")
    model: FilterText | None = Field(None, description="Only this model.")
    engine_family: EngineFamily | None = Field(None, description="Only this engine's states.")
    semantic_type: StateSemanticType | None = Field(None, description="Only this kind of state.")
    tier: TierKind | None = Field(None, description="Only states in this tier.")
    entry_id: FilterText | None = Field(None, description="Only this entry id.")
    page_size: PageSize = DEFAULT_PAGE_ITEMS
    cursor: Cursor = None

    def filters(self) -> dict[str, object]:
        """What a cursor is bound to: everything that chooses rows, and nothing else."""
        return self.model_dump(exclude={"page_size", "cursor"}, exclude_none=True)


class StateView(BaseModel):
    """A live state, without its tokens and its descriptor."""

    state_id: UUID
    tenant: str
    entry_id: str
    generation: int
    lineage: str
    namespace: str
    model: str
    engine_family: str
    semantic_type: str
    tier: str
    locator: str = Field(
        description="`node://WORKER/state/PAYLOAD` for a payload in the memory of a worker.",
        examples=["node://node-a/state/system-prompt"],
    )
    token_count: int
    created_at: datetime
    updated_at: datetime


class StateDetail(StateView):
    """A live state as registered."""

    registration: dict[str, Any] = Field(
        description="The registered `{reuse_key, entry, validation}`, its tokens included."
    )


class StatePage(BaseModel):
    items: list[StateView]
    next_cursor: str | None = Field(description="Null on the last page.")
