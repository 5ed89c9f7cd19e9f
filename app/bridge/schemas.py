"""The published schema of `locus.nexuskv-bridge.v1`.

These models are what OpenAPI shows and the reference for what a body may hold. The hot path
decodes with `app.bridge.wire`; a test holds both to the same accept and reject set.
"""

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from app.contract.enums import StateSemanticType
from app.settings import MAX_QUERY_TOKENS

BRIDGE_SCHEMA = "locus.nexuskv-bridge.v1"
NEXUSKV_SCHEMA = "nexuskv.contract.v1"
MAX_SCOPE_CHARS = 128
MAX_TEXT_CHARS = 512
MAX_LOCATOR_CHARS = 2048
MAX_HANDLE_CHARS = 4096
U32_MAX = 2**32 - 1
I64_MAX = 2**63 - 1

# Postgres text cannot hold U+0000, and no identity has a use for it.
Text = Annotated[str, Field(min_length=1, max_length=MAX_TEXT_CHARS, pattern=r"^[^\x00]+$")]
ScopeText = Annotated[str, Field(min_length=1, max_length=MAX_SCOPE_CHARS, pattern=r"^[^\x00]+$")]
LongText = Annotated[str, Field(min_length=1, max_length=MAX_LOCATOR_CHARS, pattern=r"^[^\x00]+$")]
HandleText = Annotated[str, Field(min_length=1, max_length=MAX_HANDLE_CHARS, pattern=r"^[^\x00]+$")]
Locator = Annotated[
    LongText,
    Field(
        description="Where the state lies: `node://WORKER/state/PAYLOAD` when it is in the memory "
        "of a worker, whose bytes NexusKV can bring; anything else is the engine's own way.",
        examples=["node://node-a/state/system-prompt"],
    ),
]
Residency = Annotated[
    Text,
    Field(
        description="Where it is wanted: the name of the worker that has the sink.",
        examples=["node-b"],
    ),
]
SinkNamespace = Annotated[
    Text,
    Field(
        description="`nexuskv.worker-sink.v1`: `sink_value` is the id of a sink that `POST "
        "/v1/sinks` of the target's worker made, and the answer is physical evidence or a 503, "
        "never protocol. Any other one is the engine's own: nothing is moved, and the evidence is "
        "of the protocol.",
        examples=["nexuskv.worker-sink.v1", "example.sink.v1"],
    ),
]
SinkValue = Annotated[
    Text,
    Field(
        description="The sink's id, as its worker gave it.",
        examples=[
            "s4096.1.01a22a13697a73109484d4f8f65cea71.f5fa6772070971166b4a19a8",
        ],
    ),
]
Token = Annotated[int, Field(ge=0, le=U32_MAX)]
EngineGeneration = Annotated[int, Field(ge=1, le=I64_MAX)]


class _Wire(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)


class ComponentIdentity(_Wire):
    kind: Text
    revision: Text
    fingerprint: Text


class ModelIdentity(_Wire):
    model_revision: Text
    adapter_revision: Annotated[str, Field(max_length=512, pattern=r"^[^\x00]*$")] | None
    execution_profile: Text


class InputSemanticIdentity(_Wire):
    tokenizer: ComponentIdentity
    template: ComponentIdentity
    multimodal_preprocessing: ComponentIdentity | None


class QueryIdentity(_Wire):
    tenant: ScopeText
    namespace: ScopeText
    model: Text
    engine_family: Literal["sglang", "vllm"]
    # Published as the closed list it is; another one is a well-formed body that is not supported.
    semantic_type: Annotated[Text, Field(json_schema_extra={"enum": sorted(StateSemanticType)})]
    tokens: Annotated[list[Token], Field(max_length=MAX_QUERY_TOKENS)]


class LookupRequest(_Wire):
    """Is there reusable state for this input? Tokens are ids, first to last."""

    schema_version: Literal["locus.nexuskv-bridge.v1"]
    nexuskv_schema_version: Literal["nexuskv.contract.v1"]
    identity: QueryIdentity
    locus_model_identity: ModelIdentity
    locus_input_semantic_identity: InputSemanticIdentity
    input_fingerprint: Text


class EstimateRequest(_Wire):
    """What would it cost to bring the matched state to this target?"""

    schema_version: Literal["locus.nexuskv-bridge.v1"]
    source_state: Text
    source_handle: HandleText
    source_locator: Locator
    source_tier: Text
    target_id: Text
    target_engine_id: Text
    target_engine_generation: EngineGeneration
    target_residency: Residency


class MaterializeRequest(_Wire):
    """Bring it: consumes the option once, into the sink that the engine authorised."""

    schema_version: Literal["locus.nexuskv-bridge.v1"]
    option_id: Text
    option_handle: HandleText
    import_id: Text
    target_id: Text
    target_engine_id: Text
    target_engine_generation: EngineGeneration
    sink_namespace: SinkNamespace
    sink_value: SinkValue


class MatchedExtent(_Wire):
    units: Annotated[
        int, Field(ge=1, le=U32_MAX, description="Matched tokens, whatever the granularity.")
    ]
    granularity: Literal["token", "block", "page", "segment"]


class Compatibility(_Wire):
    reusable: bool
    fallback_to_recompute: bool
    reason: str


class MatchValidation(_Wire):
    model_identity: ModelIdentity
    input_semantic_identity: InputSemanticIdentity
    source_handle: HandleText


class MatchResult(_Wire):
    classification: Literal["exact", "prefix", "partial"]
    matched_extent: MatchedExtent
    entry: Annotated[
        dict[str, Any],
        Field(description="The registered CacheEntry; its key holds only the matched tokens."),
    ]
    compatibility: Compatibility
    validation: MatchValidation


class LookupResponse(_Wire):
    """`match_result` is null when nothing reusable was found."""

    schema_version: Literal["locus.nexuskv-bridge.v1"]
    nexuskv_schema_version: Literal["nexuskv.contract.v1"]
    match_result: MatchResult | None


class EstimateResponse(_Wire):
    schema_version: Literal["locus.nexuskv-bridge.v1"]
    option_id: Text
    option_handle: HandleText
    locality: Literal["local", "remote"]
    topology_path: str | None
    estimated_transfer_micros: Annotated[int, Field(ge=0, le=I64_MAX)]


class Receipt(_Wire):
    """What was proven, and by what. Who repeats the request gets the same one."""

    namespace: Annotated[
        Text,
        Field(
            description="`nexuskv.physical-transfer-receipt.v1` once a worker has verified every "
            "byte in the sink, `nexuskv.protocol-transfer-receipt.v1` where nothing was moved.",
            examples=["nexuskv.physical-transfer-receipt.v1"],
        ),
    ]
    value: Annotated[
        Text,
        Field(
            description="A physical one ends in the XXH3-128 checksum of the sink's bytes.",
            examples=[
                "receipt-01a229ba8c6c76d5b551765ed8658362:xxh3-128:284c9347ea63cdd467a60ff8af72593f"
            ],
        ),
    ]


class Evidence(_Wire):
    level: Literal["protocol", "physical"]
    physical_transfer_verified: bool
    execution_backend: Text
    transfer_session: Text
    sink_namespace: Text
    sink_value: Text
    import_id: Text


class MaterializeResponse(_Wire):
    """Physical evidence: `bytes_transferred` bytes lie in the sink, verified there. Protocol
    evidence moves none and says so: `bytes_transferred` 0, nothing verified."""

    schema_version: Literal["locus.nexuskv-bridge.v1"]
    bytes_transferred: Annotated[int, Field(ge=0, le=I64_MAX)]
    receipt: Receipt
    evidence: Evidence


class BridgeErrorBody(_Wire):
    code: Text
    message: Annotated[str, Field(min_length=1)]


class BridgeError(_Wire):
    """The one shape of every error on this wire."""

    schema_version: Literal["locus.nexuskv-bridge.v1"]
    error: BridgeErrorBody


class BridgeHealth(_Wire):
    status: Literal["ok"]
    schema_version: Literal["locus.nexuskv-bridge.v1"]
