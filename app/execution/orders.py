"""A transfer as a backend is told of it."""

from uuid import UUID

from msgspec import Struct

from app.contract.execution import TransferRequest
from app.contract.payload import PayloadHandle, PayloadLocation


class TransferOrder(Struct, frozen=True):
    """One movement of one payload. Repeating it with the same `session_id` repeats nothing.

    `payload_bytes` is what must arrive. Exactly one of `sink_id` and `target_payload_id` is given
    where a worker is the target; neither where the sink is the engine's own business.
    """

    session_id: str
    decision_id: UUID
    tenant: str
    request: TransferRequest
    source: PayloadHandle
    target: PayloadLocation
    source_worker: str = ""
    payload_id: str = ""
    target_worker: str = ""
    sink_id: str | None = None
    target_payload_id: str | None = None
    engine_id: str | None = None
    engine_generation: int | None = None
    payload_bytes: int = 0
    # Of the source's bytes, where it is known beforehand.
    checksum: str | None = None
    deadline_s: float = 0.0
