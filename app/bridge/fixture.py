"""The conformance fixture file: states to register at start."""

from pathlib import Path
from typing import Final

import orjson

from app.contract.registration import Registration, parse_registration
from app.errors import ErrorCode, NexusError

FIXTURE_SCHEMA: Final = "locus.nexuskv-bridge.fixture.v1"
_MAX_FIXTURE_BYTES: Final = 64 * 1024 * 1024


def load_fixture(path: Path) -> list[Registration]:
    """The states of a fixture; its `requests` and `expectations` are its reader's business.

    Raises NexusError naming the file and the entry that is wrong.
    """
    try:
        if path.stat().st_size > _MAX_FIXTURE_BYTES:
            raise NexusError(ErrorCode.REQUEST_TOO_LARGE, f"{path} is larger than 64 MiB")
        document = orjson.loads(path.read_bytes())
    except OSError as error:
        raise NexusError(ErrorCode.INVALID_BODY, f"cannot read {path}: {error.strerror}") from None
    except orjson.JSONDecodeError as error:
        raise NexusError(ErrorCode.INVALID_JSON, f"{path} is not valid JSON: {error}") from None
    if not isinstance(document, dict) or document.get("schema_version") != FIXTURE_SCHEMA:
        raise NexusError(
            ErrorCode.INVALID_FIELD, f"{path}: schema_version must be {FIXTURE_SCHEMA!r}"
        )
    entries = document.get("entries")
    if not isinstance(entries, list):
        raise NexusError(ErrorCode.INVALID_FIELD, f"{path}: entries must be a list")
    return [_entry(path, position, entry) for position, entry in enumerate(entries)]


def _entry(path: Path, position: int, entry: object) -> Registration:
    if not isinstance(entry, dict):
        raise NexusError(ErrorCode.INVALID_FIELD, f"{path}: /entries/{position} must be an object")
    try:
        return parse_registration(entry)
    except NexusError as error:
        raise NexusError(
            error.code, f"{path}: /entries/{position}: {error.message}", errors=error.errors
        ) from None
