"""`/v1/workers` and `/v1/worker-tokens`: who moves bytes, and what callers may ask of them."""

from datetime import UTC, datetime
from typing import Annotated, Any, Final

import msgspec
from fastapi import APIRouter, Path, Request, Response

from app.api.declared import heartbeat_errors, one_errors, plain_errors, token_errors
from app.api.worker_access import WorkerAccess
from app.api.worker_schemas import (
    HeartbeatTaken,
    IssuedDirection,
    LoadView,
    TokenRequest,
    WorkerList,
    WorkerName,
    WorkerToken,
    WorkerView,
)
from app.contract.findings import Shape
from app.control.auth import require_tenant
from app.dependencies import Admin, ServicesDep, WorkersReader, WorkerTokenIssuer
from app.errors import ErrorCode, FieldError, NexusError
from app.topology.directory import Worker
from app.topology.intake import MAX_WORKERS
from app.transfer.tokens import Direction, Grant
from app.transfer.wire import Heartbeat

HEARTBEAT_SCHEMA: Final = "WorkerHeartbeat"
_US_PER_S: Final = 1_000_000
_SHAPE: Final = Shape(Heartbeat, "heartbeat")
_NEEDS_PAYLOAD: Final = frozenset(
    {
        IssuedDirection.PUT_PAYLOAD,
        IssuedDirection.GET_PAYLOAD,
        IssuedDirection.DELETE_PAYLOAD,
        IssuedDirection.TRANSFER,
        IssuedDirection.FETCH,
    }
)
_NEEDS_SINK: Final = frozenset({IssuedDirection.READ_SINK, IssuedDirection.FINISH_SINK})
_FETCH: Final = frozenset({IssuedDirection.FETCH})
_NONE: Final[frozenset[IssuedDirection]] = frozenset()
_TAKES_SINK: Final = _NEEDS_SINK | _FETCH | {IssuedDirection.TRANSFER}

Name = Annotated[WorkerName, Path()]


def workers_router(access: WorkerAccess) -> APIRouter:
    """The five routes of workers."""
    router = APIRouter(tags=["workers"])

    async def put_worker(request: Request, name: Name, services: ServicesDep) -> Response:
        """Registration and sign of life in one; a worker sends it once a second.

        Authorised by the worker's own token, or a key of scope `admin`. A name stays with the
        process that has it until that is silent, or until a new one starts at the same URL.
        """
        await access.authorise_heartbeat(request.scope, name)
        heartbeat = _SHAPE.accept(await request.body())
        answer = await services.worker_intake.heartbeat(name, heartbeat)
        return Response(msgspec.json.encode(answer), media_type="application/json")

    async def issue_token(
        body: TokenRequest, principal: WorkerTokenIssuer, services: ServicesDep
    ) -> WorkerToken:
        """A short-lived token that allows one thing on one worker."""
        keys = access.configured_keys()
        require_tenant(principal, body.tenant)
        _check_ids(body)
        worker = _found(services.workers.get(body.worker))
        now_s = access.now_s()
        return WorkerToken(
            token=keys.sign(_grant(body, worker), now_s=now_s, ttl_s=body.ttl_s),
            expires_at=datetime.fromtimestamp(now_s + body.ttl_s, UTC),
            url=worker.url,
            data_address=worker.data_address,
        )

    router.get("/v1/workers", summary="All workers", responses=plain_errors())(list_workers)
    router.get("/v1/workers/{name}", summary="One worker", responses=one_errors())(get_worker)
    router.put(
        "/v1/workers/{name}",
        summary="Register a worker, or say that it lives",
        response_model=HeartbeatTaken,
        responses=heartbeat_errors(),
        openapi_extra=_heartbeat_body(),
    )(put_worker)
    router.delete(
        "/v1/workers/{name}", summary="Forget a worker", status_code=204, responses=one_errors()
    )(delete_worker)
    router.post(
        "/v1/worker-tokens",
        summary="A token for a worker",
        status_code=201,
        responses=token_errors(),
    )(issue_token)
    return router


async def list_workers(_: WorkersReader, services: ServicesDep) -> WorkerList:
    """Every worker that has registered and was not forgotten, the silent ones too."""
    workers = services.workers.workers()[:MAX_WORKERS]
    return WorkerList(items=[_view(worker) for worker in workers])


async def get_worker(name: Name, _: WorkersReader, services: ServicesDep) -> WorkerView:
    """The worker as it was last heard of."""
    return _view(_found(services.workers.get(name)))


async def delete_worker(name: Name, _: Admin, services: ServicesDep) -> Response:
    """Give up the name. A process that still has it registers again with its next heartbeat."""
    if not await services.worker_intake.forget(name):
        raise _no_worker()
    return Response(status_code=204)


def _view(worker: Worker) -> WorkerView:
    return WorkerView(
        name=worker.name,
        available=worker.available,
        instance_id=worker.instance_id,
        instance_since=datetime.fromtimestamp(worker.instance_since_us / _US_PER_S, UTC),
        heartbeat_age_us=worker.heartbeat_age_us,
        url=worker.url,
        data_address=worker.data_address,
        backends=list(worker.backends),
        tiers=list(worker.tiers),
        load=LoadView.model_validate(worker.load),
    )


def _found(worker: Worker | None) -> Worker:
    if worker is None:
        raise _no_worker()
    return worker


def _no_worker() -> NexusError:
    return NexusError(
        ErrorCode.NOT_FOUND, "there is no such worker; GET /v1/workers lists those there are"
    )


def _grant(body: TokenRequest, worker: Worker) -> Grant:
    return Grant(
        worker=body.worker,
        tenant=body.tenant,
        direction=Direction(body.direction.value),
        payload_id=body.payload_id or "",
        sink_id=body.sink_id or "",
        target_worker=body.target_worker or "",
        target_payload_id=body.target_payload_id or "",
        # From the directory: it is what a worker that pulls will connect to.
        data_address=worker.data_address if body.direction in _FETCH else "",
    )


def _check_ids(body: TokenRequest) -> None:
    """What a direction is bound to is given, and nothing else."""
    rules = (
        ("payload_id", body.payload_id, _NEEDS_PAYLOAD, _NEEDS_PAYLOAD),
        ("sink_id", body.sink_id, _NEEDS_SINK, _TAKES_SINK),
        ("target_worker", body.target_worker, _FETCH, _FETCH),
        ("target_payload_id", body.target_payload_id, _NONE, _FETCH),
    )
    found = []
    for field, value, needs, takes in rules:
        if value is None and body.direction in needs:
            detail = f"{body.direction} needs it"
            found.append(FieldError(f"/{field}", ErrorCode.MISSING_FIELD, detail))
        elif value is not None and body.direction not in takes:
            detail = f"{body.direction} takes none"
            found.append(FieldError(f"/{field}", ErrorCode.INVALID_FIELD, detail))
    if body.direction in _FETCH and (body.sink_id is None) == (body.target_payload_id is None):
        code = ErrorCode.MISSING_FIELD if body.sink_id is None else ErrorCode.INVALID_FIELD
        found.append(FieldError("/sink_id", code, "give either sink_id or target_payload_id"))
    if found:
        first = found[0]
        raise NexusError(first.code, f"{first.pointer}: {first.detail}", errors=found)


def _heartbeat_body() -> dict[str, Any]:
    """The body is decoded by the route itself; this publishes what it holds."""
    reference = {"$ref": f"#/components/schemas/{HEARTBEAT_SCHEMA}"}
    return {
        "requestBody": {"required": True, "content": {"application/json": {"schema": reference}}}
    }
