"""Bodies of `/indexer`, in both spellings that are about: `model` and `model_name`.

Unknown fields are passed over, as the services that this stands in for do.
"""

import re
from collections.abc import Mapping, Sequence
from enum import StrEnum
from functools import lru_cache
from typing import Annotated, Final, NamedTuple, TypeVar

import msgspec

from app.api.match_refusals import field_error
from app.api.match_wire import (
    PACKED_TYPE,
    names_from,
    packed_tokens,
    query_parameters,
    tokens_of,
)
from app.control.auth import require_tenant
from app.control.keys import Principal
from app.engines.fields import MAX_HASHES
from app.engines.plans import Filter
from app.engines.registration import EngineKind, EngineSpec
from app.engines.search import Tokens
from app.errors import ErrorCode, NexusError
from app.settings import MAX_QUERY_TOKENS
from nexuskv_core import TokenText

DEFAULT: Final = "default"
_URLS: Final = 1_024
_TOKEN_IDS: Final = re.compile(rb'"token_ids"[ \t\r\n]*:[ \t\r\n]*\[')
_LISTED_NAME: Final = b'"token_ids"'
# In place of a list of tokens: no such list, and still JSON.
_LISTED: Final = b"[[]]"
_MAX_REST: Final = 1_024
_T = TypeVar("_T")
_NULL: Final = msgspec.Raw(b"null")
_LAYOUT: Final = "routing_group="
_NO_NUL: Final = r"^[^\x00]*$"
Text = Annotated[str, msgspec.Meta(min_length=1, max_length=512, pattern=_NO_NUL)]
Label = Annotated[str, msgspec.Meta(max_length=512, pattern=_NO_NUL)]
Group = Annotated[str, msgspec.Meta(max_length=128, pattern=_NO_NUL)]
Instance = (
    Annotated[str, msgspec.Meta(pattern=r"^[A-Za-z0-9][A-Za-z0-9._:-]{0,127}\Z")]
    | Annotated[int, msgspec.Meta(ge=0)]
)
BlockSize = Annotated[int, msgspec.Meta(ge=1, le=65_536)]
Rank = Annotated[int, msgspec.Meta(ge=0, le=65_535)]


class Spelling(StrEnum):
    """Whose fields a request has; answers have the same."""

    MOONCAKE = "mooncake"
    DYNAMO = "dynamo"


class _Named(msgspec.Struct, frozen=True, gc=False):
    """What every request may have."""

    model: Text | None = None
    modelname: Text | None = None
    model_name: Text | None = None
    tenant_id: Group | None = None
    routing_group: Group | None = None
    instance_id: Instance | None = None
    block_size: BlockSize | None = None
    additionalsalt: Label | None = None
    additional_salt: Label | None = None
    lora_name: Label | None = None

    @property
    def spelling(self) -> Spelling:
        return Spelling.MOONCAKE if self.model_name is None else Spelling.DYNAMO

    def its_model(self) -> str:
        """Raises MISSING_FIELD, INVALID_FIELD."""
        found = agreed(
            {"model": self.model, "modelname": self.modelname, "model_name": self.model_name}
        )
        if found is None:
            raise missing("model")
        return found

    def layout(self) -> str:
        """A routing group keeps engines apart as another layout does."""
        group = self.routing_group
        return "" if group in (None, "", DEFAULT) else f"{_LAYOUT}{group}"

    def salt_of_engine(self) -> str:
        """What keeps engines of one model apart that do not share blocks. Raises INVALID_FIELD."""
        given = {"additional_salt": self.additional_salt, "additionalsalt": self.additionalsalt}
        return agreed({name: value or None for name, value in given.items()}) or ""


class QueryBody(_Named, frozen=True, gc=False):
    token_ids: msgspec.Raw = _NULL
    lora_id: int | None = None
    cache_salt: Label | None = None


class HashBody(_Named, frozen=True, gc=False):
    seq_hashes: Annotated[list[int], msgspec.Meta(max_length=MAX_HASHES)] | None = None
    block_hash: Annotated[list[int], msgspec.Meta(max_length=MAX_HASHES)] | None = None
    block_hashes: Annotated[list[int], msgspec.Meta(max_length=MAX_HASHES)] | None = None
    cache_salt: Label | None = None


class RegisterBody(_Named, frozen=True, gc=False):
    endpoint: Text | None = None
    replay_endpoint: Label | None = None
    type: Text | None = None
    dp_rank: Rank | None = None


class IndexerQuery(NamedTuple):
    """`tokens` or `names`; `block_tokens` where only blocks of that many are meant."""

    spelling: Spelling
    wanted: Filter
    block_tokens: int | None
    routing_group: str
    tokens: Tokens | None = None
    names: Sequence[int] | None = None


class Named(NamedTuple):
    """Which registrations are meant."""

    spelling: Spelling
    model: str
    layout: str
    instance_id: str | None
    dp_rank: int | None


_query = msgspec.json.Decoder(QueryBody)
_hashes = msgspec.json.Decoder(HashBody)
_register = msgspec.json.Decoder(RegisterBody)
# All that a body of JSON may have.
_PACKED_FIELDS: Final = frozenset(QueryBody.__struct_fields__) - {"token_ids"}


def decode_query(
    principal: Principal, media_type: bytes, query: bytes, body: bytes
) -> IndexerQuery:
    """A prompt by its tokens. Raises NexusError."""
    if media_type == PACKED_TYPE:
        spelling, wanted, block_tokens, group, _, _ = _of_url(principal, query)
        return IndexerQuery(spelling, wanted, block_tokens, group, packed_tokens(body, ""))
    if query:
        raise field_error("/query", ErrorCode.INVALID_FIELD, "only with a packed body")
    usual = _usual(principal, body)
    if usual is not None:
        return usual
    found = _decoded(_query, body)
    raw = bytes(found.token_ids)
    if raw == b"null":
        raise missing("token_ids")
    return _prompt(principal, found)._replace(tokens=tokens_of(raw, "/token_ids"))


def _usual(principal: Principal, body: bytes) -> IndexerQuery | None:
    """A body with the one list of tokens that it says it has; None for any other.

    The decoder would go over the list only to leave it as it is. Without it the rest of the body is
    short, and clients repeat it. There is no escape in it, so that a name is where it is spelt out.
    """
    at = _TOKEN_IDS.search(body)
    if at is None:
        return None
    start = at.end() - 1
    end = body.find(b"]", start) + 1
    rest = body[:start] + _LISTED + body[end:]
    if not end or len(rest) > _MAX_REST or b"\\" in rest or rest.count(_LISTED_NAME) != 1:
        return None
    asked = _of_rest(principal, rest)
    if asked is None:
        return None
    try:
        tokens = TokenText(memoryview(body)[start:end])
    except ValueError:
        return None
    if len(tokens) > MAX_QUERY_TOKENS:
        return None
    spelling, wanted, block_tokens, group, _, _ = asked
    return IndexerQuery(spelling, wanted, block_tokens, group, tokens)


@lru_cache(maxsize=_URLS)
def _of_rest(principal: Principal, rest: bytes) -> IndexerQuery | None:
    """The query of a body whose list of tokens is `_LISTED`; None for one that is not that."""
    try:
        found = _query.decode(rest)
        # Elsewhere than at the top it would be another list than the one that is meant.
        return _prompt(principal, found) if bytes(found.token_ids) == _LISTED else None
    except (NexusError, msgspec.MsgspecError, RecursionError, UnicodeError):
        return None


@lru_cache(maxsize=_URLS)
def _of_url(principal: Principal, query: bytes) -> IndexerQuery:
    """Clients with packed prompts repeat the rest from one to the next."""
    given = query_parameters(query, _PACKED_FIELDS)
    try:
        return _prompt(principal, msgspec.convert(given, QueryBody, strict=False))
    except msgspec.ValidationError as error:
        raise invalid(error) from None


def _prompt(principal: Principal, found: QueryBody) -> IndexerQuery:
    lora = found.lora_name or None
    # A number that stands for no adapter at all is not negative.
    if lora is None and found.lora_id is not None and found.lora_id >= 0:
        lora = str(found.lora_id)
    return _asked(principal, found, lora, found.cache_salt or None)


def decode_hashes(principal: Principal, body: bytes) -> IndexerQuery:
    """A prompt by its blocks' hashes as the engine has them. Raises NexusError."""
    found = _decoded(_hashes, body)
    if found.spelling is Spelling.DYNAMO and found.cache_salt is not None:
        detail = "cache_salt is in the hashes already and must be absent"
        raise field_error("/cache_salt", ErrorCode.INVALID_FIELD, detail)
    hashes = next(
        (
            each
            for each in (found.block_hashes, found.seq_hashes, found.block_hash)
            if each is not None
        ),
        None,
    )
    if hashes is None:
        raise missing("block_hashes" if found.spelling is Spelling.DYNAMO else "seq_hashes")
    names = names_from(hashes, "/block_hashes")
    return _asked(principal, found, None, None)._replace(names=names)


def decode_registration(principal: Principal, body: bytes) -> tuple[Spelling, EngineSpec]:
    """Raises NexusError."""
    found = _decoded(_register, body)
    for name in ("instance_id", "endpoint", "block_size"):
        if getattr(found, name) is None:
            raise missing(name)
    kinds = {kind.value: kind for kind in EngineKind}
    kind = kinds.get((found.type or EngineKind.VLLM).lower())
    if kind is None:
        detail = f"type is one of {', '.join(kinds)}"
        raise field_error("/type", ErrorCode.INVALID_FIELD, detail)
    fields = {
        "instance_id": str(found.instance_id),
        "dp_rank": found.dp_rank or 0,
        "kind": kind,
        "model": found.its_model(),
        "revision": found.salt_of_engine(),
        "layout": found.layout(),
        "block_tokens": found.block_size,
        "tenants": (tenant_of(principal, found.tenant_id),),
        "endpoint": found.endpoint,
        "replay_endpoint": found.replay_endpoint or None,
    }
    try:
        return found.spelling, msgspec.convert(fields, EngineSpec)
    except msgspec.ValidationError as error:
        raise invalid(error) from None


def decode_removal(body: bytes) -> Named:
    """Raises NexusError."""
    found = _decoded(_register, body)
    if found.instance_id is None:
        raise missing("instance_id")
    return Named(
        found.spelling, found.its_model(), found.layout(), str(found.instance_id), found.dp_rank
    )


def tenant_of(principal: Principal, named: str | None) -> str:
    """Whose blocks are meant: clients that know no tenants say nothing, or `default`.

    Then it is the one that the key has, and `default` for a key of all. Raises TENANT_FORBIDDEN,
    or MISSING_FIELD for a key of several.
    """
    own = principal.tenants
    if named not in (None, "", DEFAULT) or (own is not None and DEFAULT in own):
        tenant = named or DEFAULT
        require_tenant(principal, tenant)
        return tenant
    if own is None:
        return DEFAULT
    if len(own) != 1:
        raise NexusError(
            ErrorCode.MISSING_FIELD, "name tenant_id: the API key covers several tenants"
        )
    return next(iter(own))


def agreed(given: Mapping[str, str | None]) -> str | None:
    """What the spellings of one field say; None where none is there.

    Raises INVALID_FIELD where two of them differ.
    """
    found = {value: name for name, value in given.items() if value is not None}
    if len(found) > 1:
        names = " and ".join(found.values())
        detail = f"{names} are one field, and must not differ"
        raise field_error(f"/{next(iter(found.values()))}", ErrorCode.INVALID_FIELD, detail)
    return next(iter(found), None)


def is_number(instance_id: str) -> bool:
    """Whether the instance was, or might have been, named by a number of at most 64 bits."""
    return (
        instance_id.isascii()
        and instance_id.isdecimal()
        and str(int(instance_id)) == instance_id
        and int(instance_id) < 2**64
    )


def missing(name: str) -> NexusError:
    return field_error(f"/{name}", ErrorCode.MISSING_FIELD, "This field is required")


def invalid(error: msgspec.ValidationError) -> NexusError:
    """What does not fit, in the decoder's words, which quote nothing but names."""
    return NexusError(ErrorCode.INVALID_FIELD, str(error))


def _asked(principal: Principal, found: _Named, lora: str | None, salt: str | None) -> IndexerQuery:
    wanted = Filter(
        tenant_of(principal, found.tenant_id),
        found.its_model(),
        found.salt_of_engine() or None,
        found.layout(),
        lora,
        salt,
        None if found.instance_id is None else str(found.instance_id),
    )
    group = found.routing_group or DEFAULT
    return IndexerQuery(found.spelling, wanted, found.block_size, group)


def _decoded(decoder: "msgspec.json.Decoder[_T]", body: bytes) -> _T:
    try:
        return decoder.decode(body)
    except msgspec.ValidationError as error:
        raise invalid(error) from None
    except (msgspec.DecodeError, RecursionError, UnicodeError) as error:
        raise NexusError(ErrorCode.INVALID_JSON, f"The body is not valid JSON: {error}") from None
