"""Who asks, since when, and what came of it."""

from dataclasses import dataclass
from uuid import UUID

import msgspec

from app.control.keys import Principal
from app.errors import NexusError


class Caller(msgspec.Struct, frozen=True, gc=False):
    """The authenticated caller of one request; `started_us` is a monotonic reading."""

    principal: Principal
    trace_id: str | None
    started_us: int

    def tenant_for_record(self) -> str:
        """Under which tenant a refusal is recorded that names none it could be trusted for."""
        tenants = self.principal.tenants
        return next(iter(tenants)) if tenants is not None and len(tenants) == 1 else ""


@dataclass(frozen=True, slots=True)
class Refused:
    """The step ended in an error; `decision_id` is None when nothing was decided."""

    error: NexusError
    decision_id: UUID | None
