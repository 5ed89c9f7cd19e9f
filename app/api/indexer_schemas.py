"""The wire form of `/indexer`. Each body has one of two spellings, told by the model's name."""

from typing import Annotated

from pydantic import BaseModel, Field

# Postgres text holds every character but U+0000.
NO_NUL = r"^[^\x00]*$"
Name = Annotated[str, Field(min_length=1, max_length=512, pattern=NO_NUL)]
Label = Annotated[str, Field(max_length=512, pattern=NO_NUL)]
Group = Annotated[str, Field(max_length=128, pattern=NO_NUL)]
Instance = (
    Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,127}$")]
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
Token = Annotated[int, Field(ge=0, le=2**32 - 1)]


class IndexerError(BaseModel):
    """Why a request was refused; `code` is one of this service's errors."""

    error: str
    code: str


class _Engines(BaseModel):
    tenant_id: Group | None = Field(
        None, description="Absent or `default`: the tenant of the API key."
    )
    routing_group: Group | None = Field(None, description="Engines of other groups stay apart.")
    additional_salt: Label | None = Field(None, description="Also `additionalsalt`.")
    lora_name: Label | None = None


class IndexerRegistration(_Engines):
    """An engine's publisher of events: `modelname` by the RFC, else `model_name`."""

    modelname: Name | None = None
    model_name: Name | None = None
    instance_id: Instance
    endpoint: Name
    replay_endpoint: Label | None = None
    type: Kind | None = Field(None, description="Whose events they are; vLLM if absent.")
    block_size: BlockSize
    dp_rank: Rank | None = None


class IndexerRemoval(_Engines):
    """A registration, by its instance and perhaps its rank."""

    modelname: Name | None = None
    model_name: Name | None = None
    instance_id: Instance
    dp_rank: Rank | None = None


class IndexerQueryBody(_Engines):
    """A prompt. With a packed body the same fields but `token_ids` stand in the URL."""

    model: Name | None = None
    model_name: Name | None = None
    instance_id: Instance | None = None
    block_size: BlockSize | None = None
    cache_salt: Label | None = None
    lora_id: Annotated[int, Field(ge=-(2**63), le=2**63 - 1)] | None = None
    token_ids: Annotated[list[Token], Field(max_length=1_000_000)]


class IndexerHashQuery(_Engines):
    """A prompt by the engine's hashes: `seq_hashes` or `block_hash` by the RFC, `block_hashes`."""

    model: Name | None = None
    model_name: Name | None = None
    instance_id: Instance | None = None
    block_size: BlockSize | None = None
    cache_salt: Label | None = Field(None, description="It is in the hashes.")
    seq_hashes: Hashes | None = None
    block_hash: Hashes | None = None
    block_hashes: Hashes | None = None
