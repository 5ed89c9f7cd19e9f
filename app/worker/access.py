"""Who may do what on this worker: the token of a request, checked against what it asks for."""

from collections.abc import Iterable
from typing import Final

from app.clock import Clock
from app.errors import ErrorCode, NexusError
from app.transfer.tokens import Direction, Grant, TokenKeys, require

# What a worker's callers show is no API key.
TITLES: Final = {
    ErrorCode.UNAUTHORIZED: "A valid worker token is required",
    ErrorCode.FORBIDDEN: "The worker token is for something else",
}
_BEARER: Final = b"bearer "


class Access:
    """Checks tokens that were signed for one worker."""

    def __init__(self, keys: TokenKeys, node: str, clock: Clock) -> None:
        self._keys = keys
        self._node = node
        self._clock = clock

    def grant(self, headers: Iterable[tuple[bytes, bytes]]) -> Grant:
        """What the bearer may do. Raises UNAUTHORIZED."""
        given = [value for name, value in headers if name == b"authorization"]
        if len(given) != 1 or given[0][: len(_BEARER)].lower() != _BEARER:
            raise NexusError(
                ErrorCode.UNAUTHORIZED, "send `Authorization: Bearer` with a worker token"
            )
        token = given[0][len(_BEARER) :].decode("latin-1").strip()
        return self._keys.verify(token, worker=self._node, now_s=self._clock.now_us() // 1_000_000)

    def tenant(
        self,
        headers: Iterable[tuple[bytes, bytes]],
        direction: Direction,
        *,
        payload_id: str = "",
        sink_id: str = "",
    ) -> str:
        """The tenant for whom exactly this is allowed. Raises UNAUTHORIZED, FORBIDDEN."""
        grant = self.grant(headers)
        require(grant, direction, payload_id=payload_id, sink_id=sink_id)
        return grant.tenant
