"""Follows something in Postgres by polling: kept through outages, with an age that can be told."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Final

import structlog

from app.clock import Clock
from app.errors import NexusError

DEFAULT_INTERVAL_S: Final = 0.5
_US_PER_S: Final = 1_000_000

_log = structlog.get_logger("nexuskv.follow")


class Follower:
    """Runs `poll` again and again, and knows when it last succeeded; `what` names it in the log.

    `poll` raises when it could not ask; what it last found then stays as it is.
    """

    def __init__(
        self,
        what: str,
        poll: Callable[[], Awaitable[None]],
        clock: Clock,
        *,
        interval_s: float = DEFAULT_INTERVAL_S,
    ) -> None:
        self._what = what
        self._poll = poll
        self._clock = clock
        self._interval_s = interval_s
        self._polling = asyncio.Lock()
        self._loaded = asyncio.Event()
        self._reachable = True
        self._last_success_us = clock.monotonic_us()

    @property
    def loaded(self) -> bool:
        """Whether one poll has succeeded since the start."""
        return self._loaded.is_set()

    async def wait_loaded(self) -> None:
        """Returns once the first poll has succeeded, however long that takes."""
        await self._loaded.wait()

    def stale_s(self) -> float:
        """Seconds since the last poll that succeeded; since the start where none has."""
        return (self._clock.monotonic_us() - self._last_success_us) / _US_PER_S

    async def refresh(self) -> None:
        """Poll now. Raises what the poll raises, DATABASE_UNAVAILABLE for one."""
        async with self._polling:
            await self._poll()
            self._last_success_us = self._clock.monotonic_us()
            self._loaded.set()

    async def refresh_now(self) -> None:
        """`refresh` after a change made here; when it fails the next poll will do."""
        try:
            await self.refresh()
        except NexusError as error:
            _log.warning("not_refreshed", what=self._what, reason=_reason(error))

    async def watch(self) -> None:
        """Poll until cancelled; an outage is logged once and outlived."""
        while True:
            try:
                await self.refresh()
            # An absent schema or a bug: a watch that ended would freeze what is known for good.
            except Exception as error:  # noqa: BLE001
                if self._reachable:
                    _log.warning("not_refreshed", what=self._what, reason=_reason(error))
                self._reachable = False
            else:
                if not self._reachable:
                    _log.info("refreshed_again", what=self._what)
                self._reachable = True
            await asyncio.sleep(self._interval_s)


def _reason(error: Exception) -> str:
    if isinstance(error, NexusError):
        return error.internal or error.message
    return repr(error)
