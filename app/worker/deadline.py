"""A moment after which nothing more is done, and the time until it."""

from app.clock import Clock
from app.transfer.wire import TransferFailure
from app.worker.failure import TransferFailedError


class Deadline:
    """`seconds` from now on the monotonic clock."""

    def __init__(self, clock: Clock, seconds: float) -> None:
        self._clock = clock
        self._seconds = seconds
        self._at_us = clock.monotonic_us() + int(seconds * 1_000_000)

    def left_s(self) -> float:
        """More than zero. Raises TransferFailedError (deadline) when it has passed."""
        left_us = self._at_us - self._clock.monotonic_us()
        if left_us <= 0:
            raise TransferFailedError(
                TransferFailure.DEADLINE, f"not done within {self._seconds:g} s"
            )
        return left_us / 1_000_000
