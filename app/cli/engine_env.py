"""What the environment says of engines' event sockets, judged before anything begins."""

from collections.abc import Mapping
from pathlib import Path
from typing import Final, TypedDict

from app.cli.worker_env import listed, seconds, whole
from app.engines.addresses import HOSTS_VARIABLE, SCHEMES_VARIABLE, EngineAddresses
from app.host_list import HostAllowList
from app.settings import (
    DEFAULT_BLOCK_INDEX_BLOCKS,
    DEFAULT_BLOCK_INDEX_BYTES,
    DEFAULT_BLOCK_INDEX_SAVE_S,
    DEFAULT_ENGINE_SCHEMES,
    DEFAULT_ENGINE_STALE_S,
    DEFAULT_WORKER_HOSTS,
)

_STALE: Final = "NEXUSKV_ENGINE_STALE_S"
# A connection that stands gives a sign of life each second.
_MIN_STALE_S: Final = 3.0
_MAX_STALE_S: Final = 86_400.0
_BLOCKS: Final = "NEXUSKV_BLOCK_INDEX_BLOCKS"
_MIN_BLOCKS, _MAX_BLOCKS = 1_000, 1_000_000_000
_BYTES: Final = "NEXUSKV_BLOCK_INDEX_BYTES"
_MIN_BYTES, _MAX_BYTES = 1 << 24, 1 << 40
_FILE: Final = "NEXUSKV_BLOCK_INDEX_FILE"
_SAVE: Final = "NEXUSKV_BLOCK_INDEX_SAVE_S"
_MIN_SAVE_S: Final = 5.0
_MAX_SAVE_S: Final = 86_400.0


class EngineSettings(TypedDict):
    """The part of `Settings` that is about engines."""

    engine_hosts: tuple[str, ...]
    engine_schemes: tuple[str, ...]
    engine_stale_s: float
    block_index_blocks: int
    block_index_bytes: int
    block_index_file: Path | None
    block_index_save_s: float


def engine_settings(env: Mapping[str, str]) -> EngineSettings:
    """Raises ValueError naming the variable that cannot be used, and why."""
    hosts = listed(env, HOSTS_VARIABLE) or DEFAULT_WORKER_HOSTS
    schemes = listed(env, SCHEMES_VARIABLE) or DEFAULT_ENGINE_SCHEMES
    EngineAddresses(HostAllowList(hosts, HOSTS_VARIABLE), schemes)
    return EngineSettings(
        engine_hosts=hosts,
        engine_schemes=schemes,
        engine_stale_s=seconds(env, _STALE, _MIN_STALE_S, _MAX_STALE_S, DEFAULT_ENGINE_STALE_S),
        block_index_blocks=whole(
            env, _BLOCKS, _MIN_BLOCKS, _MAX_BLOCKS, DEFAULT_BLOCK_INDEX_BLOCKS
        ),
        block_index_bytes=whole(env, _BYTES, _MIN_BYTES, _MAX_BYTES, DEFAULT_BLOCK_INDEX_BYTES),
        block_index_file=_file(env),
        block_index_save_s=seconds(
            env, _SAVE, _MIN_SAVE_S, _MAX_SAVE_S, DEFAULT_BLOCK_INDEX_SAVE_S
        ),
    )


def _file(env: Mapping[str, str]) -> Path | None:
    text = env.get(_FILE)
    if not text:
        return None
    path = Path(text).absolute()
    if path.is_dir() or not path.parent.is_dir():
        raise ValueError(f"{_FILE} must name a file in a directory that is there, not {text!r}")
    return path
