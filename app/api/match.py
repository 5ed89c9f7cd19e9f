"""`POST /v1/match`: which engines have how much of these prompts."""

from collections.abc import Iterable
from typing import Any, Final

import msgspec
from fastapi import APIRouter, Request, Response

from app.api.declared import errors_of
from app.api.match_schemas import MatchQueries, MatchResults
from app.api.match_states import States, together
from app.api.match_wire import PACKED_TYPE, Asked, decode_json, decode_packed
from app.control.auth import require_tenant
from app.control.keys import Principal
from app.dependencies import ServicesDep, StatesReader
from app.engines.answers import Match
from app.engines.matching import EngineMatcher
from app.engines.slices import Slices
from app.errors import ErrorCode, NexusError

MATCH_PATH: Final = "/v1/match"
JSON_TYPE: Final = b"application/json"
# To read it, in hashed tokens.
_BYTE_COST: Final = 4
_encode = msgspec.json.Encoder().encode


def match_router() -> APIRouter:
    """The route as it is published; see `app.api.queries` for how requests reach it."""
    router = APIRouter(tags=["match"])
    router.post(
        MATCH_PATH,
        summary="Which engines have how much of these prompts",
        response_model=MatchResults,
        responses=errors_of(
            ErrorCode.MISSING_FIELD,
            ErrorCode.UNKNOWN_FIELD,
            ErrorCode.INVALID_JSON,
            ErrorCode.INVALID_BODY,
            ErrorCode.TENANT_FORBIDDEN,
            ErrorCode.QUERY_TOO_LARGE,
            ErrorCode.UNSUPPORTED_MEDIA_TYPE,
        ),
        openapi_extra=_bodies(),
    )(match_prompts)
    return router


async def match_prompts(
    request: Request, principal: StatesReader, services: ServicesDep
) -> Response:
    """Every location that has a usable prefix of each prompt, learnt from the engines' own events,
    with the freshness of what is known of it. Nothing is changed.

    Send the queries as JSON; or one prompt's token ids as little-endian u32 in
    `application/octet-stream`, with the query's other fields in the URL.
    """
    body = await answer_match(
        States(services.index, services.sync.freshness),
        services.matcher,
        principal,
        media_type_of(request.scope["headers"]),
        request.scope["query_string"],
        await request.body(),
        services.clock.now_us(),
    )
    return Response(body, media_type="application/json")


async def answer_match(  # noqa: PLR0917 - a request's parts in their order
    states: States,
    matcher: EngineMatcher,
    principal: Principal,
    media_type: bytes,
    query: bytes,
    body: bytes,
    now_us: int,
) -> bytes:
    """The answer's body; others have a turn where it takes long. Raises NexusError."""
    asked = (
        [decode_packed(query, body)]
        if media_type == PACKED_TYPE
        else _json(media_type, query, body)
    )
    if principal.tenants is not None:
        for one in asked:
            require_tenant(principal, one.wanted.tenant)
    slices = Slices()
    await slices.spend(_BYTE_COST * len(body))
    results: list[bytes] = []
    registered: list[bytes] = []
    for one in asked:
        found = await _matched(matcher, one, now_us, slices)
        beside = states.matched(one, now_us)
        registered.append(_encode(beside))
        results.append(_encode(found if beside is None else together(found, beside)))
    # As MatchResults has it; in one piece it would take long to encode.
    body = b'{"results":[%s]' % b",".join(results)
    if any(one.states is not None for one in asked):
        return body + b',"states":[%s]}' % b",".join(registered)
    return body + b"}"


async def _matched(matcher: EngineMatcher, asked: Asked, now_us: int, slices: Slices) -> Match:
    """The answer to one query."""
    wanted = asked.wanted
    if asked.tokens is None:
        return await matcher.match_names_in_slices(
            wanted, asked.names or (), slices, now_us=now_us, block_tokens=asked.block_tokens
        )
    return await matcher.match_in_slices(
        wanted, asked.tokens, slices, now_us=now_us, extra_keys=asked.extra_keys
    )


def media_type_of(headers: Iterable[tuple[bytes, bytes]]) -> bytes:
    """In lower case, without parameters; JSON where there is none."""
    for name, value in headers:
        if name == b"content-type":
            return value if value == JSON_TYPE else value.partition(b";")[0].strip().lower()
    return JSON_TYPE


def _json(media_type: bytes, query: bytes, body: bytes) -> list[Asked]:
    if media_type != JSON_TYPE:
        raise NexusError(
            ErrorCode.UNSUPPORTED_MEDIA_TYPE,
            "Send queries as Content-Type: application/json, or packed token ids as "
            "application/octet-stream",
        )
    if query:
        raise NexusError(
            ErrorCode.INVALID_FIELD, "/query: the URL has fields of packed token ids only"
        )
    return decode_json(body)


def packed_parameters(texts: dict[str, tuple[str, int, int]]) -> list[dict[str, Any]]:
    """What stands in the URL of a packed body: name -> what it is, least and most characters."""
    return [
        {
            "name": name,
            "in": "query",
            "required": False,
            "description": f"With a packed body only. {text}",
            "schema": {
                "type": "string",
                "minLength": least,
                "maxLength": most,
                "pattern": r"^[^\x00]*$",
            },
        }
        for name, (text, least, most) in texts.items()
    ]


def _bodies() -> dict[str, Any]:
    """Bodies are decoded by the route itself; this publishes what they hold."""
    reference = {"$ref": f"#/components/schemas/{MatchQueries.__name__}"}
    return {
        "parameters": packed_parameters(
            {
                "tenant": ("Required there: whose blocks may match.", 1, 128),
                "model": ("Required there: as the engines are registered.", 1, 512),
                "revision": ("Only engines of this revision.", 0, 512),
                "layout": ("Only engines of this layout.", 0, 512),
                "instance_id": ("Only this engine instance.", 1, 512),
                "lora": ("The adapter's name.", 1, 512),
                "cache_salt": ("The salt that the request to the engine will have.", 1, 512),
            }
        ),
        "requestBody": {
            "required": True,
            "content": {
                "application/json": {"schema": reference},
                PACKED_TYPE.decode(): {"schema": {"type": "string", "format": "binary"}},
            },
        },
    }
