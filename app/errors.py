"""Domain errors without HTTP, and the one table that maps them to it.

A `NexusError` carries a public message that tells the caller what to do, and an internal one for
the log. Only the edges (`app.problem`, `app.bridge.errors`) turn it into a response.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import NamedTuple


class ErrorCode(StrEnum):
    """Every error a caller can meet on either API."""

    MISSING_FIELD = "missing_field"
    UNKNOWN_FIELD = "unknown_field"
    INVALID_FIELD = "invalid_field"
    INVALID_JSON = "invalid_json"
    INVALID_BODY = "invalid_body"
    INVALID_CONTENT_LENGTH = "invalid_content_length"
    INVALID_CURSOR = "invalid_cursor"
    UNAUTHORIZED = "unauthorized"
    FORBIDDEN = "forbidden"
    TENANT_FORBIDDEN = "tenant_forbidden"
    NOT_FOUND = "not_found"
    METHOD_NOT_ALLOWED = "method_not_allowed"
    GENERATION_CONFLICT = "generation_conflict"
    VALIDATION_EVIDENCE_MISSING = "validation_evidence_missing"
    VALIDATION_EVIDENCE_MISMATCH = "validation_evidence_mismatch"
    SOURCE_HANDLE_MISMATCH = "source_handle_mismatch"
    SOURCE_STATE_MISMATCH = "source_state_mismatch"
    SOURCE_LOCATION_MISMATCH = "source_location_mismatch"
    UNKNOWN_MATERIALIZATION_OPTION = "unknown_materialization_option"
    MATERIALIZATION_OPTION_CONSUMED = "materialization_option_consumed"
    MATERIALIZATION_OPTION_EXPIRED = "materialization_option_expired"
    MATERIALIZATION_OPTION_MISMATCH = "materialization_option_mismatch"
    MATERIALIZATION_TARGET_MISMATCH = "materialization_target_mismatch"
    POLICY_CHANGED = "policy_changed"
    TOPOLOGY_CHANGED = "topology_changed"
    REQUEST_TOO_LARGE = "request_too_large"
    QUERY_TOO_LARGE = "query_too_large"
    UNSUPPORTED_MEDIA_TYPE = "unsupported_media_type"
    UNSUPPORTED_IDENTITY = "unsupported_identity"
    UNSUPPORTED_BRIDGE_SCHEMA = "unsupported_bridge_schema"
    UNSUPPORTED_NEXUSKV_SCHEMA = "unsupported_nexuskv_schema"
    INTERNAL_ERROR = "internal_error"
    MATERIALIZATION_UNAVAILABLE = "materialization_unavailable"
    DATABASE_UNAVAILABLE = "database_unavailable"
    OVERLOADED = "overloaded"
    WORKER_HOST_NOT_ALLOWED = "worker_host_not_allowed"
    WORKER_NAME_TAKEN = "worker_name_taken"
    WORKERS_NOT_CONFIGURED = "workers_not_configured"
    CHECKSUM_MISMATCH = "checksum_mismatch"
    SINK_CONFLICT = "sink_conflict"
    SINK_NOT_COMPLETE = "sink_not_complete"
    STALE_GENERATION = "stale_generation"
    TRANSFER_CONFLICT = "transfer_conflict"
    LENGTH_REQUIRED = "length_required"
    RANGE_NOT_SATISFIABLE = "range_not_satisfiable"
    WORKER_FULL = "worker_full"
    ENGINE_HOST_NOT_ALLOWED = "engine_host_not_allowed"
    ENGINE_CONFLICT = "engine_conflict"
    EVENTS_MISSING = "events_missing"
    INDEX_AWAY = "index_away"
    OUTCOME_CONFLICT = "outcome_conflict"
    NOT_RERUNNABLE = "not_rerunnable"
    NO_USABLE_TARGET = "no_usable_target"


class ErrorRule(NamedTuple):
    """How one code travels: HTTP status, whether the same request may succeed later, a title."""

    status: int
    retryable: bool
    title: str


ERROR_RULES: dict[ErrorCode, ErrorRule] = {
    ErrorCode.MISSING_FIELD: ErrorRule(400, False, "A required field is missing"),
    ErrorCode.UNKNOWN_FIELD: ErrorRule(400, False, "A field is not known"),
    ErrorCode.INVALID_FIELD: ErrorRule(400, False, "A field has an invalid value"),
    ErrorCode.INVALID_JSON: ErrorRule(400, False, "The body is not JSON"),
    ErrorCode.INVALID_BODY: ErrorRule(400, False, "The body has the wrong shape"),
    ErrorCode.INVALID_CONTENT_LENGTH: ErrorRule(400, False, "Content-Length is invalid"),
    ErrorCode.INVALID_CURSOR: ErrorRule(400, False, "The page cursor is invalid"),
    ErrorCode.UNAUTHORIZED: ErrorRule(401, False, "A valid API key is required"),
    ErrorCode.FORBIDDEN: ErrorRule(403, False, "The API key lacks the scope"),
    ErrorCode.TENANT_FORBIDDEN: ErrorRule(403, False, "The API key lacks the tenant"),
    ErrorCode.NOT_FOUND: ErrorRule(404, False, "Not found"),
    ErrorCode.METHOD_NOT_ALLOWED: ErrorRule(405, False, "Method not allowed"),
    ErrorCode.GENERATION_CONFLICT: ErrorRule(409, False, "The state has another generation"),
    ErrorCode.VALIDATION_EVIDENCE_MISSING: ErrorRule(409, False, "Evidence is missing"),
    ErrorCode.VALIDATION_EVIDENCE_MISMATCH: ErrorRule(409, False, "Evidence differs"),
    ErrorCode.SOURCE_HANDLE_MISMATCH: ErrorRule(409, False, "The source handle is not valid"),
    ErrorCode.SOURCE_STATE_MISMATCH: ErrorRule(409, False, "The source state differs"),
    ErrorCode.SOURCE_LOCATION_MISMATCH: ErrorRule(409, False, "The source location differs"),
    ErrorCode.UNKNOWN_MATERIALIZATION_OPTION: ErrorRule(409, False, "No such option"),
    ErrorCode.MATERIALIZATION_OPTION_CONSUMED: ErrorRule(409, False, "The option is consumed"),
    ErrorCode.MATERIALIZATION_OPTION_EXPIRED: ErrorRule(409, False, "The option is expired"),
    ErrorCode.MATERIALIZATION_OPTION_MISMATCH: ErrorRule(409, False, "The option differs"),
    ErrorCode.MATERIALIZATION_TARGET_MISMATCH: ErrorRule(409, False, "The target differs"),
    ErrorCode.POLICY_CHANGED: ErrorRule(412, False, "Another policy is active"),
    ErrorCode.TOPOLOGY_CHANGED: ErrorRule(412, False, "Another topology is in force"),
    ErrorCode.REQUEST_TOO_LARGE: ErrorRule(413, False, "The body is too large"),
    ErrorCode.QUERY_TOO_LARGE: ErrorRule(413, False, "The query has too many tokens"),
    ErrorCode.UNSUPPORTED_MEDIA_TYPE: ErrorRule(415, False, "The media type is not supported"),
    ErrorCode.UNSUPPORTED_IDENTITY: ErrorRule(422, False, "The identity is not supported"),
    ErrorCode.UNSUPPORTED_BRIDGE_SCHEMA: ErrorRule(422, False, "Unsupported bridge schema"),
    ErrorCode.UNSUPPORTED_NEXUSKV_SCHEMA: ErrorRule(422, False, "Unsupported NexusKV schema"),
    ErrorCode.INTERNAL_ERROR: ErrorRule(500, True, "Internal error"),
    ErrorCode.MATERIALIZATION_UNAVAILABLE: ErrorRule(503, True, "Materialization is unavailable"),
    ErrorCode.DATABASE_UNAVAILABLE: ErrorRule(503, True, "The database is unavailable"),
    ErrorCode.OVERLOADED: ErrorRule(503, True, "The service is at its limit"),
    ErrorCode.WORKER_HOST_NOT_ALLOWED: ErrorRule(403, False, "The worker's host is not allowed"),
    ErrorCode.WORKER_NAME_TAKEN: ErrorRule(409, False, "Another worker has the name"),
    ErrorCode.WORKERS_NOT_CONFIGURED: ErrorRule(503, True, "Workers are not configured"),
    ErrorCode.CHECKSUM_MISMATCH: ErrorRule(400, False, "The bytes have another checksum"),
    ErrorCode.SINK_CONFLICT: ErrorRule(409, False, "The sink has other facts"),
    ErrorCode.SINK_NOT_COMPLETE: ErrorRule(409, False, "The sink is not complete"),
    ErrorCode.TRANSFER_CONFLICT: ErrorRule(409, False, "The transfer id stands for another one"),
    ErrorCode.STALE_GENERATION: ErrorRule(409, False, "The engine generation is stale"),
    ErrorCode.LENGTH_REQUIRED: ErrorRule(411, False, "Content-Length is required"),
    ErrorCode.RANGE_NOT_SATISFIABLE: ErrorRule(416, False, "The range is outside the content"),
    ErrorCode.WORKER_FULL: ErrorRule(507, True, "The worker is full"),
    ErrorCode.ENGINE_HOST_NOT_ALLOWED: ErrorRule(403, False, "The engine's host is not allowed"),
    ErrorCode.ENGINE_CONFLICT: ErrorRule(409, False, "The engine is registered otherwise"),
    ErrorCode.EVENTS_MISSING: ErrorRule(409, False, "Frames before this one are missing"),
    ErrorCode.INDEX_AWAY: ErrorRule(503, True, "The index's writer is away"),
    ErrorCode.OUTCOME_CONFLICT: ErrorRule(409, False, "The report says something else"),
    ErrorCode.NOT_RERUNNABLE: ErrorRule(409, False, "The decision cannot be made again"),
    ErrorCode.NO_USABLE_TARGET: ErrorRule(409, False, "No target may be used"),
}


@dataclass(frozen=True, slots=True)
class FieldError:
    """One finding in a caller's document: JSON pointer, code, and what would be right.

    `allowed` lists the values of a closed vocabulary. `value` is what stands there, as bounded JSON
    text; only documents that hold nothing of a prompt, and no credential, set it.
    """

    pointer: str
    code: ErrorCode
    detail: str
    allowed: tuple[str, ...] = ()
    value: str | None = None


class NexusError(Exception):
    """A refusal with a code from the closed enum.

    `message` is public and says what to do; `internal` goes to the log only.
    """

    def __init__(
        self,
        code: ErrorCode,
        message: str,
        *,
        errors: Sequence[FieldError] = (),
        internal: str | None = None,
    ) -> None:
        super().__init__(message)
        self.code = code
        self.message = message
        self.errors = tuple(errors)
        self.internal = internal

    @property
    def status(self) -> int:
        return ERROR_RULES[self.code].status

    @property
    def retryable(self) -> bool:
        return ERROR_RULES[self.code].retryable
