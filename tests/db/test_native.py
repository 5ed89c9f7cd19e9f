"""Statements sent to the driver as they are: parameters, types and rows as SQLAlchemy has them."""

from datetime import UTC, datetime, timedelta
from uuid import uuid4

import asyncpg
import pytest
from sqlalchemy import bindparam, text
from sqlalchemy.dialects.postgresql import ARRAY, JSONB, TEXT
from sqlalchemy.exc import MultipleResultsFound, NoResultFound

from app.db.session import Database


async def test_values_go_and_come_as_they_are(database: Database) -> None:
    statement = text(
        "SELECT CAST(:id AS uuid) AS id, CAST(:at AS timestamptz) AS at, :names AS names,"
        " CAST(:raw AS bytea) AS raw, CAST(:wait AS interval) AS wait, CAST(:id AS uuid) AS again,"
        " CAST(:none AS text) AS none, CAST(:doc AS jsonb)::text AS doc"
    ).bindparams(bindparam("names", type_=ARRAY(TEXT())), bindparam("doc", type_=JSONB()))
    values = {
        "id": uuid4(),
        "at": datetime(2026, 11, 30, tzinfo=UTC),
        "names": ["a", "b"],
        "raw": b"\x00\xff",
        "wait": timedelta(seconds=1.5),
        "none": None,
        "doc": {"a": [1, None]},
    }
    async with database.read() as session:
        row = (await session.execute(statement, values)).one()
    assert row.id == row.again == values["id"]
    assert (row.at, row.names, row.raw, row.wait) == tuple(
        values[name] for name in ("at", "names", "raw", "wait")
    )
    assert row.none is None
    assert row.doc == '{"a": [1, null]}'
    assert row._mapping["names"] == ["a", "b"]
    assert row[3] == b"\x00\xff"


async def test_declared_columns_are_converted(database: Database) -> None:
    statement = text("SELECT '{\"a\": 1}'::jsonb AS doc, 2 AS n").columns(doc=JSONB())
    async with database.read() as session:
        assert (await session.execute(statement)).all() == [({"a": 1}, 2)]


async def test_how_many_rows_there_have_to_be(database: Database) -> None:
    rows = text("SELECT n FROM generate_series(1, :count) AS n")
    async with database.read() as session:
        none = await session.execute(rows, {"count": 0})
        assert (none.one_or_none(), none.scalar(), none.scalars(), list(none)) == (
            None,
            None,
            [],
            [],
        )
        with pytest.raises(NoResultFound):
            none.scalar_one()
        two = await session.execute(rows, {"count": 2})
        assert (two.scalar(), two.scalars()) == (1, [1, 2])
        with pytest.raises(MultipleResultsFound):
            two.one_or_none()


async def test_values_bound_beforehand_and_values_that_are_missing(database: Database) -> None:
    statement = text("SELECT CAST(:a AS int) + CAST(:b AS int)").bindparams(a=40)
    async with database.read() as session:
        assert await session.scalar(statement, {"b": 2}) == 42
        assert await session.scalar(statement, {"a": 1, "b": 2}) == 3
        with pytest.raises(KeyError):
            await session.scalar(statement)


async def test_what_is_not_durable_is_seen_at_once_and_only_there(database: Database) -> None:
    source = text("SELECT source FROM pg_settings WHERE name = 'synchronous_commit'")
    async with database.write(durable=False) as session:
        assert await session.scalar(source) == "session"
        await session.execute(text("CREATE TABLE seen (n int)"))
    async with database.write() as session:
        assert await session.scalar(source) != "session"
        await session.execute(text("INSERT INTO seen VALUES (1)"))


async def test_an_error_rolls_back_and_the_connection_goes_on(database: Database) -> None:
    async with database.write() as session:
        await session.execute(text("CREATE TABLE kept (n int UNIQUE)"))

    async def twice() -> None:
        async with database.write() as session:
            await session.execute(text("INSERT INTO kept VALUES (1)"))
            await session.execute(text("INSERT INTO kept VALUES (1)"))

    for _ in range(30):
        with pytest.raises(asyncpg.UniqueViolationError):
            await twice()
    async with database.read() as session:
        assert await session.scalar(text("SELECT count(*) FROM kept")) == 0
