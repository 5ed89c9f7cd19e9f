"""What execution is asked for and reports. A request is an intent, never evidence of movement."""

from msgspec import Struct

from app.contract.enums import (
    ActionStatus,
    Disposition,
    FallbackReason,
    MaterializationCapability,
    TransferBackend,
    TransferStatus,
)
from app.contract.limits import Detail, Name
from app.contract.payload import PayloadHandle, PayloadLocation


class TransferRequest(
    Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True, gc=False
):
    """One movement to try. `degraded_from` is the backend that policy preferred."""

    action_kind: Disposition
    desired_target: PayloadLocation
    source_handle: PayloadHandle | None = None
    transfer_backend: TransferBackend | None = None
    degraded_from: TransferBackend | None = None
    required_capability: MaterializationCapability | None = None
    fallback_reason: FallbackReason | None = None


class TransferResult(Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True, gc=False):
    """`intermediate_handle` is a staged copy on the way to `result_handle`."""

    status: TransferStatus
    result_handle: PayloadHandle | None = None
    intermediate_handle: PayloadHandle | None = None
    detail: Detail | None = None


class TransferSession(Struct, frozen=True, forbid_unknown_fields=True, gc=False):
    session_id: Name
    request: TransferRequest
    result: TransferResult


class BackendActionResult(
    Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True, gc=False
):
    """What was asked, what was done instead, by which backend, and how it ended."""

    requested_kind: Disposition
    executed_kind: Disposition
    status: ActionStatus
    final_disposition: Disposition
    backend_name: Name
    source: PayloadLocation
    target: PayloadLocation
    degraded: bool
    selected_backend: TransferBackend | None = None
    fallback_reason: FallbackReason | None = None
    payload_handle: PayloadHandle | None = None
    transfer_session: TransferSession | None = None
    detail: Detail | None = None
