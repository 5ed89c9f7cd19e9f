"""Every API key of the deployment in memory, kept fresh by polling.

`find` is the hot path: one dict look-up of a header that was seen before, else one SHA-256. Keys
never change but for one thing, a revocation, and that is final; so changes may be applied in any
order and any number of times.
"""

import asyncio
from collections.abc import Sequence
from hashlib import sha256

import structlog

from app.clock import Clock
from app.control.keys import Principal, bearer_token, digest, is_well_formed, principal_of
from app.control.repository import StoredKey, key_by_sha256, keys_changed_since
from app.db.session import Database
from app.errors import ErrorCode, NexusError

# Look-ups of unknown keys that may reach Postgres, over all callers: guessing costs the guesser.
LOOKUPS_PER_S = 20
LOOKUP_BURST = 40
LOOKUPS_IN_FLIGHT = 4
# A key made elsewhere arrives with the next poll, so a remembered miss never hides it.
MISS_TTL_S = 10
MAX_MISSES = 4096
MAX_HEADERS = 1024

_log = structlog.get_logger("nexuskv.keys")


class KeyRing:
    """The keys one replica knows. Postgres away: known keys keep working, unknown ones are 503."""

    def __init__(self, database: Database, clock: Clock) -> None:
        self._database = database
        self._clock = clock
        self._principals: dict[bytes, Principal] = {}
        self._by_id: dict[str, Principal] = {}
        # By the whole header, of keys that hold: forgotten with every change of a key.
        self._by_header: dict[bytes, Principal] = {}
        self._revoked: set[str] = set()
        self._fence = 0
        self._loaded = False
        self._reachable = True
        self._refreshing = asyncio.Lock()
        self._misses: dict[bytes, int] = {}
        self._lookups: dict[bytes, asyncio.Task[Principal | None]] = {}
        self._budget = _Budget(clock, per_s=LOOKUPS_PER_S, burst=LOOKUP_BURST)

    def __len__(self) -> int:
        return len(self._principals)

    @property
    def loaded(self) -> bool:
        """Whether one poll has succeeded since the start; readiness waits for it."""
        return self._loaded

    def find(self, authorization: bytes | None) -> Principal | None:
        """Return the principal of an Authorization header, or None when it is not known here."""
        # Spelt out, and strict about the one space: every call here costs every request.
        if authorization is None:
            return None
        principal = self._by_header.get(authorization)
        if principal is None and authorization[:7].lower() == b"bearer ":
            principal = self._principals.get(sha256(authorization[7:]).digest())
            if principal is not None:
                if len(self._by_header) >= MAX_HEADERS:
                    self._by_header.clear()
                self._by_header[authorization] = principal
        return principal

    async def of_id(self, key_id: str) -> Principal | None:
        """Return the principal of a key that signed in before; None once it is revoked.

        A key that another replica has just made costs one poll. Raises DATABASE_UNAVAILABLE when
        that is not possible.
        """
        if key_id not in self._by_id and key_id not in self._revoked:
            await self.refresh()
        return self._by_id.get(key_id)

    async def find_or_load(self, authorization: bytes | None) -> Principal | None:
        """`find`, and for a key not known here one bounded look-up in Postgres.

        Returns None when there is no such key or it is revoked. Raises DATABASE_UNAVAILABLE when
        Postgres cannot tell, OVERLOADED when too many unknown keys are being tried.
        """
        if authorization is None or (token := bearer_token(authorization)) is None:
            return None
        key_digest = digest(token)
        if (principal := self._principals.get(key_digest)) is not None:
            return principal
        if not is_well_formed(token) or self._is_remembered_miss(key_digest):
            return None
        lookup = self._lookups.get(key_digest)
        if lookup is None:
            lookup = self._start_lookup(key_digest)
        # Shielded: a caller that hangs up must not fail the others who wait for the same key.
        return await asyncio.shield(lookup)

    async def refresh(self) -> None:
        """Apply what has changed since the last poll. Raises DATABASE_UNAVAILABLE."""
        async with self._refreshing:
            fence = self._fence
            async with self._database.read() as session:
                changes = await keys_changed_since(session, fence)
                if changes.xmin < fence:
                    # Transaction ids went backwards: this is another cluster or a restored one.
                    fence = 0
                    changes = await keys_changed_since(session, fence)
            if fence == 0:
                self._principals = {}
                self._by_id = {}
                self._by_header.clear()
                self._revoked = set()
            self._apply(changes.keys)
            self._fence = changes.xmin
            self._loaded = True

    async def watch(self, interval_s: float) -> None:
        """Poll until cancelled; an outage is logged once and outlived."""
        while True:
            try:
                await self.refresh()
            # An absent schema or a bug: a watch that ended would leave revoked keys alive.
            except Exception as error:  # noqa: BLE001
                if self._reachable:
                    _log.warning("keys_not_refreshed", reason=_reason(error))
                self._reachable = False
            else:
                if not self._reachable:
                    _log.info("keys_refreshed_again", known=len(self))
                self._reachable = True
            await asyncio.sleep(interval_s)

    def _apply(self, keys: Sequence[StoredKey]) -> None:
        if keys:
            self._by_header.clear()
        for key in keys:
            if key.revoked_at is not None:
                self._revoked.add(key.key_id)
                self._principals.pop(key.sha256, None)
                self._by_id.pop(key.key_id, None)
            # A look-up may have read the row before the revocation that a poll has applied since.
            elif key.key_id not in self._revoked:
                principal = principal_of(key.key_id, key.scopes, key.tenants)
                self._principals[key.sha256] = self._by_id[key.key_id] = principal
                self._misses.pop(key.sha256, None)

    def _start_lookup(self, key_digest: bytes) -> asyncio.Task[Principal | None]:
        if len(self._lookups) >= LOOKUPS_IN_FLIGHT or not self._budget.take():
            raise NexusError(
                ErrorCode.OVERLOADED,
                "Too many unknown API keys are being tried; retry in a moment",
                internal="the bound on look-ups of unknown keys is reached",
            )
        lookup = asyncio.create_task(self._look_up(key_digest))
        self._lookups[key_digest] = lookup
        lookup.add_done_callback(lambda done: self._end_lookup(key_digest, done))
        return lookup

    def _end_lookup(self, key_digest: bytes, done: asyncio.Task[Principal | None]) -> None:
        del self._lookups[key_digest]
        if not done.cancelled():
            done.exception()  # Reading it marks it as seen when every caller has hung up.

    async def _look_up(self, key_digest: bytes) -> Principal | None:
        async with self._database.read() as session:
            stored = await key_by_sha256(session, key_digest)
        if stored is not None:
            self._apply([stored])
        principal = self._principals.get(key_digest)
        if principal is None:
            self._remember_miss(key_digest)
        return principal

    def _is_remembered_miss(self, key_digest: bytes) -> bool:
        expires_us = self._misses.get(key_digest)
        return expires_us is not None and self._clock.monotonic_us() < expires_us

    def _remember_miss(self, key_digest: bytes) -> None:
        self._misses.pop(key_digest, None)
        if len(self._misses) >= MAX_MISSES:
            del self._misses[next(iter(self._misses))]
        self._misses[key_digest] = self._clock.monotonic_us() + MISS_TTL_S * 1_000_000


def _reason(error: Exception) -> str:
    if isinstance(error, NexusError):
        return error.internal or error.message
    return repr(error)


class _Budget:
    """A token bucket: `burst` at once, `per_s` in the long run."""

    def __init__(self, clock: Clock, *, per_s: int, burst: int) -> None:
        self._clock = clock
        self._cost_us = 1_000_000 // per_s
        self._most_us = self._cost_us * burst
        self._spare_us = self._most_us
        self._read_at_us = clock.monotonic_us()

    def take(self) -> bool:
        now_us = self._clock.monotonic_us()
        self._spare_us = min(self._most_us, self._spare_us + now_us - self._read_at_us)
        self._read_at_us = now_us
        if self._spare_us < self._cost_us:
            return False
        self._spare_us -= self._cost_us
        return True
