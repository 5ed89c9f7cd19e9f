"""A registration of our own, and ways to walk and change decoded JSON."""

import copy
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from app.contract.evidence import Evidence, QueryEvidence
from app.contract.registration import Registration

SHARED = Path(__file__).resolve().parents[4] / "shared" / "contract"

Steps = tuple[str | int, ...]


def shared_document(name: str) -> Any:
    """A published contract file; skips the test where it is not at hand."""
    path = SHARED / name
    if not path.exists():
        pytest.skip(f"the published contract is not at hand ({name})")
    return json.loads(path.read_text())


def registration_document(**extra: Any) -> dict[str, Any]:
    """A whole registration, block-granular and paged; `extra` goes onto the entry."""
    key = {
        "tenant": "acme",
        "namespace": "chat",
        "model": "orca-7b",
        "engine_family": "vllm",
        "semantic_type": "gqa_kv",
        "tokens": [1, 5, 8, 4_294_967_295],
        "block_id": None,
        "page_id": 3,
    }
    descriptor = {
        "schema_version": "nexuskv.contract.v1",
        "descriptor_id": "vllm-gqa-block",
        "engine_family": "vllm",
        "semantic_type": "gqa_kv",
        "granularity": "block",
        "tensor_specs": [
            {"name": "k", "role": "key", "dtype": "bfloat16", "shape": ["layers", "tokens", "128"]},
            {"name": "v", "role": "value", "dtype": "bfloat16", "shape": ["layers", "tokens"]},
        ],
        "quantization": {"scheme": "none", "bits": 16, "group_size": -1},
        "layout": {"layout": "paged", "page_tokens": 0, "block_tokens": 16, "packed": False},
        "compatibility_flags": ["prefix_reuse", "block_reuse"],
        "transfer_paths": [{"backend": "rdma", "capabilities": ["async"]}],
        "materialization": {
            "capabilities": ["full", "partial"],
            "tier_kinds": ["device"],
            "device_classes": ["cuda"],
            "buffer_kinds": ["host_pinned"],
        },
        "layout_metadata": {"layers": "32", "größe": "µ/~"},
    }
    return {
        "reuse_key": {"identity": copy.deepcopy(key)},
        "entry": {
            "identity": {
                "key": key,
                "entry_id": "state-9",
                "version": {"generation": 4_294_967_295, "lineage": "run-3"},
            },
            "descriptor": descriptor,
            "location": {"tier": "local_ssd", "locator": "node://n1/state/p9"},
            "policy_hint": {"reusable": True, "admission_hint": "", "eviction_hint": "retain"},
            **extra,
        },
        "validation": {
            "model_identity": {
                "model_revision": "2026-08",
                "adapter_revision": "lora-2",
                "execution_profile": "bf16",
            },
            "input_semantic_identity": {
                "tokenizer": {"kind": "tokenizer", "revision": "2", "fingerprint": "t-2"},
                "template": {"kind": "template", "revision": "1", "fingerprint": "c-1"},
                "multimodal_preprocessing": {"kind": "vit", "revision": "7", "fingerprint": "m-7"},
            },
            "input_fingerprint": "fnv:1234",
        },
    }


# Every optional field at once, on a recurrent state.
EXTENSIONS: dict[str, Any] = {
    "model_revision": "2026-08",
    "adapter_revision": "lora-2",
    "parallel": {"tp": {"rank": 1, "size": 2}, "pp": {"rank": 0, "size": 4}},
    "layer_scope": "0-15,31",
    "position_convention": "relative",
    "checkpoint": {"lineage": "chain-1", "step": 64, "parent": "chain-0"},
}


def with_type(document: dict[str, Any], semantic_type: str) -> dict[str, Any]:
    """The registration as another kind of state, in all three places that name it."""
    document = copy.deepcopy(document)
    entry = document["entry"]
    for holder in (document["reuse_key"]["identity"], entry["identity"]["key"]):
        holder["semantic_type"] = semantic_type
    entry["descriptor"]["semantic_type"] = semantic_type
    return document


def recurrent_document() -> dict[str, Any]:
    """A whole registration that uses every optional field."""
    return with_type(registration_document(**copy.deepcopy(EXTENSIONS)), "kda_checkpoint")


def query_for(registration: Registration, **scope: Any) -> QueryEvidence:
    """The query that the state was computed for."""
    evidence = registration.validation
    assert isinstance(evidence, Evidence)
    return QueryEvidence(
        evidence.model_identity,
        evidence.input_semantic_identity,
        evidence.input_fingerprint,
        **scope,
    )


def places(value: Any, steps: Steps = ()) -> Iterator[tuple[Steps, Any]]:
    """Every value of decoded JSON with the steps to it, the root first."""
    yield steps, value
    items = value.items() if isinstance(value, dict) else ()
    items = enumerate(value) if isinstance(value, list) else items
    for step, item in items:
        yield from places(item, (*steps, step))


def pointer(steps: Steps) -> str:
    return "".join(f"/{str(s).replace('~', '~0').replace('/', '~1')}" for s in steps)


def replaced(document: Any, steps: Steps, value: Any) -> Any:
    """A copy with another value at `steps`."""
    changed = copy.deepcopy(document)
    holder = changed
    for step in steps[:-1]:
        holder = holder[step]
    holder[steps[-1]] = value
    return changed


def dropped(document: Any, steps: Steps) -> Any:
    """A copy without the field at `steps`."""
    changed = copy.deepcopy(document)
    holder = changed
    for step in steps[:-1]:
        holder = holder[step]
    del holder[steps[-1]]
    return changed
