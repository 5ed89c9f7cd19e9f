"""What goes in as a line of COPY comes out of Postgres unchanged."""

from datetime import UTC, datetime
from typing import Any
from uuid import UUID

import orjson
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from sqlalchemy import text

from app.db.copy_text import escaped, json_field, line
from app.db.session import Database
from tests.db.rows import copy_lines

TEXTS = st.text(st.characters(exclude_characters="\x00", exclude_categories=["Cs"]), max_size=20)
AWKWARD = st.sampled_from(
    ["\\N", "\\.", "\\", "a\tb", "\n", "\r\n", "{}", '"', "NULL", "", "\\x41"]
)
ANY_TEXT = TEXTS | AWKWARD | st.tuples(AWKWARD, TEXTS).map("".join)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | ANY_TEXT,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(ANY_TEXT, inner, max_size=3),
    max_leaves=6,
)
TIMES = (datetime(1970, 1, 2), datetime(2200, 1, 1))  # noqa: DTZ001 - hypothesis adds UTC
ROWS = st.tuples(
    ANY_TEXT,
    st.none() | ANY_TEXT,
    st.lists(ANY_TEXT, max_size=4),
    st.none() | st.binary(max_size=20),
    st.uuids(),
    st.integers(-(2**63), 2**63 - 1),
    st.booleans(),
    st.datetimes(*TIMES, timezones=st.just(UTC)),
    JSON,
)
COLUMNS = ("t", "maybe", "path", "raw", "id", "n", "yes", "at", "doc")


@pytest.fixture
async def table(database: Database) -> str:
    async with database.write() as session:
        await session.execute(
            text(
                "CREATE TABLE given (seq bigint GENERATED ALWAYS AS IDENTITY, t text, maybe text,"
                " path text[], raw bytea, id uuid, n bigint, yes boolean, at timestamptz,"
                " doc jsonb)"
            )
        )
    return "given"


@settings(
    max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(rows=st.lists(ROWS, min_size=1, max_size=5))
async def test_rows_come_back_as_they_went_in(
    database: Database, table: str, rows: list[tuple[Any, ...]]
) -> None:
    lines = [line((*row[:-1], orjson.dumps(row[-1]).decode())) for row in rows]
    await copy_lines(database, table, COLUMNS, lines)
    async with database.write() as session:
        found = await session.execute(
            text(f"SELECT {', '.join(COLUMNS)} FROM {table} ORDER BY seq")
        )
        stored = [tuple(row) for row in found]
        await session.execute(text(f"TRUNCATE {table}"))
    assert stored == rows


@given(JSON)
def test_a_json_text_needs_no_more_than_its_backslashes_escaped(value: Any) -> None:
    encoded = orjson.dumps(value).decode()
    assert json_field(encoded) == escaped(encoded)


def test_a_value_without_a_column_type_is_refused() -> None:
    with pytest.raises(TypeError, match="float"):
        line(["a", 1.5])
    with pytest.raises(UnicodeEncodeError):
        line(["\ud800"])
    assert line([UUID(int=1), None, True, b"\x00\xff"]) == (
        b"00000000-0000-0000-0000-000000000001\t\\N\tTrue\t\\\\x00ff\n"
    )
