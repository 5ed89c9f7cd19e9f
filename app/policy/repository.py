"""SQL of policies: versions and activations."""

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from sqlalchemy import Select, select, text
from sqlalchemy.dialects.postgresql import insert

from app.db.session import ReadSession, WriteSession
from app.policy.models import ExecutionPolicyRow, PolicyActivationRow, PolicyFileRow

ActivationColumns = tuple[int, int, datetime, str, str | None]


@dataclass(frozen=True, slots=True)
class PolicySummary:
    """One stored version; `content_sha256` is the raw digest of its canonical document."""

    number: int
    content_sha256: bytes
    message: str | None
    key_id: str
    created_at: datetime


@dataclass(frozen=True, slots=True)
class StoredPolicy(PolicySummary):
    """One stored version, whole: the canonical document, and the text as it was uploaded."""

    document: str
    source: str


@dataclass(frozen=True, slots=True)
class NewPolicy:
    """A version to store; Postgres numbers it."""

    content_sha256: bytes
    document: str
    source: str
    message: str | None
    key_id: str
    created_at: datetime


@dataclass(frozen=True, slots=True)
class Activation:
    """One change of the active policy; the highest `activation_id` is what is active."""

    activation_id: int
    number: int
    activated_at: datetime
    key_id: str
    message: str | None


_SUMMARY = (
    ExecutionPolicyRow.number,
    ExecutionPolicyRow.content_sha256,
    ExecutionPolicyRow.message,
    ExecutionPolicyRow.key_id,
    ExecutionPolicyRow.created_at,
)
_WHOLE = (*_SUMMARY, ExecutionPolicyRow.document, ExecutionPolicyRow.source)
_ACTIVATION = (
    PolicyActivationRow.activation_id,
    PolicyActivationRow.number,
    PolicyActivationRow.activated_at,
    PolicyActivationRow.key_id,
    PolicyActivationRow.message,
)
# Readers go on; other activations wait. Ids are then given in the order of commits.
_LOCK_ACTIVATIONS = text("LOCK TABLE policy_activation IN EXCLUSIVE MODE")


async def insert_policy(session: WriteSession, new: NewPolicy) -> int | None:
    """Store a version and return its number; None when its content is stored already.

    Waits for another transaction that is storing the same content.
    """
    statement = (
        insert(ExecutionPolicyRow)
        .values(
            content_sha256=new.content_sha256,
            document=new.document,
            source=new.source,
            message=new.message,
            key_id=new.key_id,
            created_at=new.created_at,
        )
        .on_conflict_do_nothing(index_elements=[ExecutionPolicyRow.content_sha256])
        .returning(ExecutionPolicyRow.number)
    )
    found: int | None = (await session.execute(statement)).scalar_one_or_none()
    return found


async def policy_by_sha256(session: ReadSession, content_sha256: bytes) -> StoredPolicy | None:
    """The version with this content; None when there is none."""
    where = ExecutionPolicyRow.content_sha256 == content_sha256
    row = (await session.execute(select(*_WHOLE).where(where))).one_or_none()
    return None if row is None else _stored(row)


async def policy_by_number(session: ReadSession, number: int) -> StoredPolicy | None:
    """The version with this number; None when there is none."""
    where = ExecutionPolicyRow.number == number
    row = (await session.execute(select(*_WHOLE).where(where))).one_or_none()
    return None if row is None else _stored(row)


async def policies_page(
    session: ReadSession, after: int | None, limit_rows: int
) -> list[PolicySummary]:
    """At most `limit_rows` versions below a number, newest first."""
    statement = select(*_SUMMARY).order_by(ExecutionPolicyRow.number.desc()).limit(limit_rows)
    if after is not None:
        statement = statement.where(ExecutionPolicyRow.number < after)
    return [PolicySummary(*row) for row in await session.execute(statement)]


async def latest_activation(session: ReadSession) -> Activation | None:
    """What is active; None when nothing was ever activated."""
    row = (await session.execute(_activations().limit(1))).one_or_none()
    return None if row is None else Activation(*row)


async def activations_of(session: ReadSession, number: int, limit_rows: int) -> list[Activation]:
    """The newest activations of one version, newest first."""
    statement = _activations().where(PolicyActivationRow.number == number).limit(limit_rows)
    return [Activation(*row) for row in await session.execute(statement)]


async def lock_activations(session: WriteSession) -> None:
    """Until the transaction ends nobody else activates; what is active stands still."""
    await session.execute(_LOCK_ACTIVATIONS)


async def insert_activation(
    session: WriteSession, *, number: int, now: datetime, key_id: str, message: str | None
) -> Activation:
    """Make a stored version the active one."""
    statement = (
        insert(PolicyActivationRow)
        .values(number=number, activated_at=now, key_id=key_id, message=message)
        .returning(*_ACTIVATION)
    )
    return Activation(*(await session.execute(statement)).one())


def _activations() -> Select[*ActivationColumns]:
    return select(*_ACTIVATION).order_by(PolicyActivationRow.activation_id.desc())


def _stored(columns: Iterable[Any]) -> StoredPolicy:
    return StoredPolicy(*columns)


async def keep_file(session: WriteSession, version: str, document: str, now: datetime) -> None:
    """Keep the content of a policy file; what is kept already stays."""
    values = {"version": version, "document": document, "first_seen_at": now}
    await session.execute(insert(PolicyFileRow).values(**values).on_conflict_do_nothing())


async def kept_file(session: ReadSession, version: str) -> str | None:
    """The canonical content of a policy file; None where no process had it."""
    found: str | None = await session.scalar(
        select(PolicyFileRow.document).where(PolicyFileRow.version == version)
    )
    return found
