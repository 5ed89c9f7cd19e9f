"""What the API and its workers say to each other over HTTP, and what a worker answers anyone.

Checksums are XXH3-128 of all bytes, as 32 lower-case hex digits; sizes are in bytes, times in
microseconds. A payload id is chosen by whoever uploads it, a sink id by the worker.
"""

from enum import StrEnum
from typing import Annotated, Final, Literal

from msgspec import Meta, Struct

from app.contract.enums import TierKind, TransferBackend, TransferStatus
from app.contract.limits import MAX_U32, U63, Detail, Name, ScopeName

WORKER_SCHEMA: Final = "nexuskv.worker.v1"
SINK_NAMESPACE: Final = "nexuskv.worker-sink.v1"
CHECKSUM_HEADER: Final = "x-nexuskv-xxh3-128"

_HEX = "[0-9a-f]"
_UUID = f"^{_HEX}{{8}}-{_HEX}{{4}}-{_HEX}{{4}}-{_HEX}{{4}}-{_HEX}{{12}}$(?!\n)"
# Part of a locator (`node://WORKER/state/PAYLOAD`) and of URLs: nothing that needs an escape.
WorkerName = Annotated[
    str, Meta(pattern="^[A-Za-z0-9][A-Za-z0-9._-]{0,127}$(?!\n)", max_length=128)
]
PayloadId = Annotated[
    str, Meta(pattern="^[A-Za-z0-9][A-Za-z0-9._~-]{0,254}$(?!\n)", max_length=255)
]
SinkId = Annotated[str, Meta(pattern="^[A-Za-z0-9][A-Za-z0-9._~-]{0,127}$(?!\n)", max_length=128)]
SessionId = Annotated[str, Meta(pattern="^[A-Za-z0-9][A-Za-z0-9._-]{0,127}$(?!\n)", max_length=128)]
Checksum = Annotated[str, Meta(pattern="^[0-9a-f]{32}$(?!\n)", max_length=32)]
EventId = Annotated[str, Meta(pattern=_UUID, max_length=36)]
Generation = Annotated[int, Meta(ge=0, le=MAX_U32)]
# http://host:port, and host:port; the API checks the host against its allow-list as well.
WorkerUrl = Annotated[str, Meta(pattern=r"^https?://[^/?#@\s]+$(?!\n)", max_length=512)]
HostPort = Annotated[str, Meta(pattern=r"^[^/?#@\s]+:[0-9]{1,5}$(?!\n)", max_length=512)]


class PayloadFacts(Struct, frozen=True):
    """`PUT|GET(facts)|DELETE /v1/payloads/{id}`: a payload that is whole and verified."""

    payload_id: str
    tenant: str
    payload_bytes: int
    checksum: str
    tier: TierKind = TierKind.HOST_DRAM
    pins: int = 0


class SinkState(StrEnum):
    """The life of a sink. Its bytes can be read in `complete` and in no other state."""

    OPEN = "open"  # created, empty
    FILLING = "filling"  # a transfer is running
    COMPLETE = "complete"  # bytes verified
    CONSUMED = "consumed"  # the runtime took it
    DISCARDED = "discarded"  # the runtime did not want it
    EXPIRED = "expired"  # nobody came; the worker took its memory back


class NewSink(Struct, frozen=True, forbid_unknown_fields=True):
    """`POST /v1/sinks`. Making it authorises the transfer into it, for that engine generation.

    `sink_id` may be given so that a retry makes no second one; else the worker chooses it.
    """

    payload_bytes: Annotated[int, Meta(ge=1)]
    engine_id: Name
    engine_generation: Generation
    sink_id: SinkId | None = None
    ttl_s: Annotated[int, Meta(ge=1, le=86_400)] | None = None


class SinkFacts(Struct, frozen=True):
    """A sink. `session_id` and `checksum` are those of the transfer that completed it."""

    sink_id: str
    tenant: str
    payload_bytes: int
    engine_id: str
    engine_generation: int
    state: SinkState
    session_id: str | None = None
    checksum: str | None = None


class FinishSink(Struct, frozen=True, forbid_unknown_fields=True):
    """`POST /v1/sinks/{id}:consume|:discard`. A stale engine generation is refused."""

    engine_id: Name
    engine_generation: Generation
    reason: Detail | None = None


class TransferSource(Struct, frozen=True, forbid_unknown_fields=True):
    """Where the bytes are. `data_address` is the source worker's data port, host:port.

    `token` is a FETCH token for that worker, payload and target, and vouches for that address: the
    receiver connects nowhere else. Both are ignored when the source is the worker that receives the
    order.
    """

    worker: WorkerName
    payload_id: PayloadId
    data_address: HostPort | None = None
    token: str | None = None
    # Refuse a payload that has other bytes than these, when the caller knows them.
    checksum: Checksum | None = None
    payload_bytes: U63 | None = None


class NewTransfer(Struct, frozen=True, forbid_unknown_fields=True):
    """`POST /v1/transfers` to the destination, which pulls. Exactly one of the targets is given.

    The same `session_id` with the same order is the same transfer: it is joined while it runs,
    answered again when it completed and its bytes are still there, and tried anew otherwise. With
    another order it is refused. The answer comes when the transfer ended, or after `wait_s`.
    """

    session_id: SessionId
    source: TransferSource
    backend: TransferBackend
    target_sink_id: SinkId | None = None
    target_payload_id: PayloadId | None = None
    engine_id: Name | None = None
    engine_generation: Generation | None = None
    # Comes back in the events about the sink, for who reads them. The API goes by the session:
    # anyone with a token may write here what it likes.
    decision_id: EventId | None = None
    wait_s: Annotated[float, Meta(ge=0, le=600)] = 30.0
    deadline_s: Annotated[float, Meta(gt=0, le=600)] = 30.0


class TransferFailure(StrEnum):
    """Why a transfer did not complete."""

    SOURCE_UNREACHABLE = "source_unreachable"
    SOURCE_REFUSED = "source_refused"
    PAYLOAD_MISSING = "payload_missing"
    SIZE_MISMATCH = "size_mismatch"
    CHECKSUM_MISMATCH = "checksum_mismatch"
    SINK_MISSING = "sink_missing"
    SINK_NOT_OPEN = "sink_not_open"
    STALE_GENERATION = "stale_generation"
    NO_SPACE = "no_space"
    BACKEND_UNSUPPORTED = "backend_unsupported"
    DEADLINE = "deadline"
    CANCELLED = "cancelled"
    INTERNAL = "internal"


class TransferFacts(Struct, frozen=True):
    """A transfer, from its order on. `bytes_transferred` and `checksum` are what was verified.

    `completed` means: every byte is at the destination and its checksum, computed there, is the one
    that the source states.
    """

    session_id: str
    status: TransferStatus
    backend: TransferBackend
    source_worker: str
    payload_id: str
    target_sink_id: str | None = None
    target_payload_id: str | None = None
    bytes_transferred: int = 0
    checksum: str | None = None
    transfer_us: int | None = None
    failure: TransferFailure | None = None
    detail: str | None = None


class SinkEvent(Struct, frozen=True, forbid_unknown_fields=True):
    """What became of a sink, told to the API at least once; `event_id` is a uuid (version 7)."""

    event_id: EventId
    sink_id: SinkId
    tenant: ScopeName
    state: Literal["consumed", "discarded", "expired"]
    at_us: U63
    payload_bytes: U63
    session_id: SessionId | None = None
    decision_id: EventId | None = None
    reason: Detail | None = None


class GonePayload(Struct, frozen=True, forbid_unknown_fields=True):
    """A payload that a tenant had on a worker and has there no more: evicted or deleted.

    Another tenant's of the same id is another payload.
    """

    tenant: ScopeName
    payload_id: PayloadId


class WorkerLoad(Struct, frozen=True, forbid_unknown_fields=True):
    """What a worker holds and does now."""

    capacity_bytes: U63
    used_bytes: U63
    pinned_bytes: U63
    payloads: U63
    sinks: U63
    transfers: U63


class Heartbeat(Struct, frozen=True, forbid_unknown_fields=True):
    """`PUT /v1/workers/{name}` of the API, once a second: registration and sign of life in one.

    `instance_id` is new with every start of the process: what another instance held is gone.
    """

    schema_version: Literal["nexuskv.worker.v1"]
    instance_id: EventId
    url: WorkerUrl
    data_address: HostPort
    backends: Annotated[tuple[TransferBackend, ...], Meta(max_length=16)]
    tiers: Annotated[tuple[TierKind, ...], Meta(max_length=16)]
    load: WorkerLoad
    events: Annotated[tuple[SinkEvent, ...], Meta(max_length=1_000)] = ()
    # What this instance no longer holds.
    gone_payloads: Annotated[tuple[GonePayload, ...], Meta(max_length=1_000)] = ()


class HeartbeatAnswer(Struct, frozen=True):
    """What was taken: the worker forgets these events, and sends the others again."""

    accepted_events: tuple[str, ...] = ()
    heartbeat_s: float = 1.0
