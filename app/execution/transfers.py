"""A transfer that was asked for over `/v1/transfers`, as it is stored: its request and its end."""

from dataclasses import dataclass
from datetime import datetime
from uuid import UUID

from msgspec import Struct

from app.contract.enums import Disposition, FallbackReason, TransferBackend, TransferStatus
from app.contract.execution import BackendActionResult
from app.execution.catalog import Rejection


class TransferAsked(Struct, frozen=True):
    """What the caller wants; the same `transfer_id` with anything else changed is refused."""

    tenant: str
    transfer_id: str
    action: Disposition
    entry_id: str
    target_worker: str
    payload_id: str | None = None
    backend: TransferBackend | None = None


class TransferEnd(Struct, frozen=True):
    """How it ended. `result` is None when no backend was chosen, or none was asked.

    `fallback_reason` is None when it completed, or ended through a fault of ours.
    """

    detail: str
    rejected: tuple[Rejection, ...] = ()
    result: BackendActionResult | None = None
    bytes_transferred: int = 0
    locator: str | None = None
    fallback_reason: FallbackReason | None = None


class TransferRoute(Struct, frozen=True):
    """Which session of which workers it became: what a cancellation needs to know."""

    session_id: str
    source_worker: str
    payload_id: str
    target_worker: str
    target_payload_id: str
    backend: TransferBackend


@dataclass(frozen=True, slots=True)
class StoredTransfer:
    """A row. It belongs to whoever has its fence until `expires_at`, while it runs.

    One that runs and has an end was cancelled meanwhile: that is what it will come to.
    """

    asked: TransferAsked
    status: TransferStatus
    fence: int
    decision_id: UUID
    created_at: datetime
    updated_at: datetime
    expires_at: datetime
    route: TransferRoute | None
    end: TransferEnd | None
