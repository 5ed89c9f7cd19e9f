"""The wire form of `/v1/prefetches`."""

from typing import Annotated
from uuid import UUID

from pydantic import BaseModel, ConfigDict, Field, StrictInt, StringConstraints

from app.api.transfer_schemas import TenantName, TransferId, TransferView
from app.contract.enums import TransferBackend
from app.lifecycle.prefetch import Abandon, PrefetchStatus
from app.planner.prefetch import PrefetchRefusal

# A day: what is used later is no prefetch.
MAX_WITHIN_US = 86_400_000_000
MAX_COST_US = 10**12

Within = Annotated[StrictInt, Field(ge=1, le=MAX_WITHIN_US)]
Cost = Annotated[StrictInt, Field(ge=0, le=MAX_COST_US)]
EntryId = Annotated[str, StringConstraints(min_length=1, max_length=512, pattern=r"^[^\x00]*$")]
WorkerName = Annotated[
    str, StringConstraints(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,127}$", max_length=128)
]
PayloadId = Annotated[
    str, StringConstraints(pattern=r"^[A-Za-z0-9][A-Za-z0-9._~-]{0,254}$", max_length=255)
]
EngineId = Annotated[
    str, StringConstraints(pattern=r"^[A-Za-z0-9][A-Za-z0-9._:-]{0,127}$", max_length=128)
]


class PrefetchRequestBody(BaseModel):
    """Bring a registered state's payload to a worker before its use, if that is worth it."""

    model_config = ConfigDict(extra="forbid")

    prefetch_id: TransferId = Field(
        description="Chosen by the caller, unique among the tenant's transfers: the same request "
        "again is the same prefetch."
    )
    tenant: TenantName
    entry_id: EntryId
    target_worker: WorkerName
    use_within_us: Within = Field(
        description="The consumption deadline, in microseconds from now: what is not there by then "
        "is computed."
    )
    use_probability: Annotated[float, Field(gt=0, le=1, allow_inf_nan=False)] = Field(
        description="How likely it is that it will be used by then."
    )
    engine_id: EngineId | None = Field(
        None, description="Who is to use it: whose hardware prices computing it instead."
    )
    pollution_us: Cost = Field(0, description="What its place in the cache costs others.")
    interference_us: Cost = Field(0, description="What its transfer costs others.")
    abandon: Abandon = Field(
        Abandon.CANCEL,
        description="What becomes of it when it is late: `cancel` stops it, `demote` lets it go on "
        "as a transfer that nobody waits for.",
    )
    payload_id: PayloadId | None = Field(None, description="Of the copy; else as at its source.")
    backend: TransferBackend | None = Field(None, description="Wanted above all others.")


class PrefetchFigures(BaseModel):
    """By which it was judged. `expected_us` = p * gain - (1 - p) * (transfer + pollution +
    interference)."""

    expected_us: int
    gain_us: int = Field(description="Computing it, less having it from where it is brought to.")
    transfer_us: int
    moved_bytes: int
    max_bytes_in_flight: int = Field(description="0 is no limit, as with all budgets.")
    taken_bytes_in_flight: int
    max_bytes_per_us: float
    taken_bytes_per_us: float
    tier_bytes: int = Field(description="Capacity of the target's tier in the topology.")
    max_tier_share: float
    taken_tier_bytes: int
    max_tier_transfers: int
    taken_tier_transfers: int
    min_use_probability: float


class PrefetchView(BaseModel):
    """How a prefetch ended. Whatever is not `completed` is computed: nobody waits for it."""

    prefetch_id: str
    status: PrefetchStatus
    refusal: PrefetchRefusal | None = Field(description="Why it was not begun.")
    late: bool = Field(description="It was not there, or would not have been, in time.")
    use: bool = Field(description="Whether the bytes were verified at the target in time.")
    decision_id: UUID
    figures: PrefetchFigures | None = Field(
        description="Null where an earlier request had begun it: it is not judged again."
    )
    transfer: TransferView | None = Field(description="Null where none was begun.")
