"""Versions and activations in Postgres: stored once, never changed, raced for."""

import asyncio
import hashlib
import json

import asyncpg
import pytest
import yaml
from sqlalchemy import text as sql

from app.errors import ErrorCode, NexusError
from app.policy.store import MAX_ACTIVATIONS, MAX_MESSAGE_CHARS, NO_ACTIVATION
from tests.policies.documents import document, text


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
    page, _ = await store.page(None, 10)
    assert len(page) == 1


async def test_pages_are_newest_first(store) -> None:
    numbers = [(await store.push(text(n), "k"))[0].number for n in range(5)]
    newest_first = numbers[::-1]
    page, active = await store.page(None, 3)
    assert [one.number for one in page] == newest_first[:3]
    assert active is None
    rest, _ = await store.page(page[-1].number, 3)
    assert [one.number for one in rest] == newest_first[3:]


async def test_an_invalid_document_is_not_stored(store) -> None:
    with pytest.raises(NexusError) as caught:
        await store.push(text(allowed_source_tiers=["tape"], surprise=1), "k")
    assert {finding.pointer for finding in caught.value.errors} == {
        "/allowed_source_tiers/0",
        "/surprise",
    }
    assert (await store.page(None, 10))[0] == []


@pytest.mark.parametrize("message", ["", "x" * (MAX_MESSAGE_CHARS + 1), "a\x00b"])
async def test_a_message_has_limits(store, message: str) -> None:
    with pytest.raises(NexusError) as caught:
        await store.push(text(), "k", message)
    assert caught.value.errors[0].pointer == "/query/message"


async def test_activating_twice_is_activating_once(store) -> None:
    a, _ = await store.push(text(1), "k")
    b, _ = await store.push(text(2), "k")
    assert await store.active() is None
    first = await store.activate(a.number, "op", "go")
    assert first.changed
    assert (first.activation.number, first.activation.message) == (a.number, "go")
    again = await store.activate(a.number, "other", "again")
    assert not again.changed
    assert again.activation == first.activation == await store.active()
    await store.activate(b.number, "op")
    back = await store.activate(a.number, "op", "roll back")
    assert back.changed
    assert await store.active() == back.activation
    _, activations, active = await store.with_activations(a.number)
    assert activations == [back.activation, first.activation]
    assert active == back.activation


async def test_only_the_newest_activations_are_shown(store) -> None:
    numbers = [(await store.push(text(n), "k"))[0].number for n in range(2)]
    for turn in range(2 * MAX_ACTIVATIONS + 2):
        await store.activate(numbers[turn % 2], "op")
    _, activations, active = await store.with_activations(numbers[1])
    assert len(activations) == MAX_ACTIVATIONS
    assert activations[0] == active


async def test_an_unknown_version_cannot_be_activated(store) -> None:
    for number in (0, 1, -5, 2**63 - 1, 2**64):
        with pytest.raises(NexusError) as caught:
            await store.activate(number, "op")
        assert caught.value.code is ErrorCode.NOT_FOUND


async def test_an_expectation_that_is_outdated_is_refused(store) -> None:
    a, _ = await store.push(text(1), "k")
    b, _ = await store.push(text(2), "k")
    none_yet = frozenset({NO_ACTIVATION})
    first = await store.activate(a.number, "op", expected=none_yet)
    for outdated in (none_yet, frozenset({first.activation.activation_id + 1}), frozenset()):
        with pytest.raises(NexusError, match=f"policy {a.number}") as caught:
            await store.activate(b.number, "op", expected=outdated)
        assert caught.value.code is ErrorCode.POLICY_CHANGED
    # A retry of what was done is safe, whatever it expected.
    assert not (await store.activate(a.number, "op", expected=none_yet)).changed
    expected = frozenset({first.activation.activation_id})
    assert (await store.activate(b.number, "op", expected=expected)).changed


async def test_of_racing_activations_that_expect_the_same_one_wins(store) -> None:
    numbers = [(await store.push(text(n), "k"))[0].number for n in range(8)]
    results = await asyncio.gather(
        *(store.activate(n, "op", expected=frozenset({NO_ACTIVATION})) for n in numbers),
        return_exceptions=True,
    )
    won = [result for result in results if not isinstance(result, NexusError)]
    lost = [result for result in results if isinstance(result, NexusError)]
    assert len(won) == 1
    assert {error.code for error in lost} == {ErrorCode.POLICY_CHANGED}
    assert await store.active() == won[0].activation


@pytest.mark.parametrize("table", ["execution_policy", "policy_activation"])
@pytest.mark.parametrize("statement", ["UPDATE {} SET message = 'x'", "DELETE FROM {}",
                                       "TRUNCATE {} CASCADE"])  # fmt: skip
async def test_what_is_stored_cannot_be_changed(store, database, table, statement) -> None:
    stored, _ = await store.push(text(1), "k")
    await store.activate(stored.number, "op")
    with pytest.raises(asyncpg.RestrictViolationError, match="insert-only"):
        async with database.write() as session:
            await session.execute(sql(statement.format(table)))
