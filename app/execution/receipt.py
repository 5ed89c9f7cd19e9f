"""What a consumed option answers, the first time and every time."""

from typing import Final

import msgspec

from app.contract.enums import TransferStatus
from app.contract.execution import BackendActionResult
from app.execution.claims import ClaimRequest
from app.execution.orders import TransferOrder

_PROTOCOL: Final = "nexuskv.protocol-transfer-receipt.v1"
_PHYSICAL: Final = "nexuskv.physical-transfer-receipt.v1"


class Receipt(msgspec.Struct, frozen=True):
    """What is stored with the consumed option and answered, the first time and every time."""

    bytes_transferred: int
    receipt_namespace: str
    receipt_value: str
    physical: bool
    execution_backend: str
    transfer_session: str
    sink_namespace: str
    sink_value: str
    import_id: str
    # Whose sink it is; None where no worker moved anything.
    target_worker: str | None = None


def receipt_of(claim: ClaimRequest, order: TransferOrder, result: BackendActionResult) -> Receipt:
    """The receipt of an executed materialize: physical only for a completed transfer.

    A worker counted and verified the bytes of a `completed` one; a `registered` one moved nothing.
    The value of a physical receipt ends with the checksum of what lies in the sink.
    """
    session = result.transfer_session
    assert session is not None
    completed = session.result.result_handle
    physical = session.result.status is TransferStatus.COMPLETED and completed is not None
    assert physical or session.result.status is TransferStatus.REGISTERED
    name = f"receipt-{claim.option_id.hex}"
    return Receipt(
        bytes_transferred=order.payload_bytes if physical else 0,
        receipt_namespace=_PHYSICAL if physical else _PROTOCOL,
        receipt_value=f"{name}:{completed.opaque_ref}" if completed and physical else name,
        physical=physical,
        execution_backend=result.backend_name,
        transfer_session=session.session_id,
        sink_namespace=claim.sink_namespace,
        sink_value=claim.sink_value,
        import_id=claim.import_id,
        target_worker=order.target_worker if physical else None,
    )
