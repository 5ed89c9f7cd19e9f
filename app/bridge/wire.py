"""Bodies of the bridge, decoded once.

The fast path is msgspec with the same constraints as `app.bridge.schemas`. Whatever it refuses,
and every body with an escape (where a U+0000 could hide), is judged by the pydantic model,
which also names the fault. Tokens are read by the core's own scanner, into a buffer and not into
objects. The evidence objects repeat from request to request, so they are kept
by their raw bytes and decoded only when new.
"""

import itertools
from collections import deque
from collections.abc import Callable
from typing import Annotated, Any, Final, Literal, TypeVar

import msgspec
import orjson
from pydantic import BaseModel, ValidationError

from app.bridge import schemas
from app.contract.evidence import InputSemanticIdentity, ModelIdentity, QueryEvidence
from app.errors import ErrorCode, FieldError, NexusError
from app.settings import MAX_QUERY_TOKENS
from nexuskv_core import TokenText

Text = Annotated[str, msgspec.Meta(min_length=1, max_length=schemas.MAX_TEXT_CHARS)]
ScopeText = Annotated[str, msgspec.Meta(min_length=1, max_length=schemas.MAX_SCOPE_CHARS)]
LongText = Annotated[str, msgspec.Meta(min_length=1, max_length=schemas.MAX_LOCATOR_CHARS)]
HandleText = Annotated[str, msgspec.Meta(min_length=1, max_length=schemas.MAX_HANDLE_CHARS)]
EngineGeneration = Annotated[int, msgspec.Meta(ge=1, le=schemas.I64_MAX)]
_EVIDENCE_CACHE_ENTRIES: Final = 4096
_EVIDENCE_CACHE_BYTES: Final = 8_192
_MAX_REPORTED: Final = 20
_MAX_OBJECT_FIELDS: Final = 64
_T = TypeVar("_T")


class QueryIdentity(msgspec.Struct, frozen=True, forbid_unknown_fields=True, gc=False):
    tenant: ScopeText
    namespace: ScopeText
    model: Text
    engine_family: Literal["sglang", "vllm"]
    semantic_type: Text
    tokens: msgspec.Raw


class LookupRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True, gc=False):
    schema_version: Literal["locus.nexuskv-bridge.v1"]
    nexuskv_schema_version: Literal["nexuskv.contract.v1"]
    identity: QueryIdentity
    locus_model_identity: msgspec.Raw
    locus_input_semantic_identity: msgspec.Raw
    input_fingerprint: Text


class EstimateRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    schema_version: Literal["locus.nexuskv-bridge.v1"]
    source_state: Text
    source_handle: HandleText
    source_locator: LongText
    source_tier: Text
    target_id: Text
    target_engine_id: Text
    target_engine_generation: EngineGeneration
    target_residency: Text


class MaterializeRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    schema_version: Literal["locus.nexuskv-bridge.v1"]
    option_id: Text
    option_handle: HandleText
    import_id: Text
    target_id: Text
    target_engine_id: Text
    target_engine_generation: EngineGeneration
    sink_namespace: Text
    sink_value: Text


class _EvidencePair(msgspec.Struct, frozen=True):
    number: int
    model_identity: ModelIdentity
    input_semantic_identity: InputSemanticIdentity
    echo: bytes


class QueryEvidenceCache:
    """Model and input identities by their raw JSON, at most 4,096 pairs, each with a number.

    Numbers are never reused, so that verdicts can be kept by them.
    """

    def __init__(self) -> None:
        self._pairs: dict[bytes, _EvidencePair] = {}
        self._numbers = itertools.count(1)
        self._model = msgspec.json.Decoder(ModelIdentity)
        self._input = msgspec.json.Decoder(InputSemanticIdentity)

    def pair(self, model: msgspec.Raw, semantic: msgspec.Raw) -> _EvidencePair:
        """Raises msgspec.MsgspecError when either is not valid."""
        key = b"\x00".join((model, semantic))
        found = self._pairs.get(key)
        if found is None:
            identities = self._model.decode(model), self._input.decode(semantic)
            found = _EvidencePair(next(self._numbers), *identities, _echo(*identities))
            if len(self._pairs) >= _EVIDENCE_CACHE_ENTRIES:
                self._pairs.clear()
            # White space may swell the same evidence to megabytes; that is not kept.
            if len(key) <= _EVIDENCE_CACHE_BYTES:
                self._pairs[key] = found
        return found


def _echo(model: ModelIdentity, semantic: InputSemanticIdentity) -> bytes:
    """What was compared and found equal is what was registered: the query's own identities."""
    return b'{"model_identity":%b,"input_semantic_identity":%b,"source_handle":"' % (
        msgspec.json.encode(model),
        msgspec.json.encode(semantic),
    )


class DecodedLookup(msgspec.Struct, frozen=True, gc=False):
    identity: QueryIdentity
    tokens: TokenText
    evidence: QueryEvidence
    evidence_number: int
    # Both identities as an answer's `validation` begins with them; see `app.bridge.answers`.
    evidence_echo: bytes


class BridgeDecoder:
    """Turns bodies into requests; raises NexusError with the wire's code for every other body."""

    def __init__(self) -> None:
        self._lookup = msgspec.json.Decoder(LookupRequest)
        self._estimate = msgspec.json.Decoder(EstimateRequest)
        self._materialize = msgspec.json.Decoder(MaterializeRequest)
        self._evidence = QueryEvidenceCache()

    def lookup(self, body: bytes) -> DecodedLookup:
        return _decode(body, self._fast_lookup, schemas.LookupRequest)

    def estimate(self, body: bytes) -> EstimateRequest:
        return _decode(body, self._estimate.decode, schemas.EstimateRequest)

    def materialize(self, body: bytes) -> MaterializeRequest:
        return _decode(body, self._materialize.decode, schemas.MaterializeRequest)

    def _fast_lookup(self, body: bytes) -> DecodedLookup:
        request = self._lookup.decode(body)
        tokens = TokenText(request.identity.tokens)
        if len(tokens) > MAX_QUERY_TOKENS:
            raise ValueError
        pair = self._evidence.pair(
            request.locus_model_identity, request.locus_input_semantic_identity
        )
        evidence = QueryEvidence(
            pair.model_identity, pair.input_semantic_identity, request.input_fingerprint
        )
        return DecodedLookup(request.identity, tokens, evidence, pair.number, pair.echo)


def _decode(body: bytes, fast: Callable[[bytes], _T], model: type[BaseModel]) -> _T:
    if b"\\" not in body:
        try:
            return fast(body)
        except (msgspec.MsgspecError, ValueError, RecursionError):
            pass
    # Re-encoded from what the model accepted, the body holds no escape but control characters.
    return fast(orjson.dumps(judge(body, model).model_dump()))


def judge(body: bytes, model: type[BaseModel]) -> BaseModel:
    """The body as its published model; raises NexusError naming the first fault and all others."""
    try:
        value = orjson.loads(body)
    except orjson.JSONDecodeError as error:
        raise NexusError(ErrorCode.INVALID_JSON, f"the body is not valid JSON: {error}") from None
    if not isinstance(value, dict):
        raise NexusError(
            ErrorCode.INVALID_BODY, f"the body must be a JSON object, not {_json_type(value)}"
        )
    _check_versions(value)
    _check_sizes(value, "")
    if isinstance(identity := value.get("identity"), dict):
        identity["tokens"] = _up_to_faults(identity.get("tokens"))
    try:
        return model.model_validate(value)
    except ValidationError as error:
        refusal = _as_nexus_error(error)
    # Raised out here, the refusal keeps neither the findings nor the body alive.
    raise refusal


def _check_versions(value: dict[str, Any]) -> None:
    """A body of another version is refused for that, and not for fields we do not know."""
    for field, known, code in (
        ("schema_version", schemas.BRIDGE_SCHEMA, ErrorCode.UNSUPPORTED_BRIDGE_SCHEMA),
        ("nexuskv_schema_version", schemas.NEXUSKV_SCHEMA, ErrorCode.UNSUPPORTED_NEXUSKV_SCHEMA),
    ):
        found = value.get(field, known)
        if isinstance(found, str) and found != known:
            raise NexusError(code, f"{field} must be {known!r}")


def _check_sizes(value: dict[str, Any], at: str) -> None:
    """Naming every field of a huge object would cost more than the object is worth."""
    if len(value) > _MAX_OBJECT_FIELDS:
        raise NexusError(
            ErrorCode.UNKNOWN_FIELD,
            f"{at or 'the body'}: has {len(value)} fields, and none here has "
            f"more than {_MAX_OBJECT_FIELDS}",
        )
    for name, item in value.items():
        if isinstance(item, dict):
            _check_sizes(item, f"{at}{_pointer((name,))}")


def _up_to_faults(tokens: Any) -> Any:
    """The list cut behind its first faults: a million of them are told no better than twenty."""
    if not isinstance(tokens, list):
        return tokens
    faults = (
        position
        for position, token in enumerate(tokens)
        if type(token) is not int or not 0 <= token <= schemas.U32_MAX
    )
    last = deque(itertools.islice(faults, _MAX_REPORTED), maxlen=1)
    return tokens[: last[0] + 1] if last else tokens


def _as_nexus_error(error: ValidationError) -> NexusError:
    findings = [
        FieldError(_pointer(item["loc"]), _code(item), item["msg"])
        for item in error.errors(include_url=False, include_context=False)[:_MAX_REPORTED]
    ]
    findings.sort(key=lambda finding: _PRECEDENCE.index(finding.code))
    first = findings[0]
    return NexusError(first.code, f"{first.pointer}: {first.detail}", errors=findings)


# Structure before content: a caller who sent the wrong shape learns that first.
_PRECEDENCE: Final = (
    ErrorCode.QUERY_TOO_LARGE,
    ErrorCode.MISSING_FIELD,
    ErrorCode.UNKNOWN_FIELD,
    ErrorCode.INVALID_FIELD,
    ErrorCode.UNSUPPORTED_IDENTITY,
)


def _code(item: Any) -> ErrorCode:
    match item["type"], item["loc"]:
        case "missing", _:
            return ErrorCode.MISSING_FIELD
        case "extra_forbidden", _:
            return ErrorCode.UNKNOWN_FIELD
        case "too_long", ("identity", "tokens"):
            return ErrorCode.QUERY_TOO_LARGE
        case "literal_error", ("identity", "engine_family") if isinstance(item["input"], str):
            return ErrorCode.UNSUPPORTED_IDENTITY
    return ErrorCode.INVALID_FIELD


def _pointer(location: tuple[int | str, ...]) -> str:
    return "".join("/" + str(part).replace("~", "~0").replace("/", "~1") for part in location)


def _json_type(value: object) -> str:
    names = {list: "an array", str: "a string", bool: "a boolean", type(None): "null"}
    return names.get(type(value), "a number")
