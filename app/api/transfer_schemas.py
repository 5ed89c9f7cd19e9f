"""The wire form of `/v1/transfers`."""

from datetime import datetime
from typing import Annotated, Literal
from uuid import UUID

from pydantic import BaseModel, ConfigDict, Field, JsonValue, StringConstraints

from app.contract.enums import TransferBackend, TransferStatus

TransferId = Annotated[
    str, StringConstraints(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,127}$", max_length=128)
]
TenantName = Annotated[str, StringConstraints(min_length=1, max_length=128, pattern=r"^[^\x00]*$")]


class TransferRequestBody(BaseModel):
    """Bring a registered state's payload to another worker."""

    model_config = ConfigDict(extra="forbid")

    transfer_id: TransferId = Field(
        description="Chosen by the caller, unique in its tenant. The same request again is the "
        "same transfer: it is joined, answered again, or, where it failed or its copy is gone, "
        "tried again."
    )
    action: Literal["prefetch", "store"] = Field(
        description="`prefetch` brings a copy nearer to its use, `store` puts one where it "
        "outlives its source."
    )
    tenant: TenantName
    entry_id: Annotated[str, StringConstraints(min_length=1, max_length=512, pattern=r"^[^\x00]*$")]
    target_worker: Annotated[
        str, StringConstraints(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,127}$", max_length=128)
    ]
    payload_id: Annotated[
        str | None,
        StringConstraints(pattern=r"^[A-Za-z0-9][A-Za-z0-9._~-]{0,254}$", max_length=255),
    ] = Field(None, description="Of the copy; as at its source when left out.")
    backend: TransferBackend | None = Field(
        None,
        description="Wanted above all others; the policy decides whether a lesser one will do.",
    )


class TransferView(BaseModel):
    """A transfer. `completed` means that the target worker verified every byte, then."""

    transfer_id: str
    tenant: str
    action: Literal["prefetch", "store"]
    entry_id: str
    target_worker: str
    status: TransferStatus
    decision_id: UUID = Field(description="The decision of the latest attempt.")
    created_at: datetime
    updated_at: datetime
    locator: str | None = Field(
        description="Where the copy is, as `node://WORKER/state/PAYLOAD`; null before it is there.",
        examples=["node://node-b/state/system-prompt"],
    )
    copy_present: bool | None = Field(
        description="Whether the copy was at the target when this was answered; false when it was "
        "gone and not brought again, null when nobody asked its worker (GET and DELETE do not), or "
        "it could not be asked."
    )
    bytes_transferred: int
    backend: str | None = Field(description="Who carried it out, or tried to.")
    degraded: bool
    fallback_reason: str | None
    detail: str | None
    rejected: list[dict[str, JsonValue]] = Field(
        description="Registrations that were not taken, each with its reason."
    )
    result: JsonValue = Field(description="The backend's whole result; null before there is one.")
