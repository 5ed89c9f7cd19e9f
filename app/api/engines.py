"""`/v1/engines` and `/v1/doctor`: whose KV events are followed, and what is wrong with them."""

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Annotated, Any, Final

from fastapi import APIRouter, Path, Query, Request, Response

from app.api.declared import errors_of, list_errors, one_errors
from app.api.engine_schemas import (
    MAX_REPORTS,
    AttentionGroup,
    DoctorQuery,
    DoctorReport,
    EnginePage,
    EngineQuery,
    EngineRank,
    EngineRegister,
    EngineRegistered,
    EngineReport,
    EngineSocket,
    EngineView,
    FindingView,
    FrameTaken,
    InstanceId,
    MissingFrames,
    PushedFrame,
)
from app.contract.findings import Shape
from app.control.auth import require_tenant
from app.control.keys import Principal
from app.dependencies import Admin, EnginesReader, EventsWriter, ServicesDep
from app.engines.directory import EngineStatus
from app.engines.doctor import diagnose
from app.engines.intake import Registered, no_engine
from app.engines.registration import EngineKey, EngineSpec
from app.engines.service import KnownEngine
from app.engines.totals import EVENT_TYPES
from app.errors import ErrorCode, NexusError
from app.paging import decode_cursor, encode_cursor
from app.services import Services

FRAME_TYPES: Final = ("application/octet-stream", "application/msgpack")
ENGINE_SCHEMA: Final = "ContractEngineSpec"
_CURSOR_KIND: Final = "engines"
_US_PER_S: Final = 1_000_000
_SHAPE: Final = Shape(EngineSpec, "engine registration")

Instance = Annotated[InstanceId, Path()]


def engines_router() -> APIRouter:
    """The routes of engines, and of the doctor."""
    router = APIRouter(tags=["engines"])
    body = (ErrorCode.MISSING_FIELD, ErrorCode.UNKNOWN_FIELD, ErrorCode.INVALID_BODY)
    done = errors_of(
        *body,
        ErrorCode.INVALID_JSON,
        ErrorCode.TENANT_FORBIDDEN,
        ErrorCode.ENGINE_HOST_NOT_ALLOWED,
        ErrorCode.ENGINE_CONFLICT,
        ErrorCode.UNSUPPORTED_MEDIA_TYPE,
        ErrorCode.INDEX_AWAY,
    )
    done[200] = {"model": EngineRegistered, "description": "It was registered so, or replaced."}
    router.post(
        "/v1/engines",
        summary="Register an engine",
        status_code=201,
        response_model=EngineRegistered,
        responses=done,
        openapi_extra=_spec_body(),
    )(register_engine)
    router.get(
        "/v1/engines",
        summary="All engines",
        responses=list_errors()
        | errors_of(
            ErrorCode.UNKNOWN_FIELD,
            ErrorCode.INVALID_CURSOR,
            ErrorCode.TENANT_FORBIDDEN,
            ErrorCode.INDEX_AWAY,
        ),
    )(list_engines)
    router.delete(
        "/v1/engines/{instance_id}",
        summary="Forget an engine",
        status_code=204,
        responses=one_errors()
        | errors_of(ErrorCode.UNKNOWN_FIELD, ErrorCode.NOT_FOUND, ErrorCode.INDEX_AWAY),
    )(forget_engine)
    router.post(
        "/v1/engines/{instance_id}/events",
        summary="Push a frame of events",
        responses=errors_of(
            *body,
            ErrorCode.NOT_FOUND,
            ErrorCode.ENGINE_CONFLICT,
            ErrorCode.EVENTS_MISSING,
            ErrorCode.UNSUPPORTED_MEDIA_TYPE,
            ErrorCode.INDEX_AWAY,
        ),
        openapi_extra=_frame_body(),
    )(push_events)
    router.get(
        "/v1/doctor",
        summary="What keeps an engine's prefixes from being found",
        responses=errors_of(ErrorCode.UNKNOWN_FIELD, ErrorCode.INDEX_AWAY),
    )(examine)
    return router


async def register_engine(
    request: Request,
    response: Response,
    query: Annotated[EngineRegister, Query()],
    principal: Admin,
    services: ServicesDep,
) -> EngineRegistered:
    """Follow an engine's KV events from now on, here at once and on every replica within a second.

    The same registration again is 200 and changes nothing; another one for the same instance and
    rank is 409, unless `replace`.
    """
    _require_type(request, ("application/json",))
    spec = _SHAPE.accept(await request.body())
    for tenant in spec.tenants:
        require_tenant(principal, tenant)
    result = await registered(services, principal, spec, replace=query.replace)
    response.status_code = 201 if result is Registered.CREATED else 200
    return EngineRegistered(instance_id=spec.instance_id, dp_rank=spec.dp_rank, result=result)


async def registered(
    services: Services, principal: Principal, spec: EngineSpec, *, replace: bool = False
) -> Registered:
    """Register the engine for this key, and know its states at once."""
    before = services.engines.get(spec.key)
    result = await services.engine_intake.register(spec, replace=replace, tenants=principal.tenants)
    await services.backed_registry.follow(spec, None if before is None else before.spec)
    return result


async def forgotten(services: Services, principal: Principal, key: EngineKey) -> bool:
    """Forget it and its states; False when there is no such engine of this key's tenants."""
    before = services.engines.get(key)
    if not await services.engine_intake.forget(key, tenants=principal.tenants):
        return False
    await services.backed_registry.follow(None if before is None else before.spec)
    return True


async def list_engines(
    query: Annotated[EngineQuery, Query()], principal: EnginesReader, services: ServicesDep
) -> EnginePage:
    """The engines all of whose tenants the key has, and how each of them stands."""
    bound = {"model": query.model}
    after = None
    if query.cursor:
        after = EngineKey(*decode_cursor(_CURSOR_KIND, bound, query.cursor, tuple[str, int]))
    found = [
        engine
        for engine in services.engines.engines()
        if (after is None or engine.spec.key > after)
        and query.model in (None, engine.spec.model)
        and may_see(principal, engine)
    ]
    page = found[: query.page_size]
    more = len(found) > len(page)
    return EnginePage(
        items=[_view(status) for status in await statuses_of(services, principal, page)],
        next_cursor=encode_cursor(_CURSOR_KIND, bound, page[-1].spec.key) if more else None,
        forgotten=services.index_stats()["forgotten"],
    )


async def forget_engine(
    instance_id: Instance,
    query: Annotated[EngineRank, Query()],
    principal: Admin,
    services: ServicesDep,
) -> Response:
    """Its blocks leave the index, and its socket is closed. One rank, 0 unless it is named."""
    key = EngineKey(instance_id, query.dp_rank)
    if not await forgotten(services, principal, key):
        raise no_engine()
    return Response(status_code=204)


async def push_events(
    instance_id: Instance,
    request: Request,
    query: Annotated[PushedFrame, Query()],
    principal: EventsWriter,
    services: ServicesDep,
) -> FrameTaken:
    """One frame as the engine would publish it, for engines that are registered without an
    endpoint. Frames come in their order: one with a hole before it is 409, and
    `errors[0].value` says which frames are missing. The same frame again is a sign of life.
    """
    _require_type(request, FRAME_TYPES)
    key = EngineKey(instance_id, query.dp_rank)
    _seen(principal, services.engines.get(key))
    taken = await services.engine_intake.take(
        key,
        query.sequence,
        await request.body(),
        lost=query.lost,
        tenants=principal.tenants,
    )
    missing = None
    if taken.lost:
        missing = MissingFrames(first=query.sequence - taken.lost, last=query.sequence - 1)
    return FrameTaken(
        applied=taken.applied,
        repeated=taken.repeated,
        lost=taken.lost,
        missing=missing,
        epoch=taken.epoch,
        state=taken.state,
    )


async def examine(
    query: Annotated[DoctorQuery, Query()], principal: EnginesReader, services: ServicesDep
) -> DoctorReport:
    """Which preconditions fail, and what to do: of one engine, or of all those the key may see."""
    found = [
        engine
        for engine in services.engines.engines()
        if query.engine in (None, engine.spec.instance_id)
        and query.dp_rank in (None, engine.spec.dp_rank)
        and may_see(principal, engine)
    ]
    now_us = services.clock.now_us()
    statuses = await statuses_of(services, principal, found[:MAX_REPORTS])
    forgotten = services.index_stats()["forgotten"]
    reports = [_report(status, now_us, forgotten) for status in statuses]
    if not found and query.engine is not None:
        nothing = diagnose(None, now_us)
        reports = [
            EngineReport(
                instance_id=query.engine,
                dp_rank=query.dp_rank,
                state=None,
                ok=False,
                findings=[FindingView.model_validate(one) for one in nothing.findings],
                passed=[],
            )
        ]
    return DoctorReport(
        ok=all(report.ok for report in reports),
        reports=reports,
        left_off=max(0, len(found) - MAX_REPORTS),
    )


async def statuses_of(
    services: Services, principal: Principal, engines: Sequence[KnownEngine]
) -> list[EngineStatus]:
    """How they stand; without those that became others' meanwhile."""
    found = await services.engine_intake.statuses([engine.spec.key for engine in engines])
    return [status for status in found if may_see(principal, status)]


def _report(status: EngineStatus, now_us: int, forgotten: int) -> EngineReport:
    found = diagnose(status, now_us, forgotten)
    return EngineReport(
        instance_id=status.spec.instance_id,
        dp_rank=status.spec.dp_rank,
        state=status.state,
        ok=found.ok,
        findings=[FindingView.model_validate(one) for one in found.findings],
        passed=list(found.passed),
    )


def _view(status: EngineStatus) -> EngineView:
    spec, view = status.spec, status.view
    tallies = view.tallies
    return EngineView(
        instance_id=spec.instance_id,
        dp_rank=spec.dp_rank,
        kind=spec.kind,
        model=spec.model,
        revision=spec.revision,
        layout=spec.layout,
        block_tokens=spec.block_tokens,
        tenants=list(spec.tenants),
        salts=len(spec.salts),
        pooled=spec.pooled,
        endpoint=spec.endpoint,
        replay_endpoint=spec.replay_endpoint,
        attach=spec.attach,
        topic=spec.topic,
        node=spec.node,
        groups=[AttentionGroup.model_validate(group) for group in spec.groups],
        registered_at=status.registered_at,
        state=status.state,
        epoch=view.epoch,
        last_sequence=view.last_sequence,
        lag_us=view.lag_us,
        last_frame_at=_moment(view.last_frame_at_us),
        last_event_at=_moment(view.last_event_at_us),
        gaps=view.gaps,
        frames=view.frames,
        lost_frames=view.lost_frames,
        lost_events=view.lost_events,
        refused_frames=view.refused_frames,
        last_refusal=view.last_refusal,
        events={EVENT_TYPES[name]: count for name, count in view.events.items()},
        skipped_types=view.skipped_types,
        unknown_fields=view.unknown_fields,
        blocks=view.blocks,
        quarantined=view.quarantined,
        left_out={
            "unattributed": tallies.unattributed,
            "unplaced": tallies.unplaced,
            "limits": tallies.beyond_limits,
            "quarantine": view.quarantine_dropped,
            "unclear": tallies.unclear,
            **view.left_out,
        },
        socket=None if status.source is None else EngineSocket.model_validate(status.source),
    )


def _moment(at_us: int | None) -> datetime | None:
    return None if at_us is None else datetime.fromtimestamp(at_us / _US_PER_S, UTC)


def may_see(principal: Principal, engine: KnownEngine | EngineStatus) -> bool:
    """Whether all its tenants are the key's."""
    return all(principal.may_use(tenant) for tenant in engine.spec.tenants)


def _seen(principal: Principal, engine: KnownEngine | None) -> KnownEngine:
    if engine is None or not may_see(principal, engine):
        raise no_engine()
    return engine


def _require_type(request: Request, types: tuple[str, ...]) -> None:
    given = request.headers.get("content-type", types[0]).partition(";")[0].strip().lower()
    if given not in types:
        raise NexusError(
            ErrorCode.UNSUPPORTED_MEDIA_TYPE, f"Send the body as one of: {', '.join(types)}"
        )


def _spec_body() -> dict[str, Any]:
    """The body is decoded by the route itself; this publishes what it holds."""
    reference = {"$ref": f"#/components/schemas/{ENGINE_SCHEMA}"}
    return {
        "requestBody": {"required": True, "content": {"application/json": {"schema": reference}}}
    }


def _frame_body() -> dict[str, Any]:
    schema = {
        "type": "string",
        "format": "binary",
        "description": "msgpack: `[seconds, events, data parallel rank]`.",
    }
    content = {media_type: {"schema": schema} for media_type in FRAME_TYPES}
    return {"requestBody": {"required": True, "content": content}}
