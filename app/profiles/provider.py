"""The cost profiles in force in this process: `current` is one attribute, replaced whole by a poll.

Whoever took `current` keeps it: it never changes. What cannot be read never comes into force; what
was in force for the same model and hardware stays.
"""

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from hashlib import sha256
from types import MappingProxyType
from typing import Final, NamedTuple

import structlog

from app.clock import Clock
from app.db.follow import DEFAULT_INTERVAL_S, Follower
from app.db.session import Database
from app.errors import NexusError
from app.planner.profile import Profile
from app.profiles.document import read_profile
from app.profiles.repository import StoredProfile, latest_number, profiles_above

ANY: Final = ""
# Profiles have a few kilobytes, so this many are some megabytes at a time.
_BATCH_ROWS: Final = 500

_log = structlog.get_logger("nexuskv.profiles")


class Fit(StrEnum):
    """Why a profile is the one in force, best first."""

    EXACT = "exact"
    MODEL = "model"
    HARDWARE = "hardware"
    ANY = "any"
    BUILT_IN = "built_in"


class Known(NamedTuple):
    """A profile in force; `number` is None for the one that is built in."""

    profile: Profile
    number: int | None


class Profiles:
    """The newest version for each (model, hardware), "" being any. Never changes."""

    __slots__ = ("_built_in", "_found")

    def __init__(self, built_in: Profile, found: Mapping[tuple[str, str], Known]) -> None:
        self._built_in = Known(built_in, None)
        self._found = MappingProxyType(dict(found))

    def __len__(self) -> int:
        return len(self._found)

    @property
    def found(self) -> Mapping[tuple[str, str], Known]:
        """What is stored and in force, by model and hardware."""
        return self._found

    def best(self, model: str, hardware: str) -> Known:
        """The profile in force for a model on hardware: at most four dict look-ups.

        That of exactly both, else of the model on any hardware, else of any model on the hardware,
        else of any on any, else the built-in one. An unknown model or hardware is "".
        """
        found = self._found
        return (
            found.get((model, hardware))
            or found.get((model, ANY))
            or found.get((ANY, hardware))
            or found.get((ANY, ANY))
            or self._built_in
        )

    def fit(self, model: str, hardware: str) -> Fit:
        """Why `best` answers what it does: what of the two its profile names."""
        profile, number = self.best(model, hardware)
        if number is None:
            return Fit.BUILT_IN
        return _FITS[bool(profile.model), bool(profile.hardware)]


_FITS: Final = {
    (True, True): Fit.EXACT,
    (True, False): Fit.MODEL,
    (False, True): Fit.HARDWARE,
    (False, False): Fit.ANY,
}


@dataclass(frozen=True, slots=True)
class ProfileFault:
    """The newest stored profile that could not come into force, why, and since when."""

    number: int
    reason: str
    since: datetime


@dataclass(frozen=True, slots=True)
class ProfilesStatus:
    """How sure this process is of its profiles. `fault` is of the newest version that it cannot
    read and that no later one of the same model and hardware has replaced; else None."""

    in_force: int
    loaded: bool
    stale_s: float
    fault: ProfileFault | None


class ProfileProvider(Follower):
    """Follows the stored profiles. Postgres away: the last known ones stay in force.

    `changes` counts how often others came into force.
    """

    def __init__(
        self,
        database: Database,
        built_in: Profile,
        clock: Clock,
        *,
        interval_s: float = DEFAULT_INTERVAL_S,
    ) -> None:
        super().__init__("profiles", self._follow, clock, interval_s=interval_s)
        self._database = database
        self._built_in = built_in
        self._now = clock.now
        self._seen = 0
        self._faults: dict[tuple[str, str], ProfileFault] = {}
        self.changes = 0
        self.current = Profiles(built_in, {})

    def status(self) -> ProfilesStatus:
        fault = max(self._faults.values(), key=lambda one: one.number, default=None)
        return ProfilesStatus(len(self.current), self.loaded, self.stale_s(), fault)

    async def _follow(self) -> None:
        found, faults = dict(self.current.found), dict(self._faults)
        new = False
        async with self._database.read() as session:
            latest = await latest_number(session)
        if latest == self._seen:
            return
        seen = self._seen
        if latest < seen:
            # Another database, or an older copy of it: nothing known is from there.
            found, faults, seen, new = {}, {}, 0, True
        while seen < latest:
            async with self._database.read() as session:
                batch = await profiles_above(session, seen, _BATCH_ROWS)
            if not batch:
                break
            for stored in batch:
                new |= await self._take(stored, found, faults)
            seen = batch[-1].number
        self._faults = faults
        self._seen = seen
        if new:
            self.current = Profiles(self._built_in, found)
            self.changes += 1
            _log.info("profiles_in_force", profiles=len(found), newest=seen)

    async def _take(
        self,
        stored: StoredProfile,
        found: dict[tuple[str, str], Known],
        faults: dict[tuple[str, str], ProfileFault],
    ) -> bool:
        """Whether it came into force; what it could not is noted in `faults`."""
        key = (stored.model, stored.hardware)
        try:
            profile = await asyncio.to_thread(_read, stored)
        except NexusError as error:
            # Written by a newer build, say: this one does not know all of it.
            faults[key] = ProfileFault(stored.number, error.message, self._now())
        except ValueError as error:
            faults[key] = ProfileFault(stored.number, str(error), self._now())
        else:
            faults.pop(key, None)
            found[key] = Known(profile, stored.number)
            return True
        _log.error("profile_not_usable", number=stored.number, reason=faults[key].reason)
        return False


def _read(stored: StoredProfile) -> Profile:
    """Raises NexusError for a document of another form, ValueError for one that was altered."""
    if sha256(stored.document.encode()).digest() != stored.content_sha256:
        raise ValueError("the stored document differs from its digest")
    profile = read_profile(stored.document)
    if (profile.model, profile.hardware) != (stored.model, stored.hardware):
        raise ValueError("the stored document is of another model or hardware than its row")
    return profile
