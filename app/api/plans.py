"""`/v1/plans`: whether reuse is worth it for a request, from where, by which path, how surely."""

import asyncio
from datetime import UTC, datetime, timedelta
from typing import Annotated, Any, Final, Literal
from uuid import UUID

import msgspec
from fastapi import APIRouter, Query, Request, Response

from app.api.declared import errors_of
from app.api.plan_schemas import PlanRequest, PlanView
from app.api.plan_wire import decode_plan
from app.api.policy_labels import policy_of, policy_of_label
from app.control.auth import require_scope
from app.control.keys import Scope
from app.decisions.record import DecisionKind
from app.decisions.repository import DecisionRepository
from app.dependencies import DecisionsReader, PlanMaker, ServicesDep
from app.errors import ErrorCode, NexusError
from app.lifecycle.caller import Caller, Refused
from app.lifecycle.plan import Planned
from app.lifecycle.plan_again import planned_again
from app.lifecycle.plan_record import not_rerunnable, recorded_of
from app.lifecycle.plan_told import ToldPlan, start_by_us
from app.planner.links import Links
from app.request_context import trace_of
from app.services import Services
from app.topology.document import load_topology
from app.topology.topology_provider import topology_of

PLANS_PATH: Final = "/v1/plans"
_US: Final = 1_000_000
_encode = msgspec.json.Encoder().encode


def plans_router() -> APIRouter:
    """Making a plan needs the scope `bridge`, explaining one `decisions:read`."""
    router = APIRouter(prefix=PLANS_PATH, tags=["plans"])
    body = {"$ref": f"#/components/schemas/{PlanRequest.__name__}"}
    router.post(
        "",
        summary="Whether reuse is worth it, from where and at which engine",
        response_model=PlanView,
        responses=errors_of(
            ErrorCode.MISSING_FIELD,
            ErrorCode.UNKNOWN_FIELD,
            ErrorCode.INVALID_JSON,
            ErrorCode.INVALID_BODY,
            ErrorCode.TENANT_FORBIDDEN,
            ErrorCode.NOT_FOUND,
            ErrorCode.QUERY_TOO_LARGE,
            ErrorCode.NO_USABLE_TARGET,
        ),
        openapi_extra={
            "requestBody": {"required": True, "content": {"application/json": {"schema": body}}}
        },
    )(make_plan)
    router.get(
        "/{decision_id:uuid}",
        summary="A plan explained from its record",
        response_model=PlanView,
        responses=errors_of(ErrorCode.UNKNOWN_FIELD, ErrorCode.NOT_FOUND, ErrorCode.NOT_RERUNNABLE),
    )(explain_plan)
    return router


async def make_plan(request: Request, principal: PlanMaker, services: ServicesDep) -> Response:
    """Prices every target and every source that is proven to hold the prompt's state, and takes
    what has the first token soonest. Nothing is moved: the caller acts on it, and reports what came
    of it with `POST /v1/decisions/{decision_id}/outcome`.
    """
    started_us = services.clock.monotonic_us()
    asked = decode_plan(await request.body())
    dry_run = None
    if asked.policy is not None:
        require_scope(principal, Scope.POLICIES_READ)
        dry_run = await policy_of(services, asked.policy)
    trace = trace_of(request.scope["headers"])
    caller = Caller(principal, trace.trace_id if trace else None, started_us)
    lost = services.keeping.lost_rows
    planned = await services.planning.run(
        asked.query, caller, services.sync.freshness(), dry_run=dry_run, full=asked.full
    )
    if isinstance(planned, Refused):
        raise planned.error
    response = Response(answer_of(planned), media_type="application/json")
    if planned.decision_id is not None:
        kept = await services.keeping.kept(DecisionKind.PLAN, planned.decision_id, lost_before=lost)
        response.headers["x-nexuskv-decision-id"] = str(planned.decision_id)
        if kept is not None:
            response.headers["x-nexuskv-durability"] = kept.value
    return response


async def explain_plan(
    decision_id: UUID,
    principal: DecisionsReader,
    services: ServicesDep,
    explain: Annotated[Literal["brief", "full"], Query()] = "brief",
) -> Response:
    """The plan made again from what was recorded of it: the same question under the same policy is
    the same plan, whatever profiles, loads and caches are now.
    """
    planned = await plan_explained(services, decision_id, principal.tenants, full=explain == "full")
    return Response(answer_of(planned), media_type="application/json")


async def plan_explained(
    services: Services, decision_id: UUID, tenants: frozenset[str] | None, *, full: bool
) -> Planned:
    """Raises NOT_FOUND, NOT_RERUNNABLE."""
    async with services.database.read() as session:
        found = await DecisionRepository(session).history(decision_id, tenants=tenants)
    one = found.decision
    recorded = recorded_of(one)
    active = await policy_of_label(services, one.policy_version)
    links = await _links(services, recorded.topology)
    return planned_again(one, recorded, active, links, full=full)


async def _links(services: Services, version: int | None) -> Links | None:
    """Of a version of the topology; None where it is not stored, or there was none."""
    if version is None:
        return None
    current = services.topology.current
    if current.version == version:
        return current.links
    found = await services.topology_store.get(version)
    if found is None:
        return None
    stored, _ = found
    try:
        document = await asyncio.to_thread(load_topology, stored.document)
    except NexusError as error:
        why = f"this build cannot read version {version} of the topology"
        raise not_rerunnable(why, error.message) from error
    return topology_of(document, version).links


def answer_of(planned: Planned) -> bytes:
    """The body of an answer, as PlanView publishes it."""
    return _encode(plan_view(planned))


def plan_view(planned: Planned) -> dict[str, Any]:
    """The answer, of parts that msgspec encodes."""
    told: ToldPlan = planned.told
    made = datetime.fromtimestamp(planned.made_us / _US, UTC)
    fields = {name: getattr(told, name) for name in told.__struct_fields__}
    return {
        "decision_id": planned.decision_id,
        "made_at": made,
        "policy_version": planned.policy_version,
        "topology_version": planned.topology_version,
        "engines": planned.engines,
        "states": planned.states,
        "start_by": made + timedelta(microseconds=start_by_us(told.chosen)),
        "ready_by": made + timedelta(microseconds=told.chosen.total_us),
        **fields,
    }
