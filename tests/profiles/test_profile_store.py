"""Versions of profiles in Postgres: stored once, in the order of commits, never changed."""

import asyncio
import hashlib
import json

import asyncpg
import pytest
import yaml
from sqlalchemy import text as sql

from app.errors import ErrorCode, NexusError
from app.profiles.repository import ProfileFilter
from tests.profiles.documents import document, text

EVERY = ProfileFilter()


async def test_the_same_content_is_the_same_version(store) -> None:
    first, created = await store.push(text(1), "key-a", "first")
    assert created
    assert (first.key_id, first.message, first.source) == ("key-a", "first", text(1))
    assert hashlib.sha256(first.document.encode()).digest() == first.content_sha256
    commented = "# the same\n" + yaml.safe_dump(document(1))
    again, created = await store.push(commented.encode(), "key-b", "second")
    assert not created
    assert again == first
    other, created = await store.push(text(2), "key-a")
    assert created
    # Sending known content uses up no number.
    assert other.number == first.number + 1
    assert await store.get(first.number) == first
    for unknown in (0, -1, other.number + 1, 2**63, 2**200):
        assert await store.get(unknown) is None


async def test_racing_uploads_of_the_same_content_store_it_once(store) -> None:
    reversed_text = json.dumps(dict(reversed(document(1).items())))
    pushes = [store.push(text(1) if odd else reversed_text, "k") for odd in (0, 1) * 6]
    results = await asyncio.gather(*pushes)
    assert len({stored.number for stored, _ in results}) == 1
    assert sum(created for _, created in results) == 1


async def test_pages_are_newest_first_and_filtered(store) -> None:
    made = []
    for n in range(6):
        changes = {"name": f"n{n % 2}", "model": "m" if n < 3 else "", "hardware": "h" * (n % 3)}
        made.append((await store.push(text(n, **changes), "k"))[0].number)
    page = await store.page(EVERY, None, 4)
    assert [one.number for one in page] == made[:1:-1]
    rest = await store.page(EVERY, page[-1].number, 4)
    assert [one.number for one in rest] == made[1::-1]
    for wanted, expected in (
        (ProfileFilter(name="n1"), made[5::-2]),
        (ProfileFilter(model="m"), made[2::-1]),
        (ProfileFilter(model=""), made[:2:-1]),
        (ProfileFilter(model="", hardware="hh", name="n1"), [made[5]]),
        (ProfileFilter(hardware="x"), []),
    ):
        assert [one.number for one in await store.page(wanted, None, 10)] == expected


@pytest.mark.parametrize("message", ["", "x" * 1025, "a\x00b"])
async def test_a_message_has_limits(store, message: str) -> None:
    with pytest.raises(NexusError) as caught:
        await store.push(text(), "k", message)
    assert caught.value.errors[0].pointer == "/query/message"


async def test_an_invalid_document_is_not_stored(store) -> None:
    with pytest.raises(NexusError) as caught:
        await store.push(text(restore_us=-1, surprise=1), "k")
    found = {finding.pointer: finding for finding in caught.value.errors}
    assert set(found) == {"/restore_us", "/surprise"}
    assert found["/restore_us"].value == "-1"
    assert found["/surprise"].code is ErrorCode.UNKNOWN_FIELD
    assert await store.page(EVERY, None, 10) == []


@pytest.mark.parametrize(
    "statement",
    ["UPDATE cost_profile SET name = 'x'", "DELETE FROM cost_profile", "TRUNCATE cost_profile"],
)
async def test_what_is_stored_cannot_be_changed(store, database, statement) -> None:
    await store.push(text(), "k")
    with pytest.raises(asyncpg.RestrictViolationError, match="insert-only"):
        async with database.write() as session:
            await session.execute(sql(statement))
