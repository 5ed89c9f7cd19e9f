"""The routes of the control port as they are published: token, body, answers, headers, errors.

The routes themselves are plain and decode their own bodies (`http.py`, `upload.py`); tests hold
this table equal to what they do.
"""

from typing import Any, Final, NamedTuple

from msgspec import Struct

from app.errors import ErrorCode
from app.transfer.tokens import Direction
from app.transfer.wire import (
    CHECKSUM_HEADER,
    Checksum,
    FinishSink,
    NewSink,
    NewTransfer,
    PayloadFacts,
    PayloadId,
    SessionId,
    SinkFacts,
    SinkId,
    TransferFacts,
)

BYTES: Final = "application/octet-stream"
JSON: Final = "application/json"
METRICS: Final = "text/plain"

E = ErrorCode
_BODY: Final = (
    E.MISSING_FIELD,
    E.UNKNOWN_FIELD,
    E.INVALID_FIELD,
    E.INVALID_JSON,
    E.INVALID_BODY,
)
# Whatever is asked: also a GET may bring a body, and a fault of ours is possible.
_ANY: Final = (E.INVALID_CONTENT_LENGTH, E.INVALID_BODY, E.REQUEST_TOO_LARGE, E.INTERNAL_ERROR)
_TOKEN: Final = (*_ANY, E.UNAUTHORIZED, E.FORBIDDEN)


class Parameter(NamedTuple):
    """One thing in the path or a header. `type_` is a wire type, or a JSON Schema where none is."""

    name: str
    place: str
    type_: Any
    description: str


class Answer(NamedTuple):
    """One answer that is no error."""

    status: int
    media_type: str
    description: str
    # A wire type, or a JSON Schema.
    content: Any = None
    headers: tuple[str, ...] = ()


class Operation(NamedTuple):
    """One method of one path. `direction` is what its token is for; None: it takes none."""

    method: str
    path: str
    name: str
    summary: str
    direction: Direction | None
    answers: tuple[Answer, ...]
    errors: tuple[ErrorCode, ...] = ()
    description: str = ""
    body: type[Struct] | str | None = None
    parameters: tuple[Parameter, ...] = ()


_PAYLOAD: Final = Parameter("payload_id", "path", PayloadId, "Chosen by whoever uploads it.")
_SINK: Final = Parameter("sink_id", "path", SinkId, "As the worker, or the engine, named it.")
_SESSION: Final = Parameter("session_id", "path", SessionId, "As the order named it.")
_RANGE: Final = Parameter(
    "Range",
    "header",
    {"type": "string", "examples": ["bytes=0-1023"]},
    "One range of bytes; what is no single one is ignored.",
)
_STATED: Final = Parameter(
    CHECKSUM_HEADER, "header", Checksum, "XXH3-128 of the body; another one is refused."
)
_PARTIAL: Final = (CHECKSUM_HEADER, "accept-ranges", "content-range")
_CONTENT: Final = (
    Answer(200, BYTES, "All bytes.", headers=(CHECKSUM_HEADER, "accept-ranges")),
    Answer(206, BYTES, "The range. The checksum is that of all bytes.", headers=_PARTIAL),
)
_STATUS: Final = {
    "type": "object",
    "properties": {"status": {"type": "string", "enum": ["ok", "ready", "stopping"]}},
    "required": ["status"],
    "additionalProperties": False,
}


def _payload_answer(status: int, description: str, *headers: str) -> Answer:
    return Answer(status, JSON, description, PayloadFacts, headers)


def _sink_answer(status: int, description: str) -> Answer:
    return Answer(status, JSON, description, SinkFacts)


def _finish(how: str, summary: str, description: str) -> Operation:
    return Operation(
        "post", f"/v1/sinks/{{sink_id}}:{how}", f"{how}_sink", summary, Direction.FINISH_SINK,
        (_sink_answer(200, "The sink, now or before."),),
        (*_BODY, E.NOT_FOUND, E.STALE_GENERATION, E.SINK_NOT_COMPLETE),
        description, FinishSink, (_SINK,),
    )  # fmt: skip


def _content(method: str, path: str, name: str, what: Parameter, *errors: ErrorCode) -> Operation:
    direction = Direction.GET_PAYLOAD if what is _PAYLOAD else Direction.READ_SINK
    reads = "The bytes" if method == "get" else "The headers of the bytes"
    return Operation(
        method, path, name, reads, direction, _CONTENT,
        (*errors, E.NOT_FOUND, E.RANGE_NOT_SATISFIABLE), parameters=(what, _RANGE),
    )  # fmt: skip


_PAYLOAD_PATH: Final = "/v1/payloads/{payload_id}"
_SINK_CONTENT: Final = "/v1/sinks/{sink_id}/content"
_TRANSFER_PATH: Final = "/v1/transfers/{session_id}"
_TRANSFER_FACTS: Final = Answer(200, JSON, "The facts, also of one that failed.", TransferFacts)

OPERATIONS: Final = (
    Operation(
        "put", _PAYLOAD_PATH, "put_payload", "Store a payload", Direction.PUT_PAYLOAD,
        (
            _payload_answer(201, "Stored under a new id.", CHECKSUM_HEADER),
            _payload_answer(200, "Replaced, or the same content again.", CHECKSUM_HEADER),
        ),
        (
            E.INVALID_FIELD, E.CHECKSUM_MISMATCH, E.LENGTH_REQUIRED, E.OVERLOADED, E.WORKER_FULL,
        ),
        "The body is the bytes, with Content-Length. Nobody finds it before it is whole.",
        BYTES, (_PAYLOAD, _STATED),
    ),
    _content("get", _PAYLOAD_PATH, "get_payload", _PAYLOAD, E.INVALID_FIELD),
    _content("head", _PAYLOAD_PATH, "head_payload", _PAYLOAD, E.INVALID_FIELD),
    Operation(
        "get", f"{_PAYLOAD_PATH}/facts", "get_payload_facts", "Size, checksum, pins",
        Direction.GET_PAYLOAD, (_payload_answer(200, "The payload."),),
        (E.INVALID_FIELD, E.NOT_FOUND), parameters=(_PAYLOAD,),
    ),
    Operation(
        "delete", _PAYLOAD_PATH, "delete_payload", "Delete a payload", Direction.DELETE_PAYLOAD,
        (_payload_answer(200, "What was deleted. Who reads it finishes."),),
        (E.INVALID_FIELD, E.NOT_FOUND), parameters=(_PAYLOAD,),
    ),
    Operation(
        "post", "/v1/sinks", "create_sink", "Make a sink", Direction.CREATE_SINK,
        (
            _sink_answer(201, "A new sink, open."),
            _sink_answer(200, "The sink of this id and these facts, which was there."),
        ),
        (*_BODY, E.SINK_CONFLICT, E.STALE_GENERATION, E.WORKER_FULL),
        "Making it authorises the transfer into it, for that generation of the engine.", NewSink,
    ),
    Operation(
        "get", "/v1/sinks/{sink_id}", "get_sink", "The facts of a sink", Direction.READ_SINK,
        (_sink_answer(200, "The sink; for an hour after its end, too."),), (E.NOT_FOUND,),
        parameters=(_SINK,),
    ),
    _content("get", _SINK_CONTENT, "get_sink_content", _SINK, E.SINK_NOT_COMPLETE),
    _content("head", _SINK_CONTENT, "head_sink_content", _SINK, E.SINK_NOT_COMPLETE),
    _finish("consume", "The runtime took it", "Only of a complete sink. Repeating it is safe."),
    _finish(
        "discard", "The runtime does not want it",
        "Stops a transfer that fills it. Repeating it is safe.",
    ),
    Operation(
        "post", "/v1/transfers", "order_transfer", "Pull a payload", Direction.TRANSFER,
        (Answer(200, JSON, "Its facts when it ended, or after `wait_s`.", TransferFacts),),
        (*_BODY, E.TRANSFER_CONFLICT, E.OVERLOADED),
        "A transfer that failed is an answer, with `failure`. From another worker the order has a "
        "`fetch` token, and the data address that this token vouches for: nothing else is called.",
        NewTransfer,
    ),
    Operation(
        "get", _TRANSFER_PATH, "get_transfer", "The facts of a transfer", Direction.TRANSFER,
        (_TRANSFER_FACTS,), (E.NOT_FOUND,), parameters=(_SESSION,),
    ),
    Operation(
        "delete", _TRANSFER_PATH, "cancel_transfer", "Cancel a transfer", Direction.TRANSFER,
        (_TRANSFER_FACTS,), (E.NOT_FOUND,), "One that has ended stays as it is.",
        parameters=(_SESSION,),
    ),
    Operation(
        "get", "/livez", "livez", "Does the process answer?", None,
        (Answer(200, JSON, "It does.", _STATUS),),
    ),
    Operation(
        "get", "/readyz", "readyz", "Does it take orders?", None,
        (
            Answer(200, JSON, "It does.", _STATUS),
            Answer(503, JSON, "It is stopping.", _STATUS),
        ),
    ),
    Operation(
        "get", "/metrics", "metrics", "Prometheus metrics", None,
        (Answer(200, METRICS, "The exposition.", {"type": "string"}),),
    ),
    Operation(
        "get", "/openapi.json", "openapi", "This document", None,
        (Answer(200, JSON, "OpenAPI 3.1.", {"type": "object"}),),
    ),
)  # fmt: skip


def errors_of(operation: Operation) -> tuple[ErrorCode, ...]:
    """Every error that an operation can answer."""
    return (*(_ANY if operation.direction is None else _TOKEN), *operation.errors)


# Which payload or sink a token is for, in words.
BOUND_TO: Final[dict[Direction, str]] = {
    Direction.PUT_PAYLOAD: "this payload",
    Direction.GET_PAYLOAD: "this payload",
    Direction.DELETE_PAYLOAD: "this payload",
    Direction.CREATE_SINK: "no payload and no sink",
    Direction.READ_SINK: "this sink",
    Direction.FINISH_SINK: "this sink",
    Direction.TRANSFER: "the source's payload and, if there is one, the target sink",
}
