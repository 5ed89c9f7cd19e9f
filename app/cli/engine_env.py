"""What the environment says of engines' event sockets, judged before anything begins."""

from collections.abc import Mapping
from typing import Final, TypedDict

from app.cli.worker_env import listed, seconds
from app.engines.addresses import HOSTS_VARIABLE, SCHEMES_VARIABLE, EngineAddresses
from app.host_list import HostAllowList
from app.settings import DEFAULT_ENGINE_SCHEMES, DEFAULT_ENGINE_STALE_S, DEFAULT_WORKER_HOSTS

_STALE: Final = "NEXUSKV_ENGINE_STALE_S"
# A connection that stands gives a sign of life each second.
_MIN_STALE_S: Final = 3.0
_MAX_STALE_S: Final = 86_400.0


class EngineSettings(TypedDict):
    """The part of `Settings` that is about engines."""

    engine_hosts: tuple[str, ...]
    engine_schemes: tuple[str, ...]
    engine_stale_s: float


def engine_settings(env: Mapping[str, str]) -> EngineSettings:
    """Raises ValueError naming the variable that cannot be used, and why."""
    hosts = listed(env, HOSTS_VARIABLE) or DEFAULT_WORKER_HOSTS
    schemes = listed(env, SCHEMES_VARIABLE) or DEFAULT_ENGINE_SCHEMES
    EngineAddresses(HostAllowList(hosts, HOSTS_VARIABLE), schemes)
    return EngineSettings(
        engine_hosts=hosts,
        engine_schemes=schemes,
        engine_stale_s=seconds(env, _STALE, _MIN_STALE_S, _MAX_STALE_S, DEFAULT_ENGINE_STALE_S),
    )
