"""The bridge's one error shape, as bytes."""

import msgspec

from app.bridge.schemas import BRIDGE_SCHEMA
from app.errors import ErrorCode, NexusError

# What this wire has a word for; anything else is the nearest one (the status stays the same class).
_ON_THE_WIRE = {
    ErrorCode.FORBIDDEN: ErrorCode.TENANT_FORBIDDEN,
    ErrorCode.DATABASE_UNAVAILABLE: ErrorCode.MATERIALIZATION_UNAVAILABLE,
    ErrorCode.OVERLOADED: ErrorCode.MATERIALIZATION_UNAVAILABLE,
    ErrorCode.METHOD_NOT_ALLOWED: ErrorCode.NOT_FOUND,
    ErrorCode.UNSUPPORTED_MEDIA_TYPE: ErrorCode.INVALID_BODY,
}


def on_the_wire(error: NexusError) -> NexusError:
    """The error under the code that the Locus client knows."""
    code = _ON_THE_WIRE.get(error.code)
    if code is None:
        return error
    return NexusError(code, error.message, errors=error.errors, internal=error.internal)


def error_body(error: NexusError) -> bytes:
    return msgspec.json.encode(
        {
            "schema_version": BRIDGE_SCHEMA,
            "error": {"code": error.code.value, "message": error.message or error.code.value},
        }
    )
