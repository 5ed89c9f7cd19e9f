"""One replica a spool directory, and one copier."""

import fcntl
import os
from pathlib import Path
from typing import Final

REPLICA: Final = "replica.lock"
COPIER: Final = "copier.lock"


class SpoolInUseError(OSError):
    """Another process has the directory; the message says what to do."""


class DirectoryLock:
    """Held until it is released, or the process ends, however it does."""

    def __init__(self, directory: Path, name: str) -> None:
        """Makes the directory. Raises SpoolInUseError, OSError."""
        directory.mkdir(parents=True, exist_ok=True, mode=0o700)
        self._descriptor = os.open(directory / name, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(self._descriptor)
            raise SpoolInUseError(
                f"the spool directory {directory} is in use by another process: give each replica "
                "one of its own with NEXUSKV_SPOOL_DIR"
            ) from None

    def release(self) -> None:
        os.close(self._descriptor)
