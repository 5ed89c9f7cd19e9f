"""The wire form of policies, activations and quotas."""

from datetime import datetime
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, StringConstraints

from app.paging import DEFAULT_PAGE_ITEMS, Cursor, PageSize
from app.policy.advice import WarningCode
from app.policy.document import QuotaMode
from app.policy.store import MAX_ACTIVATIONS, MAX_MESSAGE_CHARS
from app.problem import ProblemField

Message = Annotated[
    str,
    StringConstraints(min_length=1, max_length=MAX_MESSAGE_CHARS, pattern=r"^[^\x00]*$"),
    Field(description="Why, for whoever reads the history."),
]


class PolicyUpload(BaseModel):
    """Parameters of an upload."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    message: Message | None = None


class PolicyQuery(BaseModel):
    """The page asked for."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    page_size: PageSize = DEFAULT_PAGE_ITEMS
    cursor: Cursor = None


class WarningView(BaseModel):
    """What a valid policy says that its author may not have meant."""

    model_config = ConfigDict(from_attributes=True)

    pointer: str
    code: WarningCode
    detail: str


class ActivationView(BaseModel):
    """One change of the active policy; the highest id is the active one."""

    model_config = ConfigDict(from_attributes=True)

    activation_id: int
    number: int
    activated_at: datetime
    key_id: str = Field(description="The API key that activated it.")
    message: str | None


class PolicyView(BaseModel):
    """A stored version, without its document."""

    number: int
    content_sha256: str = Field(description="Of the canonical document, in hexadecimal.")
    message: str | None
    key_id: str = Field(description="The API key that uploaded it first.")
    created_at: datetime
    active: bool = Field(description="Whether it is the latest activation.")


class PolicyDetail(PolicyView):
    """A stored version, whole."""

    document: dict[str, Any] = Field(description="The policy, in its canonical form.")
    source: str = Field(description="The text as it was uploaded, comments and all.")
    warnings: list[WarningView]
    activations: list[ActivationView] = Field(
        description=f"Its last {MAX_ACTIVATIONS} activations, newest first."
    )


class PolicyPage(BaseModel):
    """A page of versions, newest first."""

    items: list[PolicyView]
    next_cursor: str | None = Field(description="Null on the last page.")


class Validation(BaseModel):
    """What an upload of the document would find."""

    valid: bool
    content_sha256: str | None = Field(description="Null for a document that is not valid.")
    errors: list[ProblemField]
    warnings: list[WarningView]


class ActivationResult(BaseModel):
    """The activation that is in effect now."""

    activation: ActivationView
    changed: bool = Field(description="False when the version was active already.")


class ActivationFaultView(BaseModel):
    """The latest activation where it could not come into force here."""

    activation: ActivationView
    reason: str
    since: datetime


class ActivePolicyView(BaseModel):
    """What this process decides by."""

    label: str = Field(description="What decisions record as `policy_version`.")
    origin: Literal["activation", "file"]
    content_sha256: str
    document: dict[str, Any]
    activation: ActivationView | None = Field(
        description="Null while the policy file of the process is in force."
    )
    fault: ActivationFaultView | None = Field(
        description="Why the latest activation is not what is in force here; null when it is."
    )


class QuotaLimits(BaseModel):
    """Of the policy in force; 0 is unlimited."""

    max_payload_bytes: int
    max_entries: int
    max_concurrent_transfers: int


class QuotaView(BaseModel):
    """What NexusKV's own transfers hold for a tenant, and what they may."""

    tenant: str
    policy: str = Field(description="Label of the policy whose limits these are.")
    mode: QuotaMode
    payload_bytes: int
    entries: int
    transfers: int = Field(description="Transfers running now.")
    limits: QuotaLimits
