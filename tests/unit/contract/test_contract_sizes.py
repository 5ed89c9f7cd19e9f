"""Bytes worked out by hand from descriptors, and the descriptors that do not say."""

from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from app.contract.descriptor import AttentionStateDescriptor
from app.contract.sizes import payload_bytes


def descriptor(
    *tensors: tuple[str, str, list[str]],
    scheme: str = "none",
    bits: int = 16,
    block_tokens: int = 16,
    **metadata: str,
) -> AttentionStateDescriptor:
    """A descriptor of (role, dtype, shape) tensors."""
    document: dict[str, Any] = {
        "schema_version": "nexuskv.contract.v1",
        "descriptor_id": "d",
        "engine_family": "vllm",
        "semantic_type": "gqa_kv",
        "granularity": "block",
        "tensor_specs": [
            {"name": f"t{i}", "role": role, "dtype": dtype, "shape": shape}
            for i, (role, dtype, shape) in enumerate(tensors)
        ],
        "quantization": {"scheme": scheme, "bits": bits, "group_size": 0},
        "layout": {
            "layout": "paged",
            "page_tokens": 64,
            "block_tokens": block_tokens,
            "packed": False,
        },
        "compatibility_flags": [],
        "transfer_paths": [],
        "materialization": {
            "capabilities": [],
            "tier_kinds": [],
            "device_classes": [],
            "buffer_kinds": [],
        },
        "layout_metadata": metadata,
    }
    return msgspec.convert(document, AttentionStateDescriptor)


FULL = ["32", "tokens", "8", "128"]
NAMED = ["layers", "tokens", "heads", "head_dim"]


@pytest.mark.parametrize(
    ("state", "tokens", "expected"),
    [
        # 32 layers, 8 heads of 128, 16 bits, keys and values: 131,072 bytes a token.
        (descriptor(("key", "float16", FULL), ("value", "bfloat16", FULL)), 1, 131_072),
        (descriptor(("key", "float16", FULL), ("value", "float16", FULL)), 100, 13_107_200),
        (descriptor(("key", "float32", FULL)), 2, 262_144),
        (descriptor(("key", "float8_e4m3fn", FULL)), 2, 65_536),
        (
            descriptor(("key", "float16", NAMED), layers="32", heads="8", head_dim="128"),
            3,
            32 * 3 * 8 * 128 * 2,
        ),
        # Whole blocks and pages are moved, whatever part of the last one is used.
        (descriptor(("key", "float16", ["blocks", "block_tokens", "4"])), 17, 2 * 16 * 4 * 2),
        (descriptor(("key", "float16", ["pages", "page_tokens", "4"])), 65, 2 * 64 * 4 * 2),
        # A recurrent state does not grow with its tokens.
        (descriptor(("latent", "float32", ["4", "256"])), 1, 4096),
        (descriptor(("latent", "float32", ["4", "256"])), 9999, 4096),
        # Quantized keys take the scheme's bits; scales are tensors with their own type.
        (descriptor(("key", "float16", ["tokens", "8"]), scheme="int4", bits=4), 3, 12),
        (
            descriptor(
                ("key", "uint8", ["tokens", "8"]),
                ("scale_tensor", "float16", ["tokens"]),
                scheme="int8",
                bits=8,
            ),
            3,
            24 + 6,
        ),
        # Half a byte is rounded up, tensor by tensor.
        (descriptor(("key", "int4", ["tokens"]), ("value", "int4", ["tokens"])), 3, 4),
        (descriptor(("key", "float16", [])), 5, 2),
        # A number is itself, whatever metadata calls itself by it.
        (descriptor(("key", "int8", ["tokens", "8"]), **{"8": "9"}), 1, 8),
    ],
)
def test_bytes_follow_from_the_shapes(
    state: AttentionStateDescriptor, tokens: int, expected: int
) -> None:
    assert payload_bytes(state, tokens) == expected


@pytest.mark.parametrize(
    "state",
    [
        descriptor(),
        descriptor(("key", "float16", NAMED)),
        descriptor(("key", "float16", NAMED), layers="32", heads="8", head_dim="wide"),
        descriptor(("key", "float16", NAMED), layers="32", heads="8", head_dim="12.5"),
        descriptor(("key", "float17", FULL)),
        descriptor(("key", "", FULL)),
        descriptor(("key", "float16", FULL), ("value", "?", FULL)),
        descriptor(("key", "float16", FULL), scheme="squeeze-9", bits=4),
        descriptor(("key", "float16", FULL), scheme="int4", bits=0),
        descriptor(("key", "float16", FULL), scheme="int4", bits=65),
        descriptor(("key", "float16", ["tokens", "0"])),
        descriptor(("key", "float16", ["tokens", "-4"])),
        descriptor(("key", "float16", ["tokens", "1_0"])),
        descriptor(("key", "float16", ["tokens", "٣"])),
        descriptor(("key", "float16", ["blocks"]), block_tokens=0),
        descriptor(("key", "float16", ["block_tokens"]), block_tokens=0),
        descriptor(("key", "float16", ["9223372036854775807"])),
        descriptor(("key", "float16", ["9" * 400])),
        descriptor(("key", "float16", ["4294967295"] * 16)),
    ],
)
def test_what_a_descriptor_does_not_say_is_not_guessed(state: AttentionStateDescriptor) -> None:
    assert payload_bytes(state, 4) is None


@pytest.mark.parametrize("tokens", [0, -1])
def test_no_tokens_have_no_bytes_to_speak_of(tokens: int) -> None:
    assert payload_bytes(descriptor(("key", "float16", FULL)), tokens) is None


@settings(deadline=None)
@given(
    st.lists(st.integers(1, 2**20), max_size=4),
    st.integers(1, 10**6),
    st.sampled_from([("float64", 64), ("float16", 16), ("int4", 4), ("int1", 1)]),
)
def test_bytes_are_elements_times_width(
    dims: list[int], tokens: int, element: tuple[str, int]
) -> None:
    dtype, bits = element
    state = descriptor(("key", dtype, ["tokens", *map(str, dims)]))
    elements = tokens
    for dim in dims:
        elements *= dim
    exact = -(-elements * bits // 8)
    expected = exact if elements < 2**63 and exact < 2**63 else None
    assert payload_bytes(state, tokens) == expected
