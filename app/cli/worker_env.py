"""What the environment says of workers, judged before anything slow or lasting begins."""

import re
from collections.abc import Mapping
from typing import Final, TypedDict

from app.cli.secret_files import given_worker_secrets
from app.host_list import HostAllowList
from app.settings import (
    CLAIM_SLACK_S,
    DEFAULT_DEADLINE_S,
    DEFAULT_WORKER_HOSTS,
    DEFAULT_WORKER_LOST_S,
    DEFAULT_WORKER_SILENCE_S,
)
from app.topology.hosts import VARIABLE as _HOSTS
from app.transfer.tokens import TokenKeys

_SILENCE: Final = "NEXUSKV_WORKER_SILENCE_S"
_LOST: Final = "NEXUSKV_WORKER_LOST_S"
_DEADLINE: Final = "NEXUSKV_TRANSFER_DEADLINE_S"
_MIN_SECONDS: Final = 0.5
_MAX_DEADLINE_S: Final = 300.0
_MAX_SILENCE_S: Final = 3_600.0
_MAX_LOST_S: Final = 30 * 86_400.0


class WorkerSettings(TypedDict):
    """The part of `Settings` that is about workers."""

    worker_secrets: tuple[str, ...]
    worker_hosts: tuple[str, ...]
    worker_silence_s: float
    worker_lost_s: float
    transfer_deadline_s: float
    claim_ttl_s: float


def worker_settings(env: Mapping[str, str]) -> WorkerSettings:
    """Raises ValueError naming the variable that cannot be used, and why."""
    secrets = given_worker_secrets(env)
    if secrets:
        try:
            TokenKeys(secrets)
        except ValueError as error:
            raise ValueError(f"NEXUSKV_WORKER_SECRET: {error}") from None
    hosts = listed(env, _HOSTS) or DEFAULT_WORKER_HOSTS
    HostAllowList(hosts, _HOSTS)
    deadline_s = seconds(env, _DEADLINE, _MIN_SECONDS, _MAX_DEADLINE_S, DEFAULT_DEADLINE_S)
    silence_s = seconds(env, _SILENCE, _MIN_SECONDS, _MAX_SILENCE_S, DEFAULT_WORKER_SILENCE_S)
    # At least as long as twice the silence, so that a worker is silent before it is lost.
    least_s = 2 * silence_s
    lost_s = seconds(env, _LOST, least_s, _MAX_LOST_S, max(least_s, DEFAULT_WORKER_LOST_S))
    return WorkerSettings(
        worker_secrets=secrets,
        worker_hosts=hosts,
        worker_silence_s=silence_s,
        worker_lost_s=lost_s,
        transfer_deadline_s=deadline_s,
        claim_ttl_s=deadline_s + CLAIM_SLACK_S,
    )


def listed(env: Mapping[str, str], name: str) -> tuple[str, ...]:
    """The parts of a variable, separated by commas or white space; none where it is not set."""
    return tuple(part for part in re.split(r"[\s,]+", env.get(name, "")) if part)


def seconds(
    env: Mapping[str, str], name: str, least_s: float, most_s: float, default_s: float
) -> float:
    given = env.get(name)
    if not given:
        return default_s
    try:
        seconds = float(given)
    except ValueError:
        seconds = -1.0
    if not least_s <= seconds <= most_s:
        raise ValueError(f"{name} must be a number of seconds from {least_s:g} to {most_s:g}")
    return seconds


def whole(env: Mapping[str, str], name: str, least: int, most: int, default: int) -> int:
    text = env.get(name)
    if not text:
        return default
    if not text.isascii() or not text.isdigit() or not least <= int(text) <= most:
        raise ValueError(f"{name} must be a whole number from {least:,} to {most:,}, not {text!r}")
    return int(text)
