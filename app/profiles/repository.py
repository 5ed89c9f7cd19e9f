"""SQL of cost profiles."""

from dataclasses import dataclass
from datetime import datetime
from typing import Final

from sqlalchemy import select, text
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.sql.functions import max as maximum

from app.db.session import ReadSession, WriteSession
from app.profiles.models import CostProfileRow


@dataclass(frozen=True, slots=True)
class ProfileSummary:
    """One stored version; `content_sha256` is the raw digest of its canonical document."""

    number: int
    name: str
    model: str
    hardware: str
    content_sha256: bytes
    message: str | None
    key_id: str
    created_at: datetime


@dataclass(frozen=True, slots=True)
class StoredProfile(ProfileSummary):
    """One stored version, whole: the canonical document, and the text as it was uploaded."""

    document: str
    source: str


@dataclass(frozen=True, slots=True)
class NewProfile:
    """A version to store; Postgres numbers it."""

    name: str
    model: str
    hardware: str
    content_sha256: bytes
    document: str
    source: str
    message: str | None
    key_id: str
    created_at: datetime


@dataclass(frozen=True, slots=True)
class ProfileFilter:
    """What a page is of; None is any. `model` and `hardware` "" are those that hold for any."""

    name: str | None = None
    model: str | None = None
    hardware: str | None = None


_SUMMARY: Final = (
    CostProfileRow.number,
    CostProfileRow.name,
    CostProfileRow.model,
    CostProfileRow.hardware,
    CostProfileRow.content_sha256,
    CostProfileRow.message,
    CostProfileRow.key_id,
    CostProfileRow.created_at,
)
_WHOLE: Final = (*_SUMMARY, CostProfileRow.document, CostProfileRow.source)
# Readers go on; other uploads wait. Numbers are then given in the order of commits, so that whoever
# has read up to one misses none below it.
_LOCK: Final = text("LOCK TABLE cost_profile IN EXCLUSIVE MODE")


async def lock_profiles(session: WriteSession) -> None:
    """Until the transaction ends nobody else stores a profile."""
    await session.execute(_LOCK)


async def insert_profile(session: WriteSession, new: NewProfile) -> StoredProfile:
    """Store a version. The caller holds `lock_profiles` and has seen that its content is new."""
    statement = (
        insert(CostProfileRow)
        .values(
            name=new.name,
            model=new.model,
            hardware=new.hardware,
            content_sha256=new.content_sha256,
            document=new.document,
            source=new.source,
            message=new.message,
            key_id=new.key_id,
            created_at=new.created_at,
        )
        .returning(*_WHOLE)
    )
    return StoredProfile(*(await session.execute(statement)).one())


async def profile_by_sha256(session: ReadSession, content_sha256: bytes) -> StoredProfile | None:
    """The version with this content; None when there is none."""
    where = CostProfileRow.content_sha256 == content_sha256
    row = (await session.execute(select(*_WHOLE).where(where))).one_or_none()
    return None if row is None else StoredProfile(*row)


async def profile_by_number(session: ReadSession, number: int) -> StoredProfile | None:
    """The version with this number; None when there is none."""
    where = CostProfileRow.number == number
    row = (await session.execute(select(*_WHOLE).where(where))).one_or_none()
    return None if row is None else StoredProfile(*row)


async def profiles_page(
    session: ReadSession, wanted: ProfileFilter, after: int | None, limit_rows: int
) -> list[ProfileSummary]:
    """At most `limit_rows` versions below a number, newest first."""
    statement = select(*_SUMMARY).order_by(CostProfileRow.number.desc()).limit(limit_rows)
    if after is not None:
        statement = statement.where(CostProfileRow.number < after)
    if wanted.name is not None:
        statement = statement.where(CostProfileRow.name == wanted.name)
    if wanted.model is not None:
        statement = statement.where(CostProfileRow.model == wanted.model)
    if wanted.hardware is not None:
        statement = statement.where(CostProfileRow.hardware == wanted.hardware)
    return [ProfileSummary(*row) for row in await session.execute(statement)]


async def latest_number(session: ReadSession) -> int:
    """The highest number; 0 when nothing is stored."""
    found: int | None = await session.scalar(select(maximum(CostProfileRow.number)))
    return found or 0


async def profiles_above(session: ReadSession, number: int, limit_rows: int) -> list[StoredProfile]:
    """The first `limit_rows` versions above a number, oldest first."""
    statement = (
        select(*_WHOLE)
        .where(CostProfileRow.number > number)
        .order_by(CostProfileRow.number)
        .limit(limit_rows)
    )
    return [StoredProfile(*row) for row in await session.execute(statement)]
