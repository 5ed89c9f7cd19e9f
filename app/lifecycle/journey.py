"""One attempt at a prefetch or store, on its way through the steps; what one finds the next use."""

from dataclasses import dataclass, field
from datetime import datetime
from hashlib import blake2b
from typing import Any, Final

from app.contract.enums import Disposition, FallbackReason, TransferStatus
from app.contract.execution import BackendActionResult
from app.db.session import WriteSession
from app.execution.backend import settled
from app.execution.orders import TransferOrder
from app.execution.repository import transfer_find
from app.execution.sessions import RUNNING
from app.execution.transfers import StoredTransfer, TransferAsked, TransferEnd
from app.execution.worker_backend import WorkerBackend
from app.index.repository import StoredState
from app.lifecycle.observe import Attempt
from app.lifecycle.steps import End

_DIGEST_BYTES: Final = 16


@dataclass(slots=True)
class Journey:
    """One attempt to carry one transfer out."""

    attempt: Attempt
    asked: TransferAsked
    fence: int
    expires_at: datetime
    stored: StoredState | None = None
    known: StoredTransfer | None = None
    order: TransferOrder | None = None
    backend: WorkerBackend | None = None
    result: BackendActionResult | None = None
    end: TransferEnd | None = None
    status: TransferStatus = TransferStatus.INITIATED
    # Whether the copy was charged for by this attempt: no other was known before.
    charged: bool = False
    # Whether bytes that arrived for a cancelled transfer are still there, and charged.
    copy_stays: bool = False
    # None where nobody looked, or nobody could.
    copy_present: bool | None = None
    notes: dict[str, Any] = field(default_factory=dict)

    def fall_back(
        self,
        status: TransferStatus,
        reason: FallbackReason,
        detail: str,
        result: BackendActionResult | None = None,
    ) -> End:
        """Nothing was moved. The state is still where it was, so what is left to do is nothing."""
        rejected = tuple(self.attempt.rejected)
        result = result and settled(result, Disposition.SKIP)
        self.status = status
        self.end = TransferEnd(detail, rejected, result, fallback_reason=reason)
        return End.FALL_BACK

    async def has(self, session: WriteSession, *statuses: TransferStatus) -> bool:
        """Whether the session is this attempt's, and stands so."""
        known = await transfer_find(session, self.asked.tenant, self.asked.transfer_id)
        return known is not None and known.fence == self.fence and known.status in statuses

    async def cancelled(self, session: WriteSession) -> bool:
        """Whether the session is this attempt's, and was cancelled while it ran."""
        known = await transfer_find(session, self.asked.tenant, self.asked.transfer_id)
        if known is None or known.fence != self.fence:
            return False
        told = known.status in RUNNING and known.end is not None
        return told or known.status is TransferStatus.CANCELLED

    def end_cancelled(self, detail: str, result: BackendActionResult | None = None) -> End:
        reason = FallbackReason.PREFERRED_BACKEND_UNAVAILABLE
        return self.fall_back(TransferStatus.CANCELLED, reason, detail, result)

    def session_id(self, *order: str) -> str:
        """The worker's name for it: another tenant's equal id is another session.

        So is another order: a session stands for one at its worker, also when it failed.
        """
        return f"t.{_digest(self.asked.tenant, self.asked.transfer_id, *order)}"

    def charge_id(self) -> str:
        assert self.order is not None
        return payload_charge(self.order.target_worker, self.order.target_payload_id or "")


def payload_charge(worker: str, payload_id: str) -> str:
    """The charge of a payload that was brought to a worker: given back when it is gone there."""
    return f"payload:{_digest(worker, payload_id)}"


def _digest(*names: str) -> str:
    return blake2b("\0".join(names).encode(), digest_size=_DIGEST_BYTES).hexdigest()
