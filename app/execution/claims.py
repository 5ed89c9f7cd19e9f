"""The claim on an option: taken before execution, consumed after it, fenced when its owner dies."""

from dataclasses import dataclass
from datetime import datetime
from uuid import UUID


@dataclass(frozen=True, slots=True)
class ClaimRequest:
    """One attempt to consume an option. `fence` is unique to the attempt."""

    option_id: UUID
    tenant: str
    import_id: str
    sink_namespace: str
    sink_value: str
    fence: int
    decision_id: UUID
    now: datetime
    expires_at: datetime


@dataclass(frozen=True, slots=True)
class StoredClaim:
    """What the database knows of an option; `receipt` is JSON once it is consumed."""

    tenant: str
    import_id: str
    sink_namespace: str
    sink_value: str
    consumed: bool
    claim_expires_at: datetime
    receipt: str | None
    decision_id: UUID | None

    def same_import(self, request: ClaimRequest) -> bool:
        return self.import_id == request.import_id and self.same_sink(request)

    def same_sink(self, request: ClaimRequest) -> bool:
        return (self.sink_namespace, self.sink_value) == (
            request.sink_namespace,
            request.sink_value,
        )
