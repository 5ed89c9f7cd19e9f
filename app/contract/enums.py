"""The closed vocabularies of the contract. On the wire every value is lower case."""

from enum import StrEnum


class Word(StrEnum):
    """A member is its text, also where it is looked up: hashed as text, which costs no call."""

    __hash__ = str.__hash__


class EngineFamily(Word):
    """Whose memory layout a state has. `unknown` is in the contract but never registrable."""

    UNKNOWN = "unknown"
    SGLANG = "sglang"
    VLLM = "vllm"


class StateSemanticType(Word):
    """What the state means to attention; decides how it may be reused (`rules.REUSE_RULES`)."""

    MHA_KV = "mha_kv"
    GQA_KV = "gqa_kv"
    MQA_KV = "mqa_kv"
    MLA_STATE = "mla_state"
    DSA_STATE = "dsa_state"
    KDA_CHECKPOINT = "kda_checkpoint"
    CSA_STATE = "csa_state"
    HCA_SUMMARY = "hca_summary"
    DSPARK_SPARSE = "dspark_sparse"
    SPARSE_INDEXED_STATE = "sparse_indexed_state"
    MULTIMODAL_VISION = "multimodal_vision"
    AGENT_TOT_COW = "agent_tot_cow"
    GENERIC_CONTAINER = "generic_container"


class TensorRole(Word):
    KEY = "key"
    VALUE = "value"
    LATENT = "latent"
    POSITION = "position"
    AUXILIARY = "auxiliary"
    SCALE_TENSOR = "scale_tensor"


class Granularity(Word):
    """The unit an engine can take a state in."""

    TOKEN = "token"  # noqa: S105 - a unit, not a secret
    BLOCK = "block"
    PAGE = "page"
    SEGMENT = "segment"


class CompatibilityFlag(Word):
    EXACT_REUSE = "exact_reuse"
    PREFIX_REUSE = "prefix_reuse"
    PAGE_REUSE = "page_reuse"
    BLOCK_REUSE = "block_reuse"
    WARM_START = "warm_start"
    POST_EVICTION_RELOAD = "post_eviction_reload"


class DeviceClass(Word):
    CPU = "cpu"
    CUDA = "cuda"
    ROCM = "rocm"
    TPU = "tpu"
    METAL_MPS = "metal_mps"
    GAUDI = "gaudi"
    CAMBRICON = "cambricon"
    MUSA = "musa"
    BIREN = "biren"
    OTHER = "other"


class BufferKind(Word):
    DEVICE = "device"
    HOST_PINNED = "host_pinned"
    HOST_PAGEABLE = "host_pageable"
    REMOTE = "remote"
    FILE_BACKED = "file_backed"


class TransferBackend(Word):
    BASELINE_TRANSPORT = "baseline_transport"
    STAGED_COPY = "staged_copy"
    RDMA = "rdma"
    ZERO_COPY = "zero_copy"


class TransferCapability(Word):
    HOST_TO_DEVICE = "host_to_device"
    DEVICE_TO_HOST = "device_to_host"
    HOST_TO_STORE = "host_to_store"
    STORE_TO_HOST = "store_to_host"
    ASYNC = "async"
    ZERO_COPY_CANDIDATE = "zero_copy_candidate"


class TierKind(Word):
    DEVICE = "device"
    HOST_DRAM = "host_dram"
    LOCAL_SSD = "local_ssd"
    REMOTE_SHARED = "remote_shared"
    OBJECT_STORE = "object_store"


class MaterializationCapability(Word):
    FULL = "full"
    PARTIAL = "partial"
    PREFETCH = "prefetch"
    ASYNC_FETCH = "async_fetch"
    FALLBACK_RECOMPUTE = "fallback_recompute"


class MatchClassification(Word):
    """How an entry covers a query.

    exact: the query is the entry; prefix: the whole entry is covered and query tokens remain;
    partial: the query ends or diverges inside the entry.
    """

    EXACT = "exact"
    PREFIX = "prefix"
    PARTIAL = "partial"


class PlanDisposition(Word):
    FULL_REUSE = "full_reuse"
    PARTIAL_REUSE = "partial_reuse"
    RECOMPUTE = "recompute"


class PayloadOwnership(Word):
    OWNED = "owned"
    BORROWED = "borrowed"
    CACHED = "cached"
    EPHEMERAL = "ephemeral"


class Disposition(Word):
    """What execution is asked to do with a state, and what it finally did."""

    MATERIALIZE = "materialize"
    PREFETCH = "prefetch"
    STORE = "store"
    RECOMPUTE = "recompute"
    SKIP = "skip"


class ActionStatus(Word):
    SUCCEEDED = "succeeded"
    SKIPPED = "skipped"
    RECOMPUTED = "recomputed"
    FALLBACK = "fallback"
    REJECTED = "rejected"


class TransferStatus(Word):
    COMPLETED = "completed"
    REGISTERED = "registered"
    MISSING = "missing"
    FALLBACK = "fallback"
    REJECTED = "rejected"
    INITIATED = "initiated"
    IN_FLIGHT = "in_flight"
    CANCELLED = "cancelled"
    FAILED = "failed"


class FallbackReason(Word):
    UNSUPPORTED_CAPABILITY = "unsupported_capability"
    PREFERRED_BACKEND_UNAVAILABLE = "preferred_backend_unavailable"
    NO_TRANSFER_PATH = "no_transfer_path"
    LOOKUP_UNSUPPORTED = "lookup_unsupported"
    CACHE_MISS = "cache_miss"
    ENGINE_POLICY = "engine_policy"


class ExclusionReason(Word):
    """Why a candidate was not the answer; every excluded candidate is recorded with one."""

    EVIDENCE_MISSING = "evidence_missing"
    EVIDENCE_MISMATCH = "evidence_mismatch"
    FINGERPRINT_MISMATCH = "fingerprint_mismatch"
    NOT_REUSABLE = "not_reusable"
    UNKNOWN_VALUE = "unknown_value"
    MODEL_MISMATCH = "model_mismatch"
    PARALLEL_MISMATCH = "parallel_mismatch"
    LAYER_SCOPE_MISMATCH = "layer_scope_mismatch"
    POSITION_CONVENTION_MISMATCH = "position_convention_mismatch"
    CHECKPOINT_MISMATCH = "checkpoint_mismatch"
    BELOW_GRANULARITY = "below_granularity"
    SUPERSEDED = "superseded"
    # Its worker is silent, or no longer holds it.
    UNAVAILABLE = "unavailable"
    # The policy lets no backend read its tier.
    POLICY_DENIED = "policy_denied"
