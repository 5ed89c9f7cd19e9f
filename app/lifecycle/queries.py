"""What the three slices are asked, in the pipeline's own terms and no wire's."""

from dataclasses import dataclass
from uuid import UUID

import msgspec

from app.contract.evidence import QueryEvidence
from app.execution.grants import OptionGrant, SourceGrant
from app.index.registered import ScopeIdentity
from nexuskv_core import TokenText


class LookupQuery(msgspec.Struct, frozen=True, gc=False):
    """What the caller is about to compute. `evidence_number` is equal for equal evidence."""

    scope: ScopeIdentity
    tokens: TokenText
    evidence: QueryEvidence
    evidence_number: int


@dataclass(frozen=True, slots=True)
class EstimateQuery:
    """The source that the caller believes in, and where it wants it.

    `grant` is None when the handle was not ours.
    """

    grant: SourceGrant | None
    source_state: str
    source_locator: str
    source_tier: str
    target_digest: bytes
    target_id: str
    target_engine_id: str
    target_engine_generation: int
    target_residency: str


@dataclass(frozen=True, slots=True)
class MaterializeQuery:
    """One attempt. `option_id` is None when no handle of ours could carry it, `grant` is None
    when the handle was not ours."""

    option_id: UUID | None
    grant: OptionGrant | None
    import_id: str
    target_digest: bytes
    target_engine_id: str
    target_engine_generation: int
    sink_namespace: str
    sink_value: str
