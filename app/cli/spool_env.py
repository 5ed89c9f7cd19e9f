"""What the environment says of the spool, judged before anything begins."""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Final, TypedDict

from app.cli.worker_env import seconds, whole
from app.db.embedded import default_data_dir
from app.decisions.spool.lock import REPLICA, DirectoryLock
from app.settings import DEFAULT_SPOOL_BYTES, DEFAULT_SPOOL_SYNC_S

_DIR: Final = "NEXUSKV_SPOOL_DIR"
_BYTES: Final = "NEXUSKV_SPOOL_BYTES"
_SYNC: Final = "NEXUSKV_SPOOL_SYNC_S"
_MIN_BYTES, _MAX_BYTES = 32 * 1024 * 1024, 1 << 40
_MIN_SYNC_S, _MAX_SYNC_S = 0.01, 60.0


class SpoolSettings(TypedDict):
    """The part of `Settings` that is about the spool."""

    spool_dir: Path
    spool_bytes: int
    spool_sync_s: float


def spool_settings(env: Mapping[str, str], default: Path) -> SpoolSettings:
    """Raises ValueError naming the variable that cannot be used, and why."""
    return SpoolSettings(
        spool_dir=Path(env.get(_DIR) or default).absolute(),
        spool_bytes=whole(env, _BYTES, _MIN_BYTES, _MAX_BYTES, DEFAULT_SPOOL_BYTES),
        spool_sync_s=seconds(env, _SYNC, _MIN_SYNC_S, _MAX_SYNC_S, DEFAULT_SPOOL_SYNC_S),
    )


def spool_of_address(host: str, port: int) -> Path:
    """Of a replica that was told nothing: it finds what it left there when it starts again."""
    plain = host.replace(":", "_") or "any"
    return default_data_dir() / "spool" / f"{plain}_{port}"


def check_spool(directory: Path) -> None:
    """Raises OSError where nothing can be written there, SpoolInUseError where a replica does.

    One may still take it before we do: then the start fails there.
    """
    remedy = f"name another with {_DIR}"
    try:
        directory.mkdir(parents=True, exist_ok=True, mode=0o700)
    except OSError as error:
        raise OSError(
            f"the spool directory {directory} cannot be made ({error.strerror}): {remedy}"
        ) from error
    if not os.access(directory, os.W_OK | os.X_OK):
        raise PermissionError(f"the spool directory {directory} cannot be written: {remedy}")
    DirectoryLock(directory, REPLICA).release()
