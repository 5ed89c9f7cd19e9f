"""The wire form of engines, of what is known of them, and of what is wrong with them."""

from datetime import datetime
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field, StringConstraints

from app.contract.limits import MAX_I63
from app.engines.doctor import Check, Severity
from app.engines.intake import Registered
from app.engines.reach import AttentionKind
from app.engines.registration import MAX_DP_RANK, Attach, EngineKind
from app.engines.views import ViewState
from app.paging import DEFAULT_PAGE_ITEMS, Cursor, PageSize

MAX_REPORTS = 1_000

InstanceId = Annotated[
    str,
    StringConstraints(pattern=r"^[A-Za-z0-9][A-Za-z0-9._:-]{0,127}$", max_length=128),
    Field(description="The engine instance, as it was registered."),
]
DpRank = Annotated[int, Field(ge=0, le=MAX_DP_RANK, description="Its data parallel rank.")]


class EngineRegister(BaseModel):
    """How a registration is taken."""

    model_config = ConfigDict(extra="forbid")

    replace: bool = Field(
        False, description="Take the place of another registration of the same key, and begin anew."
    )


class EngineRank(BaseModel):
    """Which rank of an instance is meant."""

    model_config = ConfigDict(extra="forbid")

    dp_rank: DpRank = 0


class PushedFrame(EngineRank):
    """Where a pushed frame stands."""

    sequence: int = Field(
        ge=0, le=MAX_I63, description="Its number: 0 with each start, then one more each."
    )
    lost: bool = Field(
        False, description="Take it although frames before it are missing, which will not come."
    )


class EngineQuery(BaseModel):
    """Which engines, and which page of them."""

    model_config = ConfigDict(extra="forbid")

    model: str | None = Field(None, max_length=512, description="Only those that run this model.")
    page_size: PageSize = DEFAULT_PAGE_ITEMS
    cursor: Cursor = None


class DoctorQuery(BaseModel):
    """Whom to look at."""

    model_config = ConfigDict(extra="forbid")

    engine: InstanceId | None = Field(None, description="Only this instance.")
    dp_rank: DpRank | None = Field(None, description="Only this rank of it.")


class EngineSocket(BaseModel):
    """The event socket; counts are since the engine was registered here."""

    model_config = ConfigDict(from_attributes=True)

    peers: int
    connections: int
    disconnections: int
    attempts_failed: int = Field(description="Attempts to connect that found nobody there.")
    handshakes_failed: int = Field(description="Peers that speak another protocol.")
    malformed: int = Field(description="Messages that are no frames.")
    replays: dict[str, int] = Field(description="Replays asked for, by how they ended.")
    last_replay_fault: str | None
    fault: str | None = Field(description="Why the socket cannot be opened.")


class AttentionGroup(BaseModel):
    """A KV cache group that is declared."""

    model_config = ConfigDict(from_attributes=True)

    group_idx: int
    kind: AttentionKind
    window_tokens: int | None


class EngineView(BaseModel):
    """An engine, and what is known of its blocks here. Other replicas follow it by themselves."""

    instance_id: str
    dp_rank: int
    kind: EngineKind
    model: str
    revision: str
    layout: str
    block_tokens: int
    tenants: list[str]
    salts: int = Field(description="How many salts are registered; they are not shown.")
    pooled: bool
    endpoint: str | None
    replay_endpoint: str | None
    attach: Attach
    topic: str
    node: str | None
    groups: list[AttentionGroup] = Field(description="KV cache groups, as they were declared.")
    registered_at: datetime
    state: ViewState = Field(
        description="`pending`: no frame yet; `live`: all that it told is known; `unknown`: frames "
        "are missing; `stale`: not heard for too long."
    )
    epoch: int = Field(description="One more with each process of the engine; 0 before a frame.")
    last_sequence: int | None
    lag_us: int | None = Field(description="Our clock minus the engine's, of its last frame.")
    last_frame_at: datetime | None
    last_event_at: datetime | None
    gaps: int
    frames: int
    lost_frames: int
    refused_frames: int
    last_refusal: str | None
    events: dict[str, int]
    skipped_types: dict[str, int]
    unknown_fields: dict[str, int]
    blocks: dict[str, dict[int, int]] = Field(description="Held, by medium and KV cache group.")
    quarantined: int = Field(description="Blocks that wait for their parent.")
    lost_events: int = Field(description="Events that are missing by numbers of their own.")
    left_out: dict[str, int] = Field(
        description="Blocks that came and are not there, by why. `unclear`: with multimodal inputs "
        "that cannot be read; `other_*`: of another rank, model, tenant, additional salt or "
        "backend than is registered, also where they were removed."
    )
    socket: EngineSocket | None = Field(description="Null where events are pushed.")


class EnginePage(BaseModel):
    """Engines by instance and rank."""

    items: list[EngineView]
    next_cursor: str | None
    forgotten: int = Field(
        description="Blocks that the index forgot to make room for others, of all engines."
    )


class EngineRegistered(BaseModel):
    """What became of a registration."""

    instance_id: str
    dp_rank: int
    result: Registered


class MissingFrames(BaseModel):
    """Numbers, both inclusive."""

    model_config = ConfigDict(populate_by_name=True)

    first: int = Field(alias="from")
    last: int = Field(alias="to")


class FrameTaken(BaseModel):
    """What became of a pushed frame."""

    applied: int = Field(description="Events of it.")
    repeated: bool = Field(description="It was there already: a sign of life, nothing else.")
    lost: int = Field(description="Frames that are missing right before it.")
    missing: MissingFrames | None = Field(description="The same as numbers.")
    epoch: int
    state: ViewState


class FindingView(BaseModel):
    """A precondition that fails."""

    model_config = ConfigDict(from_attributes=True)

    check: Check
    severity: Severity
    what: str
    do: str


class EngineReport(BaseModel):
    """One engine's preconditions."""

    instance_id: str
    dp_rank: int | None
    state: ViewState | None = Field(description="Null for one that is not registered.")
    ok: bool = Field(description="False where a finding is an error.")
    findings: list[FindingView] = Field(description="In the order in which to put them right.")
    passed: list[Check]


class DoctorReport(BaseModel):
    """What is wrong with which engine."""

    ok: bool
    reports: Annotated[list[EngineReport], Field(max_length=MAX_REPORTS)]
    left_off: int = Field(description="Engines beyond the limit of one answer.")
