"""The wire form of `/indexer`. Each body has one of two spellings, told by the model's name."""

from typing import Annotated, Literal

from pydantic import BaseModel, Field, RootModel

# Postgres text holds every character but U+0000.
NO_NUL = r"^[^\x00]*$"
Name = Annotated[str, Field(min_length=1, max_length=512, pattern=NO_NUL)]
Label = Annotated[str, Field(max_length=512, pattern=NO_NUL)]
Group = Annotated[str, Field(max_length=128, pattern=NO_NUL)]
Instance = (
    Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._:-]{0,127}$")]
    | Annotated[int, Field(ge=0, le=2**64 - 1)]
)
Kind = Annotated[
    str,
    Field(
        pattern="^([vV][lL][lL][mM]|[sS][gG][lL][aA][nN][gG]|[mM][oO][oO][nN][cC][aA][kK][eE]|"
        "[dD][yY][nN][aA][mM][oO])$"
    ),
]
BlockSize = Annotated[int, Field(ge=1, le=65_536)]
Rank = Annotated[int, Field(ge=0, le=65_535)]
Hashes = Annotated[list[Annotated[int, Field(ge=-(2**63), le=2**64 - 1)]], Field(max_length=65_536)]
WorkerStatus = Literal["failed", "pending", "active"]
Token = Annotated[int, Field(ge=0, le=2**32 - 1)]


class IndexerError(BaseModel):
    """Why a request was refused; `code` is one of this service's errors."""

    error: str
    code: str


class _Engines(BaseModel):
    model: Name | None = Field(
        None, description="The model, in one of three spellings, which must not differ."
    )
    modelname: Name | None = Field(None, description="The same.")
    model_name: Name | None = Field(
        None, description="The same; what has it is answered in its spelling."
    )
    tenant_id: Group | None = Field(
        None, description="Absent or `default`: the tenant of the API key."
    )
    routing_group: Group | None = Field(None, description="Engines of other groups stay apart.")
    additional_salt: Label | None = Field(
        None, description="Of a registration its revision; of a query: only such engines."
    )
    additionalsalt: Label | None = Field(None, description="The same; both must not differ.")
    lora_name: Label | None = None


class IndexerRegistration(_Engines):
    """An engine's publisher of events."""

    instance_id: Instance
    endpoint: Name
    replay_endpoint: Label | None = None
    type: Kind | None = Field(None, description="Whose events they are; vLLM if absent.")
    block_size: BlockSize
    dp_rank: Rank | None = None


class IndexerRemoval(_Engines):
    """A registration, by its instance and perhaps its rank."""

    instance_id: Instance
    dp_rank: Rank | None = None


class IndexerQueryBody(_Engines):
    """A prompt. With a packed body the same fields but `token_ids` stand in the URL."""

    instance_id: Instance | None = None
    block_size: BlockSize | None = None
    cache_salt: Label | None = None
    lora_id: Annotated[int, Field(ge=-(2**63), le=2**63 - 1)] | None = None
    token_ids: Annotated[list[Token], Field(max_length=1_000_000)]


class IndexerHashQuery(_Engines):
    """A prompt by the engine's hashes: `seq_hashes` or `block_hash` by the RFC, `block_hashes`."""

    instance_id: Instance | None = None
    block_size: BlockSize | None = None
    cache_salt: Label | None = Field(None, description="It is in the hashes.")
    seq_hashes: Hashes | None = None
    block_hash: Hashes | None = None
    block_hashes: Hashes | None = None


class IndexerWorkersQuery(BaseModel):
    """Which engines are listed; all without it."""

    model: Name | None = Field(
        None, description="Only this model's, in one of three spellings, which must not differ."
    )
    modelname: Name | None = Field(None, description="The same.")
    model_name: Name | None = Field(None, description="The same.")
    routing_group: Group | None = Field(None, description="Only those of this group.")


# ---- answers


class IndexerDone(BaseModel):
    """To `model_name`."""

    status: Literal["ok"]


class IndexerRegistered(BaseModel):
    """To `model` and `modelname`."""

    status: Literal["registered successfully"]
    instance_id: str


class IndexerRemoved(BaseModel):
    """To `model` and `modelname`."""

    status: Literal["unregistered successfully"]
    removed_instances: list[str] = Field(description="`instance|tenant|rank` each.")


class IndexerReached(BaseModel):
    """Tokens of an instance, of its best rank; each tier alone."""

    longest_matched: int
    gpu: int = Field(alias="GPU")
    dp: dict[str, int] = Field(alias="DP", description="Tokens of each rank.")
    cpu: int = Field(alias="CPU")
    disk: int = Field(alias="DISK")


class IndexerInstances(RootModel[dict[str, dict[str, IndexerReached]]]):
    """To `model` and `modelname`: tenant -> instance."""


class IndexerReachedNear(BaseModel):
    """Tokens of an instance, of its best rank; each tier with all nearer ones."""

    longest_matched: int
    gpu: int
    dp: dict[str, int] = Field(description="Tokens of each rank.")
    cpu: int
    disk: int


class IndexerScores(BaseModel):
    """To `model_name`; scores and frequencies are of the GPU."""

    scores: dict[str, dict[str, int]] = Field(description="instance -> rank -> tokens")
    frequencies: list[int] = Field(description="How many have each block of the prompt.")
    instances: dict[str, IndexerReachedNear]


class IndexerListener(BaseModel):
    """One rank."""

    endpoint: str | None = Field(description="Null where its events are pushed.")
    status: WorkerStatus
    last_error: str = Field("", description="What is wrong, in the doctor's words; else absent.")


class IndexerWorker(BaseModel):
    """An instance of the engine."""

    instance_id: str | int
    source: Literal["zmq", "push"] = Field(description="How its events come.")
    status: WorkerStatus = Field(description="The worst of its ranks.")
    model_name: str
    routing_group: str
    block_size: int
    endpoints: dict[str, str | None]
    listeners: dict[str, IndexerListener]
