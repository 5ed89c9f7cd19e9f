"""Both implementations behind one short way to add, for the tests of the index."""

import random
from array import array
from collections.abc import Sequence
from typing import Any

import nexuskv_core
from nexuskv_core import _index, reference

PREFIX_CLOSED = nexuskv_core.RULE_PREFIX_CLOSED
CHECKPOINT = nexuskv_core.RULE_CHECKPOINT
EXACT_ONLY = nexuskv_core.RULE_EXACT_ONLY
EXACT = nexuskv_core.CLASS_EXACT
PREFIX = nexuskv_core.CLASS_PREFIX
PARTIAL = nexuskv_core.CLASS_PARTIAL

KEY = bytes(range(16))
OTHER_KEY = bytes(range(1, 17))
IMPLEMENTATIONS = [_index, reference]
Index = _index.PrefixIndex | reference.PrefixIndex


def put(
    index: Any,
    tokens: Sequence[int] | memoryview | array,
    entry: int,
    *,
    rule: int = PREFIX_CLOSED,
    unit: int = 1,
    partial: bool = True,
    order: int = 0,
    key: bytes = KEY,
) -> None:
    index.add(key, tokens, entry, rule=rule, unit_tokens=unit, partial=partial, order=order)


def draw_tokens(seed: int, count: int, vocabulary: int = 1 << 17) -> list[int]:
    draw = random.Random(seed)
    return [draw.randrange(vocabulary) for _ in range(count)]
