"""The bodies that replay sends and the parts of the answers that it reads.

What it registers: one state a request, holding the request's whole blocks, with block granularity
and the `partial` capability, so that a later request finds any leading run of its blocks. The
entry id is a hash of the scope and the chain of ids: the same prefix registers the same entry, byte
for byte, which the service takes as a repetition. Evidence is fixed, save for the fingerprint,
which is a function of the tokens alone, so that it agrees wherever query and entry are equal.
"""

import hashlib
from dataclasses import dataclass

import msgspec

from app.cli.replay_tokens import Prompt
from app.cli.trace_format import TraceRequest

BRIDGE_SCHEMA = "locus.nexuskv-bridge.v1"
CONTRACT_SCHEMA = "nexuskv.contract.v1"
WORKER = "replay"

MODEL_IDENTITY = {
    "model_revision": "replay-1",
    "adapter_revision": None,
    "execution_profile": "default",
}
INPUT_IDENTITY = {
    "tokenizer": {"kind": "tokenizer", "revision": "1", "fingerprint": "replay-tokenizer-1"},
    "template": {"kind": "template", "revision": "1", "fingerprint": "replay-template-1"},
    "multimodal_preprocessing": None,
}


@dataclass(frozen=True, slots=True)
class ReplayScope:
    """Where the run's states live; `namespace` keeps one run from finding another's."""

    tenant: str
    namespace: str
    model: str
    engine_family: str
    semantic_type: str
    block_tokens: int


class _Extent(msgspec.Struct):
    units: int


class _EntryIdentity(msgspec.Struct):
    entry_id: str


class _Location(msgspec.Struct):
    tier: str
    locator: str


class _Entry(msgspec.Struct):
    identity: _EntryIdentity
    location: _Location


class _Compatibility(msgspec.Struct):
    reusable: bool
    fallback_to_recompute: bool


class _Validation(msgspec.Struct):
    source_handle: str


class Match(msgspec.Struct):
    """What a hit says, as far as replay uses it."""

    matched_extent: _Extent
    entry: _Entry
    compatibility: _Compatibility
    validation: _Validation

    @property
    def usable_tokens(self) -> int:
        """The tokens that a client would skip: 0 where the service advises against the reuse."""
        verdict = self.compatibility
        if not verdict.reusable or verdict.fallback_to_recompute:
            return 0
        return self.matched_extent.units


class LookupAnswer(msgspec.Struct):
    """A 200 of the lookup; None is a miss."""

    match_result: Match | None


def lookup_body(scope: ReplayScope, prompt: Prompt) -> bytes:
    return msgspec.json.encode(
        {
            "schema_version": BRIDGE_SCHEMA,
            "nexuskv_schema_version": CONTRACT_SCHEMA,
            "identity": _identity(scope, prompt),
            "locus_model_identity": MODEL_IDENTITY,
            "locus_input_semantic_identity": INPUT_IDENTITY,
            "input_fingerprint": prompt.fingerprint,
        }
    )


def estimate_body(match: Match) -> bytes:
    return msgspec.json.encode(
        {
            "schema_version": BRIDGE_SCHEMA,
            "source_state": match.entry.identity.entry_id,
            "source_handle": match.validation.source_handle,
            "source_locator": match.entry.location.locator,
            "source_tier": match.entry.location.tier,
            "target_id": "replay-target",
            "target_engine_id": "replay-engine",
            "target_engine_generation": 1,
            "target_residency": WORKER,
        }
    )


def registration_body(scope: ReplayScope, request: TraceRequest, stored: Prompt) -> bytes:
    """One entry; `stored` holds the request's whole blocks."""
    key = {**_identity(scope, stored), "block_id": None, "page_id": None}
    state_id = entry_id(scope, request.hash_ids[: stored.token_count // scope.block_tokens])
    entry = {
        "identity": {
            "key": key,
            "entry_id": state_id,
            "version": {"generation": 1, "lineage": "replay"},
        },
        "descriptor": _descriptor(scope),
        "location": {"tier": "host_dram", "locator": f"node://{WORKER}/state/{state_id}"},
        "policy_hint": {
            "reusable": True,
            "admission_hint": "replay",
            "eviction_hint": "retain",
        },
    }
    validation = {
        "model_identity": MODEL_IDENTITY,
        "input_semantic_identity": INPUT_IDENTITY,
        "input_fingerprint": stored.fingerprint,
    }
    element = {"reuse_key": {"identity": key}, "entry": entry, "validation": validation}
    return msgspec.json.encode({"entries": [element]})


def entry_id(scope: ReplayScope, hash_ids: tuple[int, ...]) -> str:
    """Equal scopes and chains, equal id. A tenant's entry ids are one name space over all its
    namespaces and models, so the scope is part of what is hashed."""
    named = msgspec.json.encode([scope, hash_ids])
    return f"replay-{hashlib.blake2b(named, digest_size=16).hexdigest()}"


def _identity(scope: ReplayScope, prompt: Prompt) -> dict[str, object]:
    return {
        "tenant": scope.tenant,
        "namespace": scope.namespace,
        "model": scope.model,
        "engine_family": scope.engine_family,
        "semantic_type": scope.semantic_type,
        "tokens": msgspec.Raw(prompt.tokens_json),
    }


def _descriptor(scope: ReplayScope) -> dict[str, object]:
    # The shape of a 70B-class model with grouped queries: 80 layers, 8 key heads of 128.
    shape = ["80", "tokens", "8", "128"]
    return {
        "schema_version": CONTRACT_SCHEMA,
        "descriptor_id": f"replay-{scope.semantic_type}-block{scope.block_tokens}",
        "engine_family": scope.engine_family,
        "semantic_type": scope.semantic_type,
        "granularity": "block",
        "tensor_specs": [
            {"name": "k_cache", "role": "key", "dtype": "float16", "shape": shape},
            {"name": "v_cache", "role": "value", "dtype": "float16", "shape": shape},
        ],
        "quantization": {"scheme": "none", "bits": 16, "group_size": 0},
        "layout": {
            "layout": "paged",
            "page_tokens": scope.block_tokens,
            "block_tokens": scope.block_tokens,
            "packed": False,
        },
        "compatibility_flags": ["exact_reuse", "prefix_reuse", "block_reuse"],
        "transfer_paths": [
            {"backend": "baseline_transport", "capabilities": ["host_to_store", "store_to_host"]}
        ],
        "materialization": {
            "capabilities": ["full", "partial", "fallback_recompute"],
            "tier_kinds": ["host_dram"],
            "device_classes": [],
            "buffer_kinds": [],
        },
        "layout_metadata": {},
    }
