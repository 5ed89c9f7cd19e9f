"""What the environment says of how long the history is kept, judged before anything begins."""

from collections.abc import Mapping
from typing import Final, TypedDict

from app.decisions.retention import MAX_HISTORY_DAYS
from app.settings import (
    DEFAULT_HISTORY_DAYS,
    DEFAULT_ROLLUP_HOUR_DAYS,
    DEFAULT_ROLLUP_MINUTE_DAYS,
)

_HISTORY: Final = "NEXUSKV_HISTORY_DAYS"
_MINUTES: Final = "NEXUSKV_ROLLUP_MINUTE_DAYS"
_HOURS: Final = "NEXUSKV_ROLLUP_HOUR_DAYS"
_MAX_ROLLUP_DAYS: Final = 3_650


class HistorySettings(TypedDict):
    """The part of `Settings` that is about keeping the history."""

    history_days: int
    rollup_minute_days: int
    rollup_hour_days: int


def history_settings(env: Mapping[str, str]) -> HistorySettings:
    """Raises ValueError naming the variable that cannot be used, and why."""
    return HistorySettings(
        history_days=_days(env, _HISTORY, MAX_HISTORY_DAYS, DEFAULT_HISTORY_DAYS),
        rollup_minute_days=_days(env, _MINUTES, _MAX_ROLLUP_DAYS, DEFAULT_ROLLUP_MINUTE_DAYS),
        rollup_hour_days=_days(env, _HOURS, _MAX_ROLLUP_DAYS, DEFAULT_ROLLUP_HOUR_DAYS),
    )


def _days(env: Mapping[str, str], name: str, most: int, default: int) -> int:
    text = env.get(name)
    if not text:
        return default
    if not text.isascii() or not text.isdigit() or not 1 <= int(text) <= most:
        raise ValueError(f"{name} must be a whole number of days from 1 to {most:,}, not {text!r}")
    return int(text)
