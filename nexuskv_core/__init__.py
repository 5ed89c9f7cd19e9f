"""The prefix index: which stored token lists share how much with a query.

`IMPLEMENTATION` says which of two equal implementations runs. The plain-Python one is far slower
and stands in only where NEXUSKV_ALLOW_REFERENCE=1 allows it.
"""

import os
from typing import TYPE_CHECKING, Literal

from nexuskv_core.block_reference import Progress
from nexuskv_core.rules import (
    CLASS_EXACT,
    CLASS_PARTIAL,
    CLASS_PREFIX,
    RULE_CHECKPOINT,
    RULE_EXACT_ONLY,
    RULE_PREFIX_CLOSED,
)

IMPLEMENTATION: Literal["compiled", "reference"]

if TYPE_CHECKING:
    from nexuskv_core._blocks import BlockIndex, BusyError, IndexFullError, chain
    from nexuskv_core._frames import frame_check, make_writable, write_frame
    from nexuskv_core._index import MatchSet, PrefixIndex, siphash_128
    from nexuskv_core._plans import best_sources
    from nexuskv_core._scan import TokenText, msgpack_batch, msgpack_u32, msgpack_u64
else:
    try:
        from nexuskv_core._blocks import BlockIndex, BusyError, IndexFullError, chain
        from nexuskv_core._frames import frame_check, make_writable, write_frame
        from nexuskv_core._index import MatchSet, PrefixIndex, siphash_128
        from nexuskv_core._plans import best_sources
        from nexuskv_core._scan import TokenText, msgpack_batch, msgpack_u32, msgpack_u64

        IMPLEMENTATION = "compiled"
    except ImportError as missing:
        if os.environ.get("NEXUSKV_ALLOW_REFERENCE") != "1":
            raise ImportError(
                "the compiled nexuskv_core cannot be imported "
                f"({missing}). Build it with `make setup`, or with "
                "`pip install --no-deps -e .` where a C compiler is present; to run the slow "
                "plain-Python index instead, set NEXUSKV_ALLOW_REFERENCE=1."
            ) from missing
        from nexuskv_core.block_reference import BlockIndex, BusyError, IndexFullError
        from nexuskv_core.plan_reference import best_sources
        from nexuskv_core.reference import (
            MatchSet,
            PrefixIndex,
            TokenText,
            chain,
            frame_check,
            make_writable,
            msgpack_batch,
            msgpack_u32,
            msgpack_u64,
            siphash_128,
            write_frame,
        )

        IMPLEMENTATION = "reference"

__all__ = [
    "CLASS_EXACT",
    "CLASS_PARTIAL",
    "CLASS_PREFIX",
    "IMPLEMENTATION",
    "RULE_CHECKPOINT",
    "RULE_EXACT_ONLY",
    "RULE_PREFIX_CLOSED",
    "BlockIndex",
    "BusyError",
    "IndexFullError",
    "MatchSet",
    "PrefixIndex",
    "Progress",
    "TokenText",
    "best_sources",
    "chain",
    "frame_check",
    "make_writable",
    "msgpack_batch",
    "msgpack_u32",
    "msgpack_u64",
    "siphash_128",
    "write_frame",
]
