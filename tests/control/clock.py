"""Time that passes only when a test says so."""

from datetime import UTC, datetime, timedelta


class SetClock:
    """A clock that stands still until told otherwise."""

    def __init__(self) -> None:
        self.us = 1_000_000

    def now(self) -> datetime:
        return datetime(2026, 1, 1, tzinfo=UTC) + timedelta(microseconds=self.us)

    def now_us(self) -> int:
        return self.us

    def monotonic_us(self) -> int:
        return self.us

    def advance(self, seconds: float) -> None:
        self.us += round(seconds * 1_000_000)
