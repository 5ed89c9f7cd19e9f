"""What a route may ask for, as annotated aliases."""

from collections.abc import AsyncIterator
from typing import Annotated

from fastapi import Depends, Request

from app.control.auth import require_scope
from app.control.keys import Principal, Scope
from app.db.session import ReadSession
from app.services import Services


def services_of(request: Request) -> Services:
    services: Services = request.app.state.services
    return services


# Dependencies are coroutines: FastAPI calls a plain function in a thread, two hops for nothing.
async def _services(request: Request) -> Services:
    return services_of(request)


ServicesDep = Annotated[Services, Depends(_services)]


async def _principal(request: Request, services: ServicesDep) -> Principal:
    return await services.access.authenticate(request.scope)


class _Having:
    """The caller, if its key has the scope."""

    def __init__(self, scope: Scope) -> None:
        self._scope = scope

    async def __call__(self, principal: Annotated[Principal, Depends(_principal)]) -> Principal:
        require_scope(principal, self._scope)
        return principal


StatesReader = Annotated[Principal, Depends(_Having(Scope.STATES_READ))]
StatesWriter = Annotated[Principal, Depends(_Having(Scope.STATES_WRITE))]
DecisionsReader = Annotated[Principal, Depends(_Having(Scope.DECISIONS_READ))]
DecisionsWriter = Annotated[Principal, Depends(_Having(Scope.DECISIONS_WRITE))]
WorkersReader = Annotated[Principal, Depends(_Having(Scope.WORKERS_READ))]
WorkerTokenIssuer = Annotated[Principal, Depends(_Having(Scope.WORKER_TOKENS_ISSUE))]
PoliciesReader = Annotated[Principal, Depends(_Having(Scope.POLICIES_READ))]
PoliciesWriter = Annotated[Principal, Depends(_Having(Scope.POLICIES_WRITE))]
PoliciesActivator = Annotated[Principal, Depends(_Having(Scope.POLICIES_ACTIVATE))]
ProfilesReader = Annotated[Principal, Depends(_Having(Scope.PROFILES_READ))]
ProfilesWriter = Annotated[Principal, Depends(_Having(Scope.PROFILES_WRITE))]
TopologyReader = Annotated[Principal, Depends(_Having(Scope.TOPOLOGY_READ))]
TopologyWriter = Annotated[Principal, Depends(_Having(Scope.TOPOLOGY_WRITE))]
TransfersWriter = Annotated[Principal, Depends(_Having(Scope.TRANSFERS_WRITE))]
# Who asks for plans is who asks by the bridge.
PlanMaker = Annotated[Principal, Depends(_Having(Scope.BRIDGE))]
EnginesReader = Annotated[Principal, Depends(_Having(Scope.ENGINES_READ))]
EventsWriter = Annotated[Principal, Depends(_Having(Scope.EVENTS_WRITE))]
Admin = Annotated[Principal, Depends(_Having(Scope.ADMIN))]


async def _read_session(services: ServicesDep) -> AsyncIterator[ReadSession]:
    async with services.database.read() as session:
        yield session


ReadDb = Annotated[ReadSession, Depends(_read_session, scope="function")]
