"""Bodies of `POST /v1/match`, decoded once.

The fast path is msgspec with the constraints of `app.api.match_schemas`, and tokens are read by the
core's own scanner. Whatever it refuses is judged by the pydantic model, which names the fault.
"""

import binascii
from array import array
from collections.abc import Sequence
from contextlib import suppress
from functools import lru_cache
from typing import Annotated, Any, Final, NamedTuple, TypeVar, cast
from urllib.parse import parse_qsl

import msgspec

from app.api import match_schemas as schemas
from app.api.match_refusals import field_error, judged, too_large
from app.engines.fields import MAX_HASHES, Fields, WireError, engine_hash
from app.engines.plans import Filter
from app.engines.search import Tokens
from app.engines.spaces import Extra, name_of
from app.errors import ErrorCode
from app.index.registered import ScopeIdentity
from app.settings import MAX_QUERY_TOKENS
from nexuskv_core import TokenText

PACKED_TYPE: Final = b"application/octet-stream"
_TOKEN_BYTES: Final = 4
_URLS: Final = 1_024
_MAX_QUERY_CHARS: Final = 8_192
_NULL: Final = msgspec.Raw(b"null")
_T = TypeVar("_T")

Tenant = Annotated[
    str, msgspec.Meta(min_length=1, max_length=schemas.MAX_SCOPE_CHARS, pattern=r"^[^\x00]+$")
]
Text = Annotated[
    str, msgspec.Meta(min_length=1, max_length=schemas.MAX_TEXT_CHARS, pattern=r"^[^\x00]+$")
]
AnyText = Annotated[str, msgspec.Meta(max_length=schemas.MAX_TEXT_CHARS, pattern=r"^[^\x00]*$")]
BlockTokens = Annotated[int, msgspec.Meta(ge=1, le=schemas.MAX_BLOCK_TOKENS)]


class ScopeBody(msgspec.Struct, frozen=True, forbid_unknown_fields=True, gc=False):
    engine_family: Tenant
    semantic_type: Tenant
    namespace: Tenant = "default"


class QueryBody(msgspec.Struct, frozen=True, forbid_unknown_fields=True, gc=False):
    tenant: Tenant
    model: Text
    revision: AnyText | None = None
    layout: AnyText | None = None
    instance_id: Text | None = None
    lora: Text | None = None
    cache_salt: Text | None = None
    extra_keys: msgspec.Raw = _NULL
    tokens: msgspec.Raw = _NULL
    tokens_b64: Annotated[str, msgspec.Meta(max_length=schemas.MAX_B64_CHARS)] | None = None
    hashes: msgspec.Raw = _NULL
    block_tokens: BlockTokens | None = None
    states: ScopeBody | None = None


class QueriesBody(msgspec.Struct, frozen=True, forbid_unknown_fields=True, gc=False):
    queries: Annotated[list[QueryBody], msgspec.Meta(min_length=1, max_length=schemas.MAX_QUERIES)]


class Asked(NamedTuple):
    """One query: `tokens` or `names`, the engines' names of its blocks."""

    wanted: Filter
    tokens: Tokens | None
    names: Sequence[int] | None = None
    extra_keys: Sequence[Extra | None] | None = None
    block_tokens: int | None = None
    # Of the registered states that are looked for as well.
    states: ScopeIdentity | None = None


_decoder = msgspec.json.Decoder(QueriesBody)
_hashes = msgspec.json.Decoder(
    Annotated[list[int | str], msgspec.Meta(max_length=MAX_HASHES)] | None
)
_extra_keys = msgspec.json.Decoder(
    Annotated[list[list[Any] | None], msgspec.Meta(max_length=MAX_HASHES)] | None
)


def decode_json(body: bytes) -> list[Asked]:
    """Raises NexusError: INVALID_JSON, INVALID_BODY, a field's, or QUERY_TOO_LARGE."""
    try:
        found = _decoder.decode(body)
    except (msgspec.MsgspecError, RecursionError, UnicodeError) as error:
        found = judged(body, error, _decoder)
    bounded(found.queries)
    asked = [asked_of(query, f"/queries/{at}") for at, query in enumerate(found.queries)]
    if (
        sum(count_of(query.tokens) for query in asked if query.tokens is not None)
        > MAX_QUERY_TOKENS
    ):
        raise too_large()
    return asked


def bounded(queries: Sequence[QueryBody]) -> None:
    """Raises QUERY_TOO_LARGE before an object is made for each of too many values.

    An entry that is null costs next to nothing, and most are; each other value does, and a list or
    map twice that. A comma within a text counts as if a value followed it.
    """
    listed = values = 0
    for query in queries:
        for raw in (query.hashes, query.extra_keys):
            if len(raw) > len(_NULL):
                listed += bytes(raw).count(b",") + 1
        # Two to a hash in hexadecimal, which costs twice what a number does.
        listed += bytes(query.hashes).count(b'"') // 2
        text = bytes(query.extra_keys)
        if len(text) > len(_NULL):
            values += text.count(b",") - text.count(b"null,")
            values += 2 * (text.count(b"[") + text.count(b"{"))
    if listed > schemas.MAX_QUERY_HASHES or values > schemas.MAX_EXTRA_VALUES:
        raise too_large()


def decode_packed(query: bytes, body: bytes) -> Asked:
    """Tokens as little-endian u32 in the body, the rest in the URL. Raises NexusError."""
    return Asked(_of_url(query), packed_tokens(body, ""))


@lru_cache(maxsize=_URLS)
def _of_url(query: bytes) -> Filter:
    """Clients with packed prompts repeat the rest from one to the next."""
    given = query_parameters(query, _PACKED_FIELDS)
    for name in ("tenant", "model"):
        if not given.get(name):
            raise field_error(f"/query/{name}", ErrorCode.MISSING_FIELD, "This field is required")
    try:
        fields = msgspec.convert(given, QueryBody)
    except msgspec.ValidationError as error:
        raise field_error("/query", ErrorCode.INVALID_FIELD, str(error)) from None
    return _wanted(fields)


def query_parameters(query: bytes, known: frozenset[str]) -> dict[str, str]:
    """The parameters of a URL. Raises NexusError for one that is unknown or there twice."""
    if len(query) > _MAX_QUERY_CHARS:
        raise field_error("/query", ErrorCode.INVALID_FIELD, f"at most {_MAX_QUERY_CHARS} bytes")
    given: dict[str, str] = {}
    try:
        pairs = parse_qsl(query.decode("ascii"), keep_blank_values=True, errors="strict")
    except ValueError:
        raise field_error("/query", ErrorCode.INVALID_FIELD, "not a query string") from None
    for name, value in pairs:
        at = f"/query/{name[:64]}"
        if name not in known:
            raise field_error(at, ErrorCode.UNKNOWN_FIELD, "This field is not known")
        if name in given:
            raise field_error(at, ErrorCode.INVALID_FIELD, "There is more than one")
        given[name] = value
    return given


def packed_tokens(body: bytes, pointer: str) -> bytes:
    """The tokens as they are. Raises NexusError where their number is none or too large."""
    if len(body) % _TOKEN_BYTES:
        raise field_error(pointer, ErrorCode.INVALID_FIELD, "4 bytes a token, little-endian")
    if len(body) > _TOKEN_BYTES * MAX_QUERY_TOKENS:
        raise too_large()
    return body


def tokens_of(raw: bytes, pointer: str) -> TokenText:
    """A JSON list of token ids. Raises NexusError."""
    try:
        tokens = TokenText(raw)
    except (ValueError, TypeError) as error:
        raise field_error(pointer, ErrorCode.INVALID_FIELD, f"token ids: {error}") from None
    if len(tokens) > MAX_QUERY_TOKENS:
        raise too_large()
    return tokens


def count_of(tokens: Tokens) -> int:
    """How many tokens there are."""
    return len(tokens) if isinstance(tokens, TokenText) else len(tokens) // _TOKEN_BYTES


def names_from(hashes: Sequence[int | str], pointer: str) -> Sequence[int]:
    """Engine hashes as the index has them. Raises NexusError."""
    with suppress(TypeError, OverflowError):
        # Not with a text among them, nor below 0.
        return array("Q", cast("list[int]", hashes))
    try:
        return array(
            "Q",
            [
                name_of(engine_hash(_hexadecimal(each) if isinstance(each, str) else each))
                for each in hashes
            ],
        )
    except WireError as error:
        raise field_error(pointer, ErrorCode.INVALID_FIELD, str(error)) from None


def _hexadecimal(text: str) -> bytes:
    """Raises WireError."""
    try:
        found = bytes.fromhex(text)
    except ValueError:
        found = b""
    # Between bytes it takes spaces.
    if 2 * len(found) != len(text):
        raise WireError("hashes are integers, or hexadecimal")
    return found


_PACKED_FIELDS: Final = frozenset(
    {"tenant", "model", "revision", "layout", "instance_id", "lora", "cache_salt"}
)


def asked_of(query: QueryBody, at: str) -> Asked:
    """A decoded query at a pointer. Raises NexusError."""
    raw = bytes(query.tokens)
    has_tokens = raw != b"null"
    hashes = _listed(_hashes, query.hashes, f"{at}/hashes")
    if has_tokens + (query.tokens_b64 is not None) + (hashes is not None) != 1:
        raise field_error(at, ErrorCode.INVALID_FIELD, "one of tokens, tokens_b64 and hashes")
    wanted = _wanted(query)
    listed = _listed(_extra_keys, query.extra_keys, f"{at}/extra_keys")
    if hashes is not None:
        if query.states is not None:
            raise field_error(f"{at}/states", ErrorCode.INVALID_FIELD, "only with tokens")
        names = names_from(hashes, f"{at}/hashes")
        return Asked(wanted, None, names, block_tokens=query.block_tokens)
    tokens: Tokens
    if query.tokens_b64 is not None:
        tokens = _of_base64(query.tokens_b64, f"{at}/tokens_b64")
    else:
        tokens = tokens_of(raw, f"{at}/tokens")
    extra_keys = None
    if listed is not None:
        try:
            extra_keys = Fields({"extra_keys": listed}).extra_keys()
        except WireError as error:
            pointer = f"{at}/extra_keys"
            raise field_error(pointer, ErrorCode.INVALID_FIELD, str(error)) from None
    return Asked(wanted, tokens, None, extra_keys, states=_scope(query))


def _listed(decoder: "msgspec.json.Decoder[_T]", raw: msgspec.Raw, pointer: str) -> _T:
    """Raises NexusError."""
    try:
        return decoder.decode(raw)
    except (msgspec.MsgspecError, RecursionError, UnicodeError) as error:
        detail = "nested too deep" if isinstance(error, RecursionError) else "not such a list"
        raise field_error(pointer, ErrorCode.INVALID_FIELD, detail) from None


def _of_base64(text: str, pointer: str) -> bytes:
    """Raises NexusError."""
    try:
        packed = binascii.a2b_base64(text, strict_mode=True)
    except (binascii.Error, ValueError):
        raise field_error(pointer, ErrorCode.INVALID_FIELD, "not base64") from None
    last = (len(packed) - 1) // 3 * 3
    # Of several spellings of the last bytes the one in which no bit is left over.
    if packed and not text.endswith(binascii.b2a_base64(packed[last:], newline=False).decode()):
        raise field_error(pointer, ErrorCode.INVALID_FIELD, "not base64")
    return packed_tokens(packed, pointer)


def _wanted(query: QueryBody) -> Filter:
    return Filter(
        query.tenant,
        query.model,
        query.revision,
        query.layout,
        query.lora,
        query.cache_salt,
        query.instance_id,
    )


def _scope(query: QueryBody) -> ScopeIdentity | None:
    scope = query.states
    if scope is None:
        return None
    return ScopeIdentity(
        query.tenant, scope.namespace, query.model, scope.engine_family, scope.semantic_type
    )
