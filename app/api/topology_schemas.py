"""The wire form of topologies."""

from datetime import datetime
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field

from app.api.profile_schemas import DocumentUpload
from app.contract.limits import MAX_I63
from app.paging import DEFAULT_PAGE_ITEMS, Cursor, PageSize


class TopologyUpload(DocumentUpload):
    """Parameters of a change."""

    expected_version: Annotated[int, Field(ge=0, le=MAX_I63)] | None = Field(
        default=None,
        description="Refuse with 412 unless this version is in force; 0 for none yet.",
    )


class TopologyQuery(BaseModel):
    """The page asked for."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    page_size: PageSize = DEFAULT_PAGE_ITEMS
    cursor: Cursor = None


class TopologyView(BaseModel):
    """A version, without its document."""

    version: int = Field(description="What decisions record.")
    content_sha256: str = Field(description="Of the canonical document, in hexadecimal.")
    message: str | None
    key_id: str = Field(description="The API key that put it.")
    created_at: datetime
    in_force: bool = Field(description="Whether it is the latest version.")


class TopologyPage(BaseModel):
    """A page of versions, newest first."""

    items: list[TopologyView]
    next_cursor: str | None = Field(description="Null on the last page.")


class TopologyDetail(TopologyView):
    """A version, whole."""

    document: dict[str, Any] = Field(description="The topology, in its canonical form.")


class TopologyFaultView(BaseModel):
    """The latest version where it could not come into force here."""

    model_config = ConfigDict(from_attributes=True)

    version: int
    reason: str
    since: datetime


class TopologyInForce(BaseModel):
    """The latest version, and what this process makes of it."""

    topology: TopologyDetail | None = Field(description="Null while none was ever put.")
    known_version: int | None = Field(
        description="The version that this process plans with; null for none. It follows the "
        "latest within a second."
    )
    fault: TopologyFaultView | None = Field(
        description="Why the latest version is not what this process plans with; null when it is."
    )
