"""Bounded scalar types: every text and number of the contract is one of these.

No text may hold U+0000, which Postgres cannot store, nor a lone surrogate, which UTF-8 cannot
encode. The pattern below publishes the rule; `findings` enforces it without a regex per string.
"""

from typing import Annotated, Literal

from msgspec import Meta

from app.errors import ErrorCode

CONTRACT_VERSION: Literal["nexuskv.contract.v1"] = "nexuskv.contract.v1"

MAX_TOKENS = 1_000_000
MAX_U32 = 2**32 - 1
MAX_I63 = 2**63 - 1

_NO_NUL = {"pattern": "^[^\\u0000]*$"}

# Tenant and entry id make a unique index: 128 and 512 characters of four bytes stay below the
# 2,704 bytes that one Postgres B-tree row can hold.
ScopeName = Annotated[str, Meta(min_length=1, max_length=128, extra_json_schema=_NO_NUL)]
Name = Annotated[str, Meta(min_length=1, max_length=512, extra_json_schema=_NO_NUL)]
# May be empty: an empty value is accepted and means "unknown" or "none" to whoever reads it.
Label = Annotated[str, Meta(max_length=512, extra_json_schema=_NO_NUL)]
Locator = Annotated[str, Meta(min_length=1, max_length=2048, extra_json_schema=_NO_NUL)]
Detail = Annotated[str, Meta(max_length=2048, extra_json_schema=_NO_NUL)]

U32 = Annotated[int, Meta(ge=0, le=MAX_U32)]
U63 = Annotated[int, Meta(ge=0, le=MAX_I63)]
# A list, not a tuple: the index takes lists and uint32 buffers without copying.
Tokens = Annotated[list[U32], Meta(max_length=MAX_TOKENS)]

ContractVersion = Annotated[
    Literal["nexuskv.contract.v1"], Meta(extra={"code": ErrorCode.UNSUPPORTED_NEXUSKV_SCHEMA})
]
