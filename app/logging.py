"""Logs: one JSON object a line on stderr, ours and every library's, with credentials masked."""

import json
import logging
import re
import sys
from collections.abc import Mapping
from typing import Any, TextIO

import orjson
import structlog
from structlog.stdlib import ProcessorFormatter
from structlog.typing import EventDict, Processor, WrappedLogger

MASK = "***"

# Exact names, and endings of longer ones; `key_id` and `token_count` stay readable.
_SECRET_NAMES = frozenset(
    {
        "authorization", "cookie", "credential", "credentials", "database_url", "dsn", "handle",
        "handles", "key", "keys", "password", "secret", "secrets", "token", "tokens",
    }
)  # fmt: skip
_SECRET_ENDINGS = ("_handle", "_key", "_password", "_secret", "_token", "_tokens")
_SECRET_TEXT: tuple[tuple[re.Pattern[str], str], ...] = (
    (re.compile(r"nkv_([0-9a-z]{1,32})_[0-9A-Za-z]+"), rf"nkv_\1_{MASK}"),
    (re.compile(r"\b(nkv[so]1\.)[0-9A-Za-z_-]+"), rf"\1{MASK}"),
    (re.compile(r"(?i)\b(bearer\s+)(?!nkv_)[^\s\"',]+"), rf"\1{MASK}"),
    (re.compile(r"(?i)(postgres(?:ql)?(?:\+\w+)?://[^\s:/@]*):[^\s]*@"), rf"\1:{MASK}@"),
    (re.compile(r"(?i)(\bpassword=)[^\s&\"']+"), rf"\1{MASK}"),
)
_MAX_DEPTH = 8
_ACCESS_LOGGERS = ("uvicorn.access",)  # It writes query strings; `app.request_context` does not.
_URL_LOGGERS = ("httpx", "httpcore")  # At info they write whole URLs, queries included.
_ADOPTED_LOGGERS = ("uvicorn", "uvicorn.error", "sqlalchemy", "alembic")


def configure_logging(level: str = "info", stream: TextIO | None = None) -> None:
    """Send every log line of the process, as JSON, to `stream` (stderr).

    `level` is a name of the standard library's, any case; raises ValueError for another. May be
    called again: the last call holds.
    """
    number = logging.getLevelNamesMapping().get(level.upper())
    if number is None:
        raise ValueError(f"There is no log level {level!r}: debug, info, warning, error, critical")
    before: list[Processor] = [
        structlog.contextvars.merge_contextvars,
        structlog.stdlib.add_log_level,
        # The time of the line itself; nothing else takes the time from here.
        structlog.processors.TimeStamper(fmt="iso", utc=True),
    ]
    formatter = ProcessorFormatter(
        foreign_pre_chain=[*before, structlog.stdlib.add_logger_name],
        processors=[
            ProcessorFormatter.remove_processors_meta,
            structlog.processors.format_exc_info,
            redact,
            structlog.processors.JSONRenderer(serializer=_to_json),
        ],
    )
    handler = logging.StreamHandler(stream or sys.stderr)
    handler.setFormatter(formatter)
    root = logging.getLogger()
    root.handlers = [handler]
    root.setLevel(number)
    for name in _ADOPTED_LOGGERS:
        adopted = logging.getLogger(name)
        adopted.handlers = []
        adopted.propagate = True
    for name in _ACCESS_LOGGERS:
        access = logging.getLogger(name)
        access.handlers = []
        access.propagate = False
    for name in _URL_LOGGERS:
        logging.getLogger(name).setLevel(max(number, logging.WARNING))
    structlog.configure(
        processors=[
            structlog.stdlib.filter_by_level,
            structlog.stdlib.add_logger_name,
            *before,
            ProcessorFormatter.wrap_for_formatter,
        ],
        wrapper_class=structlog.stdlib.BoundLogger,
        logger_factory=structlog.stdlib.LoggerFactory(),
        cache_logger_on_first_use=False,
    )


def redact(_logger: WrappedLogger, _method: str, event: EventDict) -> EventDict:
    """Mask credentials: values under telling names, and telling patterns inside any text."""
    return {mask_text(name): _redacted(name, value, 0) for name, value in event.items()}


def mask_text(text: str) -> str:
    """`text` without API keys, bearer credentials and passwords of database URLs."""
    for pattern, replacement in _SECRET_TEXT:
        text = pattern.sub(replacement, text)
    return text


def _redacted(name: object, value: Any, depth: int) -> Any:
    if isinstance(name, str) and _is_secret_name(name.lower()):
        return MASK
    if value is None or isinstance(value, bool | int | float):
        return value
    if isinstance(value, bytes | bytearray | memoryview):
        return f"<{len(value)} bytes>"
    if depth < _MAX_DEPTH and isinstance(value, Mapping):
        return {mask_text(str(key)): _redacted(key, item, depth + 1) for key, item in value.items()}
    if depth < _MAX_DEPTH and isinstance(value, list | tuple | set | frozenset):
        return [_redacted(None, item, depth + 1) for item in value]
    return mask_text(str(value))


def _is_secret_name(name: str) -> bool:
    return name in _SECRET_NAMES or name.endswith(_SECRET_ENDINGS)


def _to_json(event: Any, **_: Any) -> str:
    try:
        return orjson.dumps(event).decode()
    except (TypeError, orjson.JSONEncodeError):
        # Lone surrogates and integers over 64 bits: the line matters more than its speed.
        return json.dumps(event, default=str)
