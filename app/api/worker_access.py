"""Who may register a worker: the worker itself with its token, or a key of scope `admin`."""

from typing import Final

from starlette.types import Scope as AsgiScope

from app.clock import Clock
from app.control.auth import Access, require_scope
from app.control.keys import Scope, bearer_token
from app.errors import ErrorCode, NexusError
from app.transfer.tokens import API_AUDIENCE, Direction, Grant, TokenKeys, require

PREFIX: Final = "/v1/workers/"
_US_PER_S: Final = 1_000_000


class WorkerAccess:
    """Checks requests before and in the routes of workers. `keys` is None where none are set."""

    def __init__(self, access: Access, keys: TokenKeys | None, clock: Clock) -> None:
        self._access = access
        self._keys = keys
        self._clock = clock

    def configured_keys(self) -> TokenKeys:
        """Raises WORKERS_NOT_CONFIGURED."""
        if self._keys is None:
            raise NexusError(
                ErrorCode.WORKERS_NOT_CONFIGURED,
                "Worker tokens need a secret that the API and its workers share: set"
                " NEXUSKV_WORKER_SECRET (`openssl rand -hex 32` makes one)",
            )
        return self._keys

    def now_s(self) -> int:
        return self._clock.now_us() // _US_PER_S

    async def authorise_body(self, scope: AsgiScope) -> None:
        """Raises NexusError for a caller whose body is not even to be read."""
        token = _worker_token(scope) if _is_heartbeat(scope) else None
        if token is None:
            await self._access.authenticate(scope)
        else:
            self._verified(token)

    async def authorise_heartbeat(self, scope: AsgiScope, name: str) -> None:
        """Raises UNAUTHORIZED, FORBIDDEN unless the caller may speak for the worker `name`."""
        token = _worker_token(scope)
        if token is None:
            require_scope(await self._access.authenticate(scope), Scope.ADMIN)
            return
        grant = self._verified(token)
        require(grant, Direction.REGISTER)
        if grant.tenant != name:
            raise NexusError(
                ErrorCode.FORBIDDEN, "The worker token is for a worker of another name"
            )

    def _verified(self, token: str) -> Grant:
        return self.configured_keys().verify(token, worker=API_AUDIENCE, now_s=self.now_s())


def _is_heartbeat(scope: AsgiScope) -> bool:
    path: str = scope["path"]
    return scope["method"] == "PUT" and path.startswith(PREFIX)


def _worker_token(scope: AsgiScope) -> str | None:
    """The credential if it has a signed token's three parts; an API key has no full stop."""
    found = [value for name, value in scope["headers"] if name == b"authorization"]
    token = bearer_token(found[0]) if len(found) == 1 else None
    return token.decode("latin-1") if token is not None and token.count(b".") == 2 else None
