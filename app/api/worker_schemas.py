"""The wire form of workers and of their tokens."""

from datetime import datetime
from enum import StrEnum
from typing import Annotated, Final

from pydantic import BaseModel, ConfigDict, Field, StringConstraints

from app.contract.enums import TierKind, TransferBackend
from app.topology.intake import MAX_WORKERS

MAX_TOKEN_TTL_S: Final = 300

WorkerName = Annotated[
    str,
    StringConstraints(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,127}$", max_length=128),
    Field(description="The name that the worker was started with: `--node`."),
]
PayloadId = Annotated[
    str, StringConstraints(pattern=r"^[A-Za-z0-9][A-Za-z0-9._~-]{0,254}$", max_length=255)
]
SinkId = Annotated[
    str, StringConstraints(pattern=r"^[A-Za-z0-9][A-Za-z0-9._~-]{0,127}$", max_length=128)
]
Tenant = Annotated[str, StringConstraints(min_length=1, max_length=128, pattern=r"^[^\x00]*$")]


class LoadView(BaseModel):
    """What a worker holds and does."""

    model_config = ConfigDict(from_attributes=True)

    capacity_bytes: int
    used_bytes: int
    pinned_bytes: int
    payloads: int
    sinks: int
    transfers: int


class WorkerView(BaseModel):
    """A worker as it was last heard of."""

    model_config = ConfigDict(from_attributes=True)

    name: str
    available: bool = Field(
        description="False once it was silent for too long: its states are no hits then."
    )
    instance_id: str = Field(description="New with every start of the worker.")
    instance_since: datetime = Field(description="What it held before, this start does not have.")
    heartbeat_age_us: int = Field(description="Time since its last heartbeat, in microseconds.")
    url: str
    data_address: str
    backends: list[TransferBackend]
    tiers: list[TierKind]
    load: LoadView


class WorkerList(BaseModel):
    """All workers, by name."""

    items: Annotated[list[WorkerView], Field(max_length=MAX_WORKERS)]


class HeartbeatTaken(BaseModel):
    """What was taken of a heartbeat."""

    accepted_events: list[str] = Field(description="The worker forgets these, and repeats others.")
    heartbeat_s: float = Field(description="When to send the next one.")


class IssuedDirection(StrEnum):
    """What a token for a caller can allow; registration is the workers' own."""

    PUT_PAYLOAD = "put_payload"
    GET_PAYLOAD = "get_payload"
    DELETE_PAYLOAD = "delete_payload"
    CREATE_SINK = "create_sink"
    READ_SINK = "read_sink"
    FINISH_SINK = "finish_sink"
    TRANSFER = "transfer"
    FETCH = "fetch"


class TokenRequest(BaseModel):
    """What the token is to allow, on one worker, for one tenant.

    `put_payload`, `get_payload` and `delete_payload` need a payload, `read_sink` and `finish_sink`
    a sink, `transfer` a payload and may have a sink, `create_sink` takes neither.

    `fetch` goes into the order of a transfer from another worker: `worker` is the source then,
    `target_worker` the worker that gets the order, and either `sink_id` or `target_payload_id` is
    the target there. The token vouches for the source's data address as it is known now.
    """

    model_config = ConfigDict(extra="forbid")

    worker: WorkerName
    tenant: Tenant = Field(description="The key must have it.")
    direction: IssuedDirection
    payload_id: PayloadId | None = None
    sink_id: SinkId | None = None
    target_worker: WorkerName | None = None
    target_payload_id: PayloadId | None = None
    ttl_s: int = Field(60, ge=1, le=MAX_TOKEN_TTL_S, strict=True, description="How long it lives.")


class WorkerToken(BaseModel):
    """A token, and where to use it: `Authorization: Bearer TOKEN` at `url`.

    One of `fetch` goes into an order's source, as `token`, with the `data_address` beside it.
    """

    token: str
    expires_at: datetime
    url: str
    data_address: str
