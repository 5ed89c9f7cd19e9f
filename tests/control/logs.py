"""The log as the service would write it to stderr."""

import io
import logging
from collections.abc import Iterator
from contextlib import contextmanager

import structlog

from app.logging import configure_logging


@contextmanager
def captured_logs() -> Iterator[io.StringIO]:
    """Configure logging into a buffer; the process's own configuration is back afterwards."""
    root = logging.getLogger()
    handlers, level = list(root.handlers), root.level
    before = structlog.get_config()
    stream = io.StringIO()
    configure_logging("info", stream)
    try:
        yield stream
    finally:
        root.handlers, root.level = handlers, level
        structlog.configure(**before)
