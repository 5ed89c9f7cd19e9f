"""The wire form of cost profiles."""

from datetime import datetime
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, StringConstraints

from app.contract.messages import MAX_MESSAGE_CHARS
from app.paging import DEFAULT_PAGE_ITEMS, Cursor, PageSize
from app.problem import ProblemField
from app.profiles.provider import Fit

_NO_NUL = r"^[^\x00]*$"
Message = Annotated[
    str,
    StringConstraints(min_length=1, max_length=MAX_MESSAGE_CHARS, pattern=_NO_NUL),
    Field(description="Why, for whoever reads the history."),
]
Name = Annotated[str, StringConstraints(max_length=512, pattern=_NO_NUL)]
Model = Annotated[str, StringConstraints(max_length=512, pattern=_NO_NUL)]
Hardware = Annotated[str, StringConstraints(max_length=128, pattern=_NO_NUL)]


class DocumentUpload(BaseModel):
    """Parameters of an upload."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    message: Message | None = None


class ProfileQuery(BaseModel):
    """The page asked for. An empty model or hardware asks for those that hold for any."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    name: Name | None = None
    model: Model | None = None
    hardware: Hardware | None = None
    page_size: PageSize = DEFAULT_PAGE_ITEMS
    cursor: Cursor = None


class InForceQuery(BaseModel):
    """What is computed, and on what; empty where it is not known."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    model: Model = ""
    hardware: Hardware = ""


class ProfileView(BaseModel):
    """A stored version, without its document."""

    model_config = ConfigDict(from_attributes=True)

    number: int
    name: str
    model: str = Field(description="Empty for any.")
    hardware: str = Field(description="Empty for any.")
    content_sha256: str = Field(description="Of the canonical document, in hexadecimal.")
    message: str | None
    key_id: str = Field(description="The API key that uploaded it first.")
    created_at: datetime
    in_force: bool = Field(
        description="Whether this process takes it where nothing fits better: whether it is the "
        "newest of its model and hardware."
    )


class ProfileDetail(ProfileView):
    """A stored version, whole."""

    document: dict[str, Any] = Field(description="The profile, in its canonical form.")
    source: str = Field(description="The text as it was uploaded, comments and all.")


class ProfilePage(BaseModel):
    """A page of versions, newest first."""

    items: list[ProfileView]
    next_cursor: str | None = Field(description="Null on the last page.")


class ProfileValidation(BaseModel):
    """What an upload of the document would find."""

    valid: bool
    content_sha256: str | None = Field(description="Null for a document that is not valid.")
    errors: list[ProblemField]


class ProfileFaultView(BaseModel):
    """A stored profile that could not come into force here."""

    model_config = ConfigDict(from_attributes=True)

    number: int
    reason: str
    since: datetime


class ProfileInForce(BaseModel):
    """What this process prices by, and why."""

    number: int | None = Field(description="Null for the profile that is built in.")
    fit: Fit = Field(
        description="`exact`: of the model on the hardware; `model`: of the model on any; "
        "`hardware`: of any model on the hardware; `any`: of any on any; `built_in`: none is "
        "stored that fits."
    )
    name: str
    version: str = Field(description="A short digest of the content.")
    document: dict[str, Any]
    fault: ProfileFaultView | None = Field(
        description="The newest stored profile that this process cannot use; null for none."
    )
