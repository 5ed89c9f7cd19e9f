"""Versions of cost profiles: stored once by content, never changed."""

import asyncio
from hashlib import sha256
from typing import Final

from app.clock import Clock
from app.contract.limits import MAX_I63
from app.contract.messages import check_message
from app.db.session import Database
from app.errors import ErrorCode, NexusError
from app.planner.profile import Profile, canonical_bytes
from app.profiles.document import read_profile
from app.profiles.repository import (
    NewProfile,
    ProfileFilter,
    ProfileSummary,
    StoredProfile,
    insert_profile,
    lock_profiles,
    profile_by_number,
    profile_by_sha256,
    profiles_page,
)

# Reading a large document takes a thread tens of milliseconds; others wait their turn.
_READS_AT_ONCE: Final = 2


class ProfileStore:
    """The stored profiles. Every method raises DATABASE_UNAVAILABLE when Postgres is away."""

    def __init__(self, database: Database, clock: Clock) -> None:
        self._database = database
        self._clock = clock
        self._reads = asyncio.Semaphore(_READS_AT_ONCE)

    async def check(self, text: bytes | str) -> Profile:
        """`read_profile` off the event loop; stores nothing. Raises what that raises."""
        async with self._reads:
            return await asyncio.to_thread(read_profile, text)

    async def push(
        self, text: bytes | str, author: str, message: str | None = None
    ) -> tuple[StoredProfile, bool]:
        """Store a document; the version with its content, and whether that is new.

        Content stored before keeps its number, source, author and message. Raises what
        `read_profile` raises, with every finding, and INVALID_FIELD for a message.
        """
        check_message(message)
        profile = await self.check(text)
        document = canonical_bytes(profile)
        new = NewProfile(
            name=profile.name,
            model=profile.model,
            hardware=profile.hardware,
            content_sha256=sha256(document).digest(),
            document=document.decode(),
            source=text if isinstance(text, str) else text.decode("utf-8"),
            message=message,
            key_id=author,
            created_at=self._clock.now(),
        )
        async with self._database.write() as session:
            await lock_profiles(session)
            stored = await profile_by_sha256(session, new.content_sha256)
            if stored is not None:
                return stored, False
            return await insert_profile(session, new), True

    async def get(self, number: int) -> StoredProfile | None:
        """The version with this number; None when there is none."""
        if not 1 <= number <= MAX_I63:
            return None
        async with self._database.read() as session:
            return await profile_by_number(session, number)

    async def page(
        self, wanted: ProfileFilter, after: int | None, limit_rows: int
    ) -> list[ProfileSummary]:
        """At most `limit_rows` versions below the number `after`, newest first."""
        async with self._database.read() as session:
            return await profiles_page(session, wanted, after, limit_rows)


def no_profile(number: int) -> NexusError:
    return NexusError(
        ErrorCode.NOT_FOUND, "There is no such profile; GET /v1/profiles lists them",
        internal=f"profile {number}",
    )  # fmt: skip
