"""The URL map: every route of the service but the bridge's, which are in `app.bridge.endpoints`."""

from fastapi import FastAPI

from app.api.calibration import calibration_router
from app.api.decisions import decisions_router
from app.api.engines import engines_router
from app.api.indexer import indexer_router
from app.api.match import match_router
from app.api.plans import plans_router
from app.api.policies import policies_router
from app.api.prefetches import prefetches_router
from app.api.profiles import profiles_router
from app.api.states import states_router
from app.api.topology import topology_router
from app.api.transfers import transfers_router
from app.api.worker_access import WorkerAccess
from app.api.workers import workers_router
from app.control.health import health_router
from app.services import Services


def include_routers(app: FastAPI, services: Services) -> None:
    # /livez, /readyz, /metrics
    app.include_router(health_router(services.probe, services.metrics))
    # /v1/states
    app.include_router(states_router())
    # /v1/policies, /v1/quotas
    app.include_router(policies_router())
    # /v1/plans
    app.include_router(plans_router())
    # /v1/profiles, /v1/topology, /v1/calibration: what plans are priced by
    app.include_router(profiles_router())
    app.include_router(topology_router())
    app.include_router(calibration_router())
    # /v1/decisions
    app.include_router(decisions_router())
    # /v1/transfers
    app.include_router(transfers_router())
    # /v1/prefetches
    app.include_router(prefetches_router())
    # /v1/workers, /v1/worker-tokens
    app.include_router(
        workers_router(WorkerAccess(services.access, services.worker_keys, services.clock))
    )
    # /v1/engines, /v1/doctor
    app.include_router(engines_router())
    # /v1/match, /indexer
    app.include_router(match_router())
    app.include_router(indexer_router())
