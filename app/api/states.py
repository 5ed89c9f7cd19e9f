"""`/v1/states`: what engines and operators register, list and delete."""

from typing import Annotated, Any
from uuid import UUID

import msgspec
import orjson
from fastapi import APIRouter, Query, Request, Response

from app.api.declared import list_errors, one_errors, register_errors
from app.api.state_schemas import (
    RegisterProblem,
    RegisterResults,
    StateBatch,
    StateDetail,
    StatePage,
    StateQuery,
    StateView,
)
from app.control.auth import require_tenant
from app.control.keys import Principal
from app.dependencies import ServicesDep, StatesReader, StatesWriter
from app.errors import ErrorCode, NexusError
from app.index.registered import token_array
from app.index.registry import stored_registration, with_tokens
from app.index.repository import StateFilter, StoredState
from app.lifecycle.register import ItemResult
from app.paging import decode_cursor, encode_cursor
from app.problem import MEDIA_TYPE, problem_for

_CURSOR_KIND = "states"
_MULTI_STATUS = 207
# Of each entry of a batch that may have a thousand.
_MAX_FINDINGS = 20


def states_router() -> APIRouter:
    """The four routes of states."""
    router = APIRouter(prefix="/v1/states", tags=["states"])
    router.post(
        "",
        summary="Register up to 1,000 states",
        response_model=RegisterResults,
        responses=_register_responses(),
        openapi_extra=_batch_body(),
    )(register_states)
    router.get("", summary="List states", responses=list_errors())(list_states)
    router.get("/{state_id}", summary="One state", responses=one_errors())(get_state)
    router.delete("/{state_id}", summary="Delete a state", status_code=204, responses=one_errors())(
        delete_state
    )
    return router


async def register_states(
    request: Request, principal: StatesWriter, services: ServicesDep
) -> Response:
    """Register states. A higher generation takes the place of a lower one; an equal one with the
    same content changes nothing; a lower one, or other content, is a conflict.

    The answer's status is that of its entries where all have the same, else 207.
    """
    _require_json(request)
    results = await services.intake.register(await request.body(), principal)
    statuses = {result.status for result in results}
    status = statuses.pop() if len(statuses) == 1 else _MULTI_STATUS
    listed = [_result(index, result) for index, result in enumerate(results)]
    if status < 400:
        return Response(orjson.dumps({"results": listed}), status, media_type="application/json")
    first = next(result.error for result in results if result.error is not None)
    _, _, problem = problem_for(
        NexusError(first.code, f"no entry was registered; the first: {first.message}"),
        request.scope,
    )
    body = orjson.dumps(orjson.loads(problem) | {"results": listed, "status": status})
    return Response(body, status, media_type=MEDIA_TYPE)


async def list_states(
    query: Annotated[StateQuery, Query()], principal: StatesReader, services: ServicesDep
) -> StatePage:
    """Live states by ascending id."""
    if query.tenant is not None:
        require_tenant(principal, query.tenant)
    after = (
        decode_cursor(_CURSOR_KIND, query.filters(), query.cursor, UUID)
        if query.cursor is not None
        else None
    )
    found = await services.registry.page(_filter(query, principal), after, query.page_size + 1)
    page = found[: query.page_size]
    more = len(found) > len(page)
    return StatePage(
        items=[StateView.model_validate(state, from_attributes=True) for state in page],
        next_cursor=encode_cursor(_CURSOR_KIND, query.filters(), page[-1].state_id)
        if more
        else None,
    )


async def get_state(state_id: UUID, principal: StatesReader, services: ServicesDep) -> StateDetail:
    """The state as it was registered, its tokens included."""
    stored = await services.registry.get(state_id)
    if stored is None or not principal.may_use(stored.tenant):
        raise _no_state()
    return _detail(stored)


async def delete_state(state_id: UUID, principal: StatesWriter, services: ServicesDep) -> Response:
    """Delete the state; its generation stays behind, so that it cannot come back by a retry."""
    if not await services.registry.delete(state_id, principal.tenants):
        raise _no_state()
    services.metrics.state_deletions.inc()
    return Response(status_code=204)


def _require_json(request: Request) -> None:
    media_type = request.headers.get("content-type", "application/json").partition(";")[0]
    if media_type.strip().lower() != "application/json":
        raise NexusError(
            ErrorCode.UNSUPPORTED_MEDIA_TYPE, "send the body as Content-Type: application/json"
        )


def _no_state() -> NexusError:
    return NexusError(ErrorCode.NOT_FOUND, "there is no such state")


def _filter(query: StateQuery, principal: Principal) -> StateFilter:
    tenants = principal.tenants
    if query.tenant is not None:
        tenants = frozenset({query.tenant})
    return StateFilter(
        tenants=None if tenants is None else tuple(sorted(tenants)),
        namespace=query.namespace,
        model=query.model,
        engine_family=query.engine_family,
        semantic_type=query.semantic_type,
        tier=query.tier,
        entry_id=query.entry_id,
    )


def _detail(stored: StoredState) -> StateDetail:
    assert stored.tokens is not None
    whole = with_tokens(stored_registration(stored), token_array(stored.tokens).tolist())
    view = StateView.model_validate(stored, from_attributes=True)
    return StateDetail(**view.model_dump(), registration=msgspec.to_builtins(whole))


def _result(index: int, result: ItemResult) -> dict[str, Any]:
    identity = result.registration.entry.identity if result.registration else None
    registered, error = result.registered, result.error
    return {
        "index": index,
        "status": result.status,
        "result": registered.status if registered else "rejected",
        "tenant": identity.key.tenant if identity else None,
        "entry_id": identity.entry_id if identity else None,
        "state_id": str(registered.state_id) if registered else None,
        "generation": registered.generation if registered else None,
        "error": None
        if error is None
        else {
            "code": error.code,
            "detail": error.message,
            "errors": [
                {"pointer": found.pointer, "code": found.code, "detail": found.detail}
                for found in error.errors[:_MAX_FINDINGS]
            ],
        },
    }


def _register_responses() -> dict[int | str, dict[str, Any]]:
    """The whole batch refused is a problem of its own; its entries refused is one with results."""
    done = {
        200: "Every entry is stored already, or took the place of a lower generation.",
        201: "Every entry is new.",
        207: "Entries differ in their result.",
    }
    responses: dict[int | str, dict[str, Any]] = {
        status: {"model": RegisterResults, "description": text} for status, text in done.items()
    }
    responses |= register_errors()
    for status in (400, 403, 409, 422):
        reference = {"$ref": f"#/components/schemas/{RegisterProblem.__name__}"}
        content = responses[status]["content"][MEDIA_TYPE]
        content["schema"] = {"anyOf": [content["schema"], reference]}
    return responses


def _batch_body() -> dict[str, Any]:
    """Bodies are decoded by the route itself; this publishes what they hold."""
    reference = {"$ref": f"#/components/schemas/{StateBatch.__name__}"}
    return {
        "requestBody": {"required": True, "content": {"application/json": {"schema": reference}}}
    }
