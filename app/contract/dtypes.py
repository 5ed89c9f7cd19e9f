"""Element types and quantization schemes whose meaning is known, and how wide elements are.

A name that is not here is an unknown value: its state is not reusable and its bytes not counted.
"""

from types import MappingProxyType

_WIDTHS: dict[int, tuple[str, ...]] = {
    64: ("float64", "int64", "uint64"),
    32: ("float32", "fp32", "float", "int32", "uint32"),
    16: ("float16", "fp16", "half", "bfloat16", "bf16", "int16", "uint16"),
    8: (
        "float8", "fp8", "float8_e4m3", "float8_e4m3fn", "float8_e4m3fnuz", "float8_e5m2",
        "float8_e5m2fnuz", "float8_e8m0fnu", "fp8_e4m3", "fp8_e5m2", "int8", "uint8", "bool",
    ),
    6: ("float6_e2m3", "float6_e3m2"),
    4: ("int4", "uint4", "float4", "fp4", "float4_e2m1", "float4_e2m1fn"),
    2: ("int2", "uint2"),
    1: ("int1", "uint1"),
}  # fmt: skip

DTYPE_BITS = MappingProxyType({name: bits for bits, names in _WIDTHS.items() for name in names})

UNQUANTIZED = "none"
QUANTIZATION_SCHEMES = frozenset(
    {
        UNQUANTIZED, "fp8", "fp8_e4m3", "fp8_e5m2", "fp8_per_tensor", "fp8_per_token",
        "fp8_per_token_head", "fp8_ds_mla", "int8", "int8_per_tensor", "int8_per_token",
        "int8_per_channel", "int4", "int4_per_token", "int4_per_channel", "int2", "kivi", "fp4",
        "nvfp4", "mxfp4", "mxfp6", "mxfp8",
    }
)  # fmt: skip


def dtype_bits(dtype: str) -> int | None:
    """Bits an element takes; None when the type is not known. A "torch." prefix is no matter."""
    return DTYPE_BITS.get(dtype.removeprefix("torch."))
