"""How many bytes a state has, from what its descriptor says; never a guess.

A shape dimension is one of
- a number: `"128"`;
- `tokens`: the tokens asked for;
- `block_tokens`, `page_tokens`: the layout's; `blocks`, `pages`: as many as hold the tokens;
- any other name (`layers`, `heads`, `head_dim`, ...): the integer that `layout_metadata` holds
  under that name.

Shapes count logical elements. Where the quantization scheme is not `none`, key, value and latent
elements take `quantization.bits`; scales count only where they are tensors of their own.
"""

import re

from app.contract.descriptor import AttentionStateDescriptor, TensorSpec
from app.contract.dtypes import QUANTIZATION_SCHEMES, UNQUANTIZED, dtype_bits
from app.contract.enums import TensorRole
from app.contract.limits import MAX_I63

_QUANTIZED_ROLES = frozenset({TensorRole.KEY, TensorRole.VALUE, TensorRole.LATENT})
_NUMBER = re.compile(r"[0-9]{1,19}", re.ASCII)
_MAX_ELEMENT_BITS = 64


def payload_bytes(descriptor: AttentionStateDescriptor, tokens: int) -> int | None:
    """Bytes of `tokens` tokens of the state, each tensor rounded up to whole bytes.

    None when any part is not known, is not positive, or the sum is beyond 2^63-1.
    """
    if tokens < 1 or not descriptor.tensor_specs:
        return None
    total = 0
    for spec in descriptor.tensor_specs:
        bits = _element_bits(descriptor, spec)
        elements = _elements(descriptor, spec, tokens)
        if bits is None or elements is None:
            return None
        total += -(-elements * bits // 8)
    return total if total <= MAX_I63 else None


def _element_bits(descriptor: AttentionStateDescriptor, spec: TensorSpec) -> int | None:
    quantization = descriptor.quantization
    if quantization.scheme == UNQUANTIZED or spec.role not in _QUANTIZED_ROLES:
        return dtype_bits(spec.dtype)
    known = quantization.scheme in QUANTIZATION_SCHEMES
    return quantization.bits if known and 1 <= quantization.bits <= _MAX_ELEMENT_BITS else None


def _elements(descriptor: AttentionStateDescriptor, spec: TensorSpec, tokens: int) -> int | None:
    product = 1
    for dimension in spec.shape:
        extent = _extent(descriptor, dimension, tokens)
        if extent is None or extent < 1:
            return None
        product *= extent
        if product > MAX_I63:
            return None
    return product


def _extent(descriptor: AttentionStateDescriptor, dimension: str, tokens: int) -> int | None:
    if _NUMBER.fullmatch(dimension):
        return int(dimension)
    layout = descriptor.layout
    from_layout = {
        "tokens": tokens,
        "block_tokens": layout.block_tokens,
        "page_tokens": layout.page_tokens,
        "blocks": _units(tokens, layout.block_tokens),
        "pages": _units(tokens, layout.page_tokens),
    }
    if dimension in from_layout:
        return from_layout[dimension]
    named = descriptor.layout_metadata.get(dimension, "")
    return int(named) if _NUMBER.fullmatch(named) else None


def _units(tokens: int, unit_tokens: int) -> int | None:
    return -(-tokens // unit_tokens) if unit_tokens > 0 else None
