"""Bodies of `POST /v1/plans`, decoded once; see `app.api.match_wire` for how queries are."""

from typing import Annotated, Final, Literal

import msgspec
import orjson

from app.api import plan_schemas as schemas
from app.api.match_refusals import MAX_JUDGED_BYTES, field_error, first_fault, judge
from app.api.match_wire import AnyText, QueryBody, Tenant, Text, asked_of, bounded, count_of
from app.contract.enums import DeviceClass
from app.contract.evidence import QueryEvidence
from app.engines.plans import Filter
from app.engines.reach import Tier, TierReach
from app.engines.registration import EngineKey
from app.engines.views import ViewState
from app.errors import ErrorCode, NexusError
from app.lifecycle.plan_query import (
    AskedTarget,
    EngineHolding,
    PlanQuery,
    Previous,
    StateHolding,
)
from app.settings import MAX_QUERY_TOKENS

Tokens = Annotated[int, msgspec.Meta(ge=0, le=schemas.MAX_TOKENS)]
Count = Annotated[int, msgspec.Meta(ge=0, le=schemas.MAX_COUNT)]
Generation = Annotated[int, msgspec.Meta(ge=1, le=schemas.MAX_GENERATION)]
AnyGeneration = Annotated[int, msgspec.Meta(ge=0, le=schemas.MAX_GENERATION)]
Deadline = Annotated[int, msgspec.Meta(ge=1, le=schemas.MAX_DEADLINE_US)]
Rank = Annotated[int, msgspec.Meta(ge=0, le=65_535)]
Prompt = Annotated[int, msgspec.Meta(ge=1, le=MAX_QUERY_TOKENS)]
Node = Annotated[str, msgspec.Meta(min_length=1, max_length=128, pattern=r"^[^\x00/]+\Z")]
Instance = Annotated[str, msgspec.Meta(pattern=r"^[A-Za-z0-9][A-Za-z0-9._:-]{0,127}\Z")]
BlockTokens = Annotated[int, msgspec.Meta(ge=1, le=1 << 20)]


class TargetBody(msgspec.Struct, frozen=True, forbid_unknown_fields=True, gc=False):
    engine_id: Instance
    dp_rank: Rank = 0
    generation: Generation | None = None
    residency: Node | None = None
    device_class: DeviceClass | None = None
    hardware: AnyText | None = None
    queue_depth: Count | None = None
    running_prefill_tokens: Tokens | None = None
    running_decode_tokens: Tokens | None = None
    free_blocks: Tokens | None = None
    block_tokens: BlockTokens | None = None
    parallel_layout: AnyText | None = None


class TierBody(msgspec.Struct, frozen=True, gc=False):
    only: Tokens
    cumulative: Tokens


class CandidateBody(msgspec.Struct, frozen=True, gc=False):
    instance_id: Instance
    epoch: Generation
    tiers: dict[Tier, TierBody]
    dp_rank: Rank = 0
    state: ViewState = ViewState.LIVE


class StateBody(msgspec.Struct, frozen=True, gc=False):
    entry_id: Text
    generation: AnyGeneration
    matched_tokens: Prompt


class PreviousBody(msgspec.Struct, frozen=True, forbid_unknown_fields=True, gc=False):
    tenant: Tenant
    model: Text
    query_tokens: Prompt
    revision: AnyText | None = None
    layout: AnyText | None = None
    candidates: Annotated[list[CandidateBody], msgspec.Meta(max_length=schemas.MAX_PREVIOUS)] = []
    states: Annotated[list[StateBody], msgspec.Meta(max_length=schemas.MAX_PREVIOUS_STATES)] = []


class PlanBody(msgspec.Struct, frozen=True, forbid_unknown_fields=True, gc=False):
    targets: Annotated[list[TargetBody], msgspec.Meta(min_length=1, max_length=schemas.MAX_TARGETS)]
    query: QueryBody | None = None
    match: PreviousBody | None = None
    evidence: QueryEvidence | None = None
    deadline_us: Deadline | None = None
    slo_ttft_us: Deadline | None = None
    policy: Generation | None = None
    explain: Literal["brief", "full"] = "brief"


class DecodedPlan(msgspec.Struct, frozen=True, gc=False):
    """What is asked for; `policy`: a dry run under that stored version."""

    query: PlanQuery
    policy: int | None
    full: bool


_DECODER: Final = msgspec.json.Decoder(PlanBody)
_FAR: Final = frozenset({ViewState.STALE, ViewState.PENDING})


def decode_plan(body: bytes) -> DecodedPlan:
    """Raises NexusError: INVALID_JSON, INVALID_BODY, a field's, or QUERY_TOO_LARGE."""
    try:
        found = _DECODER.decode(body)
    except (msgspec.MsgspecError, RecursionError, UnicodeError) as error:
        found = _judged(body, error)
    targets = tuple(_target(target) for target in found.targets)
    names = [target.key for target in targets]
    if len(set(names)) < len(names):
        raise field_error("/targets", ErrorCode.INVALID_FIELD, "a target is there twice")
    return DecodedPlan(
        _query(found, targets, _deadline_us(found)), found.policy, found.explain == "full"
    )


def _judged(body: bytes, error: Exception) -> PlanBody:
    """What the published model makes of a body that was refused; raises what it finds."""
    if len(body) > MAX_JUDGED_BYTES:
        raise first_fault(error)
    try:
        value = orjson.loads(body)
    except orjson.JSONDecodeError as fault:
        raise NexusError(ErrorCode.INVALID_JSON, f"The body is not valid JSON: {fault}") from None
    judge(value, schemas.PlanRequest)
    raise first_fault(error)


def _deadline_us(found: PlanBody) -> float | None:
    given = [each for each in (found.deadline_us, found.slo_ttft_us) if each is not None]
    if found.deadline_us and found.slo_ttft_us and found.slo_ttft_us > found.deadline_us:
        raise field_error(
            "/slo_ttft_us", ErrorCode.INVALID_FIELD, "the objective is later than the deadline"
        )
    return min(given, default=None)


def _query(
    found: PlanBody, targets: tuple[AskedTarget, ...], deadline_us: float | None
) -> PlanQuery:
    if (found.query is None) == (found.match is None):
        raise field_error("", ErrorCode.INVALID_FIELD, "one of query and match")
    if found.match is not None:
        return _of_previous(found, found.match, targets, deadline_us)
    assert found.query is not None
    bounded([found.query])
    asked = asked_of(found.query, "/query")
    if asked.tokens is None:
        raise field_error("/query/hashes", ErrorCode.INVALID_FIELD, "a plan needs tokens")
    count = count_of(asked.tokens)
    if not count:
        raise field_error("/query", ErrorCode.INVALID_FIELD, "a plan needs at least one token")
    return PlanQuery(
        asked.wanted,
        targets,
        namespace=asked.states.namespace if asked.states else "default",
        tokens=asked.tokens,
        tokens_count=count,
        extra_keys=asked.extra_keys,
        scope=asked.states,
        evidence=found.evidence,
        deadline_us=deadline_us,
    )


def _of_previous(
    found: PlanBody,
    match: PreviousBody,
    targets: tuple[AskedTarget, ...],
    deadline_us: float | None,
) -> PlanQuery:
    engines = tuple(
        EngineHolding(
            EngineKey(one.instance_id, one.dp_rank),
            {tier: TierReach(each.only, each.cumulative) for tier, each in one.tiers.items()},
            one.epoch,
            one.state in _FAR,
        )
        for one in match.candidates
    )
    states = tuple(
        StateHolding(one.entry_id, one.generation, one.matched_tokens) for one in match.states
    )
    return PlanQuery(
        Filter(match.tenant, match.model, match.revision, match.layout),
        targets,
        tokens_count=match.query_tokens,
        evidence=found.evidence,
        previous=Previous(match.query_tokens, engines, states),
        deadline_us=deadline_us,
    )


def _target(body: TargetBody) -> AskedTarget:
    return AskedTarget(
        EngineKey(body.engine_id, body.dp_rank),
        body.generation,
        body.residency,
        body.device_class,
        body.hardware,
        body.queue_depth,
        body.running_prefill_tokens,
        body.running_decode_tokens,
        body.free_blocks,
        body.block_tokens,
        body.parallel_layout,
    )
