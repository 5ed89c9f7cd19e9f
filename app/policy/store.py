"""Versions of the execution policy: stored once, never changed, activated explicitly."""

import asyncio
from dataclasses import dataclass
from typing import Final

from app.clock import Clock
from app.contract.limits import MAX_I63
from app.db.session import Database
from app.errors import ErrorCode, FieldError, NexusError
from app.policy.document import ExecutionPolicy, canonical_bytes, load_policy
from app.policy.repository import (
    Activation,
    NewPolicy,
    PolicySummary,
    StoredPolicy,
    activations_of,
    insert_activation,
    insert_policy,
    kept_file,
    latest_activation,
    lock_activations,
    policies_page,
    policy_by_number,
    policy_by_sha256,
)

MAX_MESSAGE_CHARS: Final = 1024
# What `with_activations` returns of a version that was activated often.
MAX_ACTIVATIONS: Final = 20
# `expected` of `activate` when the caller requires that nothing was ever activated.
NO_ACTIVATION: Final = 0
# Reading a large document takes a thread tens of milliseconds; others wait their turn.
_READS_AT_ONCE: Final = 2


@dataclass(frozen=True, slots=True)
class Activated:
    """What is active now; `changed` is False when it already was."""

    activation: Activation
    changed: bool


class PolicyStore:
    """The stored policies. Every method raises DATABASE_UNAVAILABLE when Postgres is away.

    `documents` and `activations` count what was asked of this process, by what became of it.
    """

    def __init__(self, database: Database, clock: Clock) -> None:
        self._database = database
        self._clock = clock
        self._reads = asyncio.Semaphore(_READS_AT_ONCE)
        self.documents = dict.fromkeys(("stored", "known", "refused", "valid", "invalid"), 0)
        self.activations = dict.fromkeys(("changed", "unchanged", "refused"), 0)

    async def check(self, text: bytes | str) -> ExecutionPolicy:
        """`load_policy` off the event loop; stores nothing. Raises what that raises."""
        try:
            policy = await self._read(text)
        except NexusError:
            self.documents["invalid"] += 1
            raise
        self.documents["valid"] += 1
        return policy

    async def push(
        self, text: bytes | str, author: str, message: str | None = None
    ) -> tuple[StoredPolicy, bool]:
        """Store a document; the version with its content, and whether that is new.

        Content stored before keeps its number, source, author and message. Raises what
        `load_policy` raises, with every finding, and INVALID_FIELD for a message.
        """
        _check_message(message)
        try:
            policy = await self._read(text)
        except NexusError:
            self.documents["refused"] += 1
            raise
        stored, created = await self._store(policy, text, author, message)
        self.documents["stored" if created else "known"] += 1
        return stored, created

    async def _store(
        self, policy: ExecutionPolicy, text: bytes | str, author: str, message: str | None
    ) -> tuple[StoredPolicy, bool]:
        digest = bytes.fromhex(policy.content_sha256)
        source = text if isinstance(text, str) else text.decode("utf-8")
        new = NewPolicy(
            content_sha256=digest,
            document=canonical_bytes(policy).decode(),
            source=source,
            message=message,
            key_id=author,
            created_at=self._clock.now(),
        )
        async with self._database.write() as session:
            # Looked for first: a refused insert would use up a number.
            stored = await policy_by_sha256(session, digest)
            if stored is not None:
                return stored, False
            created = await insert_policy(session, new) is not None
            stored = await policy_by_sha256(session, digest)
        assert stored is not None
        return stored, created

    async def _read(self, text: bytes | str) -> ExecutionPolicy:
        async with self._reads:
            return await asyncio.to_thread(load_policy, text)

    async def get(self, number: int) -> StoredPolicy | None:
        """The version with this number; None when there is none."""
        if not 1 <= number <= MAX_I63:
            return None
        async with self._database.read() as session:
            return await policy_by_number(session, number)

    async def of_file(self, version: str) -> str | None:
        """The document of a policy file that some process was started with; None of any other."""
        async with self._database.read() as session:
            return await kept_file(session, version)

    async def with_activations(
        self, number: int
    ) -> tuple[StoredPolicy, list[Activation], Activation | None] | None:
        """A version, its newest activations, and what is active; None when there is none."""
        if not 1 <= number <= MAX_I63:
            return None
        async with self._database.read() as session:
            stored = await policy_by_number(session, number)
            if stored is None:
                return None
            activations = await activations_of(session, number, MAX_ACTIVATIONS)
            return stored, activations, await latest_activation(session)

    async def page(
        self, after: int | None, limit_rows: int
    ) -> tuple[list[PolicySummary], Activation | None]:
        """At most `limit_rows` versions below the number `after`, newest first, and what is
        active."""
        async with self._database.read() as session:
            active = await latest_activation(session)
            return await policies_page(session, after, limit_rows), active

    async def active(self) -> Activation | None:
        """What is active for every replica; None when nothing was ever activated."""
        async with self._database.read() as session:
            return await latest_activation(session)

    async def activate(
        self,
        number: int,
        author: str,
        message: str | None = None,
        *,
        expected: frozenset[int] | None = None,
    ) -> Activated:
        """Make a version the active one, for every replica within their next poll.

        Activating what is active changes nothing, so that a retry is safe, whatever `expected`
        says. `expected` holds the activation ids one of which must be the latest (NO_ACTIVATION for
        none yet): POLICY_CHANGED when it is another. Raises NOT_FOUND for an unknown number.
        """
        try:
            found = await self._activate(number, author, message, expected)
        except NexusError as error:
            # With the database away nothing was decided about it.
            self.activations["refused"] += not error.retryable
            raise
        self.activations["changed" if found.changed else "unchanged"] += 1
        return found

    async def _activate(
        self, number: int, author: str, message: str | None, expected: frozenset[int] | None
    ) -> Activated:
        _check_message(message)
        if not 1 <= number <= MAX_I63:
            raise no_policy(number)
        async with self._database.write() as session:
            if await policy_by_number(session, number) is None:
                raise no_policy(number)
            await lock_activations(session)
            before = await latest_activation(session)
            if before is not None and before.number == number:
                return Activated(before, changed=False)
            latest = NO_ACTIVATION if before is None else before.activation_id
            if expected is not None and latest not in expected:
                raise _changed(before)
            activation = await insert_activation(
                session, number=number, now=self._clock.now(), key_id=author, message=message
            )
        return Activated(activation, changed=True)


def no_policy(number: int) -> NexusError:
    return NexusError(
        ErrorCode.NOT_FOUND, "There is no such policy; GET /v1/policies lists them",
        internal=f"policy {number}",
    )  # fmt: skip


def _changed(before: Activation | None) -> NexusError:
    now = "no stored policy" if before is None else f"policy {before.number}"
    return NexusError(
        ErrorCode.POLICY_CHANGED,
        f"The active policy is not the expected one: now {now} is. GET /v1/policies/active, then "
        "decide again",
    )


def _check_message(message: str | None) -> None:
    if message is None:
        return
    if not 1 <= len(message) <= MAX_MESSAGE_CHARS or "\x00" in message:
        detail = f"A message has 1 to {MAX_MESSAGE_CHARS} characters, none of them U+0000"
        finding = FieldError("/query/message", ErrorCode.INVALID_FIELD, detail)
        raise NexusError(ErrorCode.INVALID_FIELD, detail, errors=[finding])
