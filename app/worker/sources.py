"""Whom this worker may call for a payload: what the API vouches for, and nobody else.

An order names an address, and anyone with a token for transfers may write one. The address that is
called is the one inside the FETCH token, which the API signed from its own list of workers.
"""

from app.clock import Clock
from app.errors import NexusError
from app.transfer.frames import FetchRequest
from app.transfer.tokens import TokenKeys, require_fetch
from app.transfer.wire import NewTransfer, TransferFailure
from app.worker.connections import Connections
from app.worker.deadline import Deadline
from app.worker.failure import TransferFailedError
from app.worker.fetch import Fetch, Stop


class Sources:
    """Makes fetches from other workers, for the worker `node`."""

    def __init__(self, keys: TokenKeys, node: str, clock: Clock) -> None:
        self._keys = keys
        self._node = node
        self._clock = clock
        self.connections = Connections(clock)

    def fetch(self, tenant: str, order: NewTransfer, deadline: Deadline, stop: Stop) -> Fetch:
        """The fetch of an order, not begun. Connects to nobody.

        Raises TransferFailedError (source_refused) unless the order's token is the tenant's, for
        this payload, source and target, and vouches for the order's address.
        """
        source = order.source
        token = self._checked(tenant, order)
        request = FetchRequest(
            token,
            source.payload_id,
            self._node,
            order.target_sink_id,
            order.target_payload_id,
            source.payload_bytes,
            source.checksum,
        )
        assert source.data_address is not None
        return Fetch(source.data_address, request, deadline, stop, self.connections)

    def sweep(self) -> None:
        """Close connections that have rested for too long."""
        self.connections.sweep()

    def close(self) -> None:
        self.connections.close()

    def _checked(self, tenant: str, order: NewTransfer) -> str:
        source = order.source
        if source.data_address is None or source.token is None:
            raise _refused("another worker's payload needs its data_address and a fetch token")
        try:
            grant = self._keys.verify(
                source.token, worker=source.worker, now_s=self._clock.now_us() // 1_000_000
            )
            require_fetch(
                grant,
                payload_id=source.payload_id,
                target_worker=self._node,
                sink_id=order.target_sink_id or "",
                target_payload_id=order.target_payload_id or "",
            )
        except NexusError as error:
            raise _refused(error.message) from None
        if grant.tenant != tenant:
            raise _refused("the token is for another tenant")
        if grant.data_address != source.data_address:
            raise _refused("the token does not vouch for this data_address; ask for a new one")
        return source.token


def _refused(why: str) -> TransferFailedError:
    return TransferFailedError(TransferFailure.SOURCE_REFUSED, f"not asked: {why}")
