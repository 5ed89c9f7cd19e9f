"""`/indexer`: the HTTP interface that KV indexers have in common, so that a client of one of them
only changes its base URL. Tenants and credentials are ours, errors and answers are theirs.
"""

from collections.abc import Sequence
from typing import Any, Final, NamedTuple

import msgspec
import orjson
from fastapi import APIRouter, Request, Response

from app.api.engines import forgotten, may_see, registered
from app.api.indexer_schemas import (
    IndexerDone,
    IndexerError,
    IndexerHashQuery,
    IndexerInstances,
    IndexerQueryBody,
    IndexerRegistered,
    IndexerRegistration,
    IndexerRemoval,
    IndexerRemoved,
    IndexerScores,
    IndexerWorker,
)
from app.api.indexer_wire import (
    IndexerQuery,
    Spelling,
    decode_hashes,
    decode_query,
    decode_registration,
    decode_removal,
)
from app.api.indexer_workers import list_workers
from app.api.match import media_type_of, packed_parameters
from app.api.match_wire import PACKED_TYPE
from app.control.keys import Principal
from app.dependencies import Admin, ServicesDep, StatesReader
from app.engines.answers import HIT, MISS, UNKNOWN, Reached
from app.engines.matching import EngineMatcher
from app.engines.plans import Share
from app.engines.reach import Tier
from app.engines.slices import Slices
from app.errors import ERROR_RULES, ErrorCode, NexusError

QUERY_PATH: Final = "/indexer/query"
BY_HASH_PATH: Final = "/indexer/query_by_hash"
Headers = list[tuple[bytes, bytes]]
_encode = msgspec.json.Encoder().encode
_MATCH: Final = b"x-nexuskv-match"
_COUNTING: Final = b"x-nexuskv-tier-counting"
_ERRORS: Final = (
    ErrorCode.MISSING_FIELD, ErrorCode.INVALID_FIELD, ErrorCode.INVALID_JSON,
    ErrorCode.INVALID_CONTENT_LENGTH, ErrorCode.INVALID_BODY, ErrorCode.UNAUTHORIZED,
    ErrorCode.FORBIDDEN, ErrorCode.TENANT_FORBIDDEN, ErrorCode.NOT_FOUND,
    ErrorCode.REQUEST_TOO_LARGE, ErrorCode.QUERY_TOO_LARGE, ErrorCode.INTERNAL_ERROR,
    ErrorCode.DATABASE_UNAVAILABLE, ErrorCode.OVERLOADED, ErrorCode.INDEX_AWAY,
)  # fmt: skip


def indexer_router() -> APIRouter:
    """The routes as they are published; see `app.api.queries` for how queries reach them."""
    router = APIRouter(prefix="/indexer", tags=["indexer"])
    router.post(
        "/register",
        summary="Register an engine",
        status_code=200,
        responses={
            **_responses(
                IndexerRegistered, ErrorCode.ENGINE_CONFLICT, ErrorCode.ENGINE_HOST_NOT_ALLOWED
            ),
            201: {
                "model": IndexerDone,
                "description": "Registered, where the model was `model_name`.",
            },
        },
        openapi_extra=_body(IndexerRegistration.__name__),
    )(register_engine)
    router.post(
        "/unregister",
        summary="Forget an engine, or one rank of it",
        responses=_responses(IndexerRemoved | IndexerDone),
        openapi_extra=_body(IndexerRemoval.__name__),
    )(unregister_engine)
    router.post(
        "/query",
        summary="Who has how much of a prompt",
        responses=_responses(IndexerScores | IndexerInstances),
        openapi_extra=_body(IndexerQueryBody.__name__, packed=True),
    )(query_tokens)
    router.post(
        "/query_by_hash",
        summary="Who has how much of a prompt, by the hashes of its blocks",
        responses=_responses(IndexerScores | IndexerInstances),
        openapi_extra=_body(IndexerHashQuery.__name__),
    )(query_hashes)
    router.get(
        "/workers",
        summary="The engines that are registered",
        responses=_responses(list[IndexerWorker]),
    )(list_workers)
    return router


# ---- registrations


async def register_engine(request: Request, principal: Admin, services: ServicesDep) -> Response:
    """An engine's events are read from `endpoint` from now on. The same again changes nothing.

    Answers 200 and `status` in the words of the RFC to `modelname`, 201 and `ok` to `model_name`.
    """
    spelling, spec = decode_registration(principal, await request.body())
    await registered(services, principal, spec)
    if spelling is Spelling.DYNAMO:
        return _json({"status": "ok"}, 201)
    return _json({"status": "registered successfully", "instance_id": spec.instance_id})


async def unregister_engine(request: Request, principal: Admin, services: ServicesDep) -> Response:
    """Without `dp_rank` all ranks of the instance."""
    named = decode_removal(await request.body())
    removed = []
    for view in list(services.engines.views()):
        spec = view.spec
        if (
            (spec.model, spec.instance_id) == (named.model, named.instance_id)
            and spec.layout == named.layout
            and named.dp_rank in (None, spec.dp_rank)
            and may_see(principal, view)
            and await forgotten(services, principal, spec.key)
        ):
            removed.append(f"{spec.instance_id}|{spec.tenants[0]}|{spec.dp_rank}")
    if not removed:
        raise NexusError(ErrorCode.NOT_FOUND, f"no such instance: {named.instance_id}")
    if named.spelling is Spelling.DYNAMO:
        return _json({"status": "ok"})
    return _json({"status": "unregistered successfully", "removed_instances": removed})


# ---- queries


async def query_tokens(
    request: Request, principal: StatesReader, services: ServicesDep
) -> Response:
    """In tokens, of whole blocks. `model` is answered per tenant with what each tier has alone,
    `model_name` with scores and with tiers that include every nearer one; the header
    `X-NexusKV-Tier-Counting` says which it was, `X-NexusKV-Match` whether it is hit, miss or
    unknown.
    """
    scope = request.scope
    return _answer(
        await answer_query(
            services.matcher,
            principal,
            media_type_of(scope["headers"]),
            scope["query_string"],
            await request.body(),
            services.clock.now_us(),
        )
    )


async def query_hashes(
    request: Request, principal: StatesReader, services: ServicesDep
) -> Response:
    """The same for the hashes that the engine itself has for its blocks."""
    body = await request.body()
    now_us = services.clock.now_us()
    return _answer(await answer_query_by_hash(services.matcher, principal, b"", b"", body, now_us))


async def answer_query(  # noqa: PLR0917 - a request's parts in their order
    matcher: EngineMatcher,
    principal: Principal,
    media_type: bytes,
    query: bytes,
    body: bytes,
    now_us: int,
) -> tuple[bytes, Headers]:
    """The answer's body and headers. Raises NexusError."""
    asked = decode_query(principal, media_type, query, body)
    assert asked.tokens is not None
    reached = await matcher.reached_in_slices(asked.wanted, asked.tokens, Slices(), now_us=now_us)
    return _answered(asked, reached)


async def answer_query_by_hash(
    matcher: EngineMatcher,
    principal: Principal,
    _media_type: bytes,
    _query: bytes,
    body: bytes,
    now_us: int,
) -> tuple[bytes, Headers]:
    """Likewise."""
    asked = decode_hashes(principal, body)
    reached = await matcher.reached_names_in_slices(
        asked.wanted,
        asked.names or (),
        Slices(),
        now_us=now_us,
        block_tokens=asked.block_tokens,
    )
    return _answered(asked, reached)


def _answered(asked: IndexerQuery, reached: Reached) -> tuple[bytes, Headers]:
    model = asked.wanted.model
    result, engines, found = reached
    if not engines and result == MISS:
        group = f"routing_group={asked.routing_group}"
        if asked.spelling is Spelling.MOONCAKE:
            group = f"tenant={asked.wanted.tenant}"
        raise NexusError(ErrorCode.NOT_FOUND, f"no indexer for model={model} {group}")
    if asked.block_tokens is not None:
        found = [each for each in found if each.seen.block_tokens == asked.block_tokens]
    cumulative = asked.spelling is Spelling.DYNAMO
    body = _scores(found) if cumulative else _encode({asked.wanted.tenant: _instances(found)})
    return body, _HEADERS[result, cumulative]


_HEADERS: Final[dict[tuple[str, bool], Headers]] = {
    (result, cumulative): [
        (_MATCH, result.encode()),
        (_COUNTING, b"cumulative" if cumulative else b"only"),
    ]
    for result in (HIT, MISS, UNKNOWN)
    for cumulative in (True, False)
}


class _Instance(msgspec.Struct, gc=False):
    """Of several ranks the best one. Tiers include the nearer ones."""

    longest_matched: int
    gpu: int
    dp: dict[int, int]
    cpu: int
    disk: int


class _Written(NamedTuple):
    """An instance's member of `scores`, empty without a GPU, and its member of `instances`."""

    instance_id: str
    score: bytes
    instance: bytes
    # The blocks that its GPU has; of several ranks the most.
    depth: int


def _instances(found: Sequence[Share]) -> dict[str, dict[str, Any]]:
    """What each tier has alone; of several ranks the best one."""
    instances: dict[str, dict[str, Any]] = {}
    for share in found:
        spec, (tokens, tiers) = share.seen.view.spec, share.reach
        one = instances.setdefault(
            spec.instance_id, {"longest_matched": 0, "GPU": 0, "DP": {}, "CPU": 0, "DISK": 0}
        )
        one["longest_matched"] = max(one["longest_matched"], tokens)
        one["DP"][str(spec.dp_rank)] = tokens
        for tier, reached in tiers.items():
            name = tier.upper() if tier in _NAMED else "DISK"
            one[name] = max(one[name], reached.only)
    return instances


def _scores(found: Sequence[Share]) -> bytes:
    """Scores and frequencies are of the GPU."""
    parts: list[_Written] = [share.written or _written_once(share) for share in found]
    frequencies = _frequencies([part.depth for part in parts])
    if len({part.instance_id for part in parts}) < len(parts):
        parts = _of_ranks(found)
    scores = b",".join([part.score for part in parts if part.score])
    instances = b",".join([part.instance for part in parts])
    return b'{"scores":{%b},"frequencies":[%b],"instances":{%b}}' % (scores, frequencies, instances)


def _written_once(share: Share) -> _Written:
    written: _Written = _written([share])
    share.written = written
    return written


def _of_ranks(found: Sequence[Share]) -> list[_Written]:
    instances: dict[str, list[Share]] = {}
    for share in found:
        instances.setdefault(share.seen.view.spec.instance_id, []).append(share)
    return [_written(shares) for shares in instances.values()]


def _written(shares: Sequence[Share]) -> _Written:
    """The ranks of one instance."""
    one = _Instance(0, 0, {}, 0, 0)
    scores: dict[int, int] = {}
    for share in shares:
        tokens, tiers = share.reach
        rank = share.seen.view.spec.dp_rank
        near, middle = tiers.get(Tier.GPU), tiers.get(Tier.CPU)
        # Everything is the last: this wire has no farther tier.
        gpu = 0 if near is None else near.cumulative
        cpu = gpu if middle is None else middle.cumulative
        if gpu:
            scores[rank] = gpu
        one.longest_matched = one.disk = max(one.disk, tokens)
        one.dp[rank] = tokens
        one.gpu, one.cpu = max(one.gpu, gpu), max(one.cpu, cpu)
    seen = shares[0].seen
    name = _encode(seen.view.spec.instance_id)
    return _Written(
        seen.view.spec.instance_id,
        b"%b:%b" % (name, _encode(scores)) if scores else b"",
        b"%b:%b" % (name, _encode(one)),
        one.gpu // seen.block_tokens,
    )


_NAMED: Final = (Tier.GPU, Tier.CPU, Tier.DISK)


def _frequencies(depths: list[int]) -> bytes:
    """For each block of the prompt how many have it, as the members of a list."""
    text = b""
    done = 0
    for shorter, depth in enumerate(sorted(depths)):
        text += b"%d," % (len(depths) - shorter) * (depth - done)
        done = depth
    return text[:-1]


# ---- shapes


def _answer(answered: tuple[bytes, Headers]) -> Response:
    body, headers = answered
    named = {name.decode(): value.decode() for name, value in headers}
    return Response(body, headers=named, media_type="application/json")


def _json(content: object, status: int = 200) -> Response:
    return Response(orjson.dumps(content), status, media_type="application/json")


def _responses(answer: object, *codes: ErrorCode) -> dict[int | str, dict[str, Any]]:
    by_status: dict[int | str, list[str]] = {}
    for code in dict.fromkeys((*_ERRORS, *codes)):
        by_status.setdefault(ERROR_RULES[code].status, []).append(
            f"`{code}`: {ERROR_RULES[code].title}"
        )
    return {200: {"model": answer, "description": "Answered."}} | {
        status: {"model": IndexerError, "description": "; ".join(texts)}
        for status, texts in sorted(by_status.items(), key=str)
    }


def _body(model: str, *, packed: bool = False) -> dict[str, Any]:
    """Bodies are decoded by the route itself; this publishes what they hold."""
    content: dict[str, Any] = {
        "application/json": {"schema": {"$ref": f"#/components/schemas/{model}"}}
    }
    described: dict[str, Any] = {"requestBody": {"required": True, "content": content}}
    if packed:
        content[PACKED_TYPE.decode()] = {"schema": {"type": "string", "format": "binary"}}
        described["parameters"] = packed_parameters(
            {
                "model": ("This, `modelname` or `model_name`.", 1, 512),
                "modelname": ("Likewise.", 1, 512),
                "model_name": ("Likewise; the answer is in its spelling.", 1, 512),
                "tenant_id": ("As in the body of JSON.", 0, 128),
                "routing_group": ("Likewise.", 0, 128),
                "instance_id": ("Likewise.", 1, 128),
                "block_size": ("Likewise, a number.", 1, 5),
                "additional_salt": ("Likewise.", 0, 512),
                "additionalsalt": ("The same.", 0, 512),
                "lora_name": ("Likewise.", 0, 512),
                "lora_id": ("Likewise, a number.", 1, 20),
                "cache_salt": ("Likewise.", 0, 512),
            }
        )
    return described
