"""`GET /indexer/workers`: the engines of a key's tenants, as clients of indexers know workers."""

import asyncio
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Final

import msgspec
from fastapi import Query, Response

from app.api.engines import may_see, statuses_of
from app.api.indexer_schemas import IndexerWorkersQuery
from app.api.indexer_wire import DEFAULT, agreed, is_number
from app.control.keys import Principal
from app.dependencies import ServicesDep, StatesReader
from app.engines.doctor import Severity, diagnose
from app.engines.plans import KnownView
from app.engines.registration import EngineKey
from app.engines.views import ViewState
from app.services import Services

# A worker has the worst status of its listeners. Nothing is ever paused here.
_WORST: Final = ("failed", "pending", "active")
_STATUS: Final = {
    ViewState.PENDING: "pending",
    ViewState.LIVE: "active",
    ViewState.UNKNOWN: "failed",
    ViewState.STALE: "failed",
}
_SEVERITY: Final = tuple(Severity)
# Looking into one engine walks over its places: so many, then others have a turn.
_AT_A_TIME: Final = 64
_US_PER_S: Final = 1_000_000
_encode = msgspec.json.Encoder().encode


async def list_workers(
    principal: StatesReader,
    services: ServicesDep,
    query: Annotated[IndexerWorkersQuery, Query()],
) -> Response:
    """One entry an instance, with its ranks; an empty list where there is none.

    `pending`: nothing was told yet. `active`: everything that it told is known. `failed`: it may
    hold more than is known; `last_error` says why, as `/v1/doctor` does.
    """
    named = query.model_dump(include={"model", "modelname", "model_name"})
    wanted = agreed(named)
    # Says whether the index's writer is away, which views of it do not.
    services.engines.engines()
    found: dict[tuple[str, str, str], list[KnownView]] = {}
    for view in services.engines.views():
        spec = view.spec
        group = spec.layout.removeprefix("routing_group=") or DEFAULT
        if (
            wanted in (None, spec.model)
            and query.routing_group in (None, group)
            and may_see(principal, view)
        ):
            found.setdefault((spec.instance_id, spec.model, group), []).append(view)
    now_us = services.clock.now_us()
    stale_us = round(services.settings.engine_stale_s * _US_PER_S)
    views = [view for each in found.values() for view in each]
    states = {view.spec.key: view.state_at(now_us, stale_us) for view in views}
    unwell = [view for view in views if states[view.spec.key] is not ViewState.LIVE]
    errors = await _errors(services, principal, unwell, now_us)
    workers = [_worker(*key, each, states, errors) for key, each in sorted(found.items())]
    return Response(_encode(workers), media_type="application/json")


async def _errors(
    services: Services, principal: Principal, views: Sequence[KnownView], now_us: int
) -> dict[EngineKey, str]:
    """What is worst with each, in the doctor's words; without those with which nothing is."""
    found: dict[EngineKey, str] = {}
    for at in range(0, len(views), _AT_A_TIME):
        for status in await statuses_of(services, principal, views[at : at + _AT_A_TIME]):
            findings = diagnose(status, now_us).findings
            if findings:
                worst = min(findings, key=lambda finding: _SEVERITY.index(finding.severity))
                found[status.spec.key] = f"{worst.check}: {worst.what}"
        await asyncio.sleep(0)
    return found


def _worker(  # noqa: PLR0917 - what names it, then what is known of it
    instance_id: str,
    model: str,
    group: str,
    views: Sequence[KnownView],
    states: Mapping[EngineKey, ViewState],
    errors: Mapping[EngineKey, str],
) -> dict[str, Any]:
    listeners: dict[str, dict[str, Any]] = {}
    for view in sorted(views, key=lambda view: view.spec.dp_rank):
        key = view.spec.key
        one = {"endpoint": view.spec.endpoint, "status": _STATUS[states[key]]}
        if key in errors:
            one["last_error"] = errors[key]
        listeners[str(key.dp_rank)] = one
    statuses = {one["status"] for one in listeners.values()}
    pushed = all(view.spec.endpoint is None for view in views)
    return {
        "instance_id": int(instance_id) if is_number(instance_id) else instance_id,
        "source": "push" if pushed else "zmq",
        "status": next(status for status in _WORST if status in statuses),
        "model_name": model,
        "routing_group": group,
        "block_size": views[0].spec.block_tokens,
        "endpoints": {rank: one["endpoint"] for rank, one in listeners.items()},
        "listeners": listeners,
    }
