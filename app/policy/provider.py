"""The policy in force in this process: `current` is one attribute, replaced whole by a poll.

Whoever took `current` keeps it: it never changes, so a decision in flight ends under the policy
it began with. What cannot be loaded never comes into force; the last good one stays.
"""

import asyncio
from dataclasses import dataclass
from datetime import datetime
from hashlib import sha256
from typing import Final

import structlog

from app.clock import Clock
from app.db.session import Database
from app.errors import NexusError
from app.policy.document import ExecutionPolicy, canonical_bytes, load_policy
from app.policy.evaluate import prepare
from app.policy.repository import (
    Activation,
    StoredPolicy,
    keep_file,
    latest_activation,
    policy_by_number,
)

DEFAULT_INTERVAL_S: Final = 0.25
_US_PER_S: Final = 1_000_000
_FILE: Final = "file"

_log = structlog.get_logger("nexuskv.policy")


@dataclass(frozen=True, slots=True)
class ActivePolicy:
    """A policy as it is in force; `activation` is None for the file the process was given.

    `label` is what decisions record: `NUMBER:sha256:HEX` or `file:sha256:HEX`.
    """

    policy: ExecutionPolicy
    label: str
    activation: Activation | None

    @property
    def number(self) -> int | None:
        return None if self.activation is None else self.activation.number


@dataclass(frozen=True, slots=True)
class ActivationFault:
    """An activation that could not come into force, why, and since when."""

    activation: Activation
    reason: str
    since: datetime


@dataclass(frozen=True, slots=True)
class PolicyStatus:
    """How sure this process is of its policy. `fault` is None while the latest one is in force."""

    label: str
    loaded: bool
    stale_s: float
    fault: ActivationFault | None


class PolicyProvider:
    """Follows the latest activation. Postgres away: the last known policy stays in force.

    `changes` counts how often another one came into force.
    """

    def __init__(
        self,
        database: Database,
        fallback: ExecutionPolicy,
        clock: Clock,
        *,
        interval_s: float = DEFAULT_INTERVAL_S,
    ) -> None:
        self._database = database
        prepare(fallback)
        self._fallback = ActivePolicy(fallback, f"{_FILE}:{fallback.version}", None)
        self._clock = clock
        self._interval_s = interval_s
        self._fault: ActivationFault | None = None
        self._loaded = asyncio.Event()
        self._refreshing = asyncio.Lock()
        self._reachable = True
        self._file_kept = False
        self._last_success_us = clock.monotonic_us()
        self.changes = 0
        # Read on every request: replaced by polls alone, and by nobody else.
        self.current = self._fallback

    @property
    def loaded(self) -> bool:
        """Whether one poll has succeeded since the start; readiness waits for it."""
        return self._loaded.is_set()

    async def wait_loaded(self) -> None:
        """Returns once the first poll has succeeded, however long that takes."""
        await self._loaded.wait()

    def stale_s(self) -> float:
        """Seconds since the latest activation was last known for sure."""
        return (self._clock.monotonic_us() - self._last_success_us) / _US_PER_S

    def status(self) -> PolicyStatus:
        return PolicyStatus(self.current.label, self.loaded, self.stale_s(), self._fault)

    async def refresh(self) -> None:
        """Bring the latest activation into force. Raises DATABASE_UNAVAILABLE.

        One that cannot be loaded is logged once and shown by `status`; it raises nothing.
        """
        async with self._refreshing:
            stored: StoredPolicy | None = None
            async with self._database.read() as session:
                latest = await latest_activation(session)
                if latest is not None and not self._is_known(latest):
                    stored = await policy_by_number(session, latest.number)
            if latest is None:
                self._adopt(self._fallback)
            elif stored is not None:
                await self._load(latest, stored)
            elif latest == self.current.activation:
                self._fault = None
            self._last_success_us = self._clock.monotonic_us()
            self._loaded.set()

    async def refresh_now(self) -> None:
        """`refresh` after an activation made here; when it fails the next poll will do."""
        try:
            await self.refresh()
        except NexusError as error:
            _log.warning("policy_not_refreshed", reason=error.internal or error.message)

    async def watch(self) -> None:
        """Poll until cancelled; an outage is logged once and outlived."""
        while True:
            try:
                await self.refresh()
            # An absent schema or a bug: a watch that ended would freeze the policy for good.
            except Exception as error:  # noqa: BLE001
                if self._reachable:
                    _log.warning("policy_not_refreshed", reason=_reason(error))
                self._reachable = False
            else:
                if not self._reachable:
                    _log.info("policy_refreshed_again", label=self.current.label)
                self._reachable = True
                await self._keep_file()
            await asyncio.sleep(self._interval_s)

    async def _keep_file(self) -> None:
        """Decisions are made under the file as well, and may be made again when it is replaced."""
        if self._file_kept:
            return
        policy = self._fallback.policy
        text = canonical_bytes(policy).decode()
        try:
            async with self._database.write() as session:
                await keep_file(session, policy.version, text, self._clock.now())
        except NexusError as error:
            # The next poll will do.
            _log.info("policy_file_not_kept", reason=_reason(error))
        else:
            self._file_kept = True

    def _is_known(self, latest: Activation) -> bool:
        """Whether it is in force already, or was found to be unusable."""
        return latest == self.current.activation or (
            self._fault is not None and latest == self._fault.activation
        )

    async def _load(self, latest: Activation, stored: StoredPolicy) -> None:
        document = stored.document
        if sha256(document.encode()).digest() != stored.content_sha256:
            self._refuse(latest, "the stored document differs from its digest")
            return
        try:
            policy = await asyncio.to_thread(load_policy, document)
        except NexusError as error:
            # Written by a newer build, say: this one does not know all of it.
            self._refuse(latest, error.message)
            return
        self._adopt(ActivePolicy(policy, f"{latest.number}:{policy.version}", latest))

    def _adopt(self, found: ActivePolicy) -> None:
        if found is not self.current:
            prepare(found.policy)
            self.changes += 1
            _log.info("policy_in_force", label=found.label, before=self.current.label)
        self._fault = None
        self.current = found

    def _refuse(self, latest: Activation, reason: str) -> None:
        self._fault = ActivationFault(latest, reason, self._clock.now())
        _log.error(
            "policy_not_usable",
            number=latest.number,
            activation_id=latest.activation_id,
            reason=reason,
            in_force=self.current.label,
        )


def _reason(error: Exception) -> str:
    if isinstance(error, NexusError):
        return error.internal or error.message
    return repr(error)
