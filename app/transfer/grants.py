"""What the tokens of an order allow: the order itself, and the fetch that it leads to."""

from app.transfer.tokens import Direction, Grant
from app.transfer.wire import NewTransfer


def transfer_grant(worker: str, tenant: str, order: NewTransfer) -> Grant:
    """For ordering it of `worker`, reading its facts, and cancelling it."""
    return Grant(
        worker,
        tenant,
        Direction.TRANSFER,
        payload_id=order.source.payload_id,
        sink_id=order.target_sink_id or "",
    )


def fetch_grant(worker: str, tenant: str, order: NewTransfer, data_address: str) -> Grant:
    """For `worker` to pull the order's payload from its source, which is at `data_address`."""
    return Grant(
        order.source.worker,
        tenant,
        Direction.FETCH,
        payload_id=order.source.payload_id,
        sink_id=order.target_sink_id or "",
        target_worker=worker,
        target_payload_id=order.target_payload_id or "",
        data_address=data_address,
    )
