"""The views that dashboards read: what they have is documented, and what they show adds up."""

import re
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import text

from app.db.session import Database
from tests.decisions.rows import a_decision, an_outcome, store

DOCUMENT = Path(__file__).resolve().parents[2] / "docs" / "decisions.md"
VIEWS = ("decisions", "outcomes", "decisions_hourly", "outcomes_hourly")


def documented(view: str) -> list[str]:
    """The columns that the page lists for a view, in order."""
    section = DOCUMENT.read_text(encoding="utf-8").partition(f"### `history.{view}`\n")[2]
    table = section.partition("\n### ")[0]
    return re.findall(r"^\| `(\w+)` \|", table, re.MULTILINE)


async def rows(database: Database, view: str) -> list[dict[str, Any]]:
    async with database.read() as session:
        found = await session.execute(text(f"SELECT * FROM history.{view}"))
        return [row._asdict() for row in found.all()]


@pytest.mark.parametrize("view", VIEWS)
async def test_a_view_has_the_columns_that_are_documented(database: Database, view: str) -> None:
    decision = a_decision()
    await store(database, [decision], [an_outcome(decision)])
    (row,) = await rows(database, view)
    assert list(row) == documented(view)
    assert row["tenant"] == "acme"
    assert not {"key_id", "identity_hash", "inputs", "reporter", "xid", "writer_id"} & set(row)


async def test_the_hours_sum_up_the_rows(database: Database) -> None:
    decisions = [a_decision(tenant=tenant) for tenant in ("acme", "acme", "globex")]
    outcomes = [an_outcome(decision, gain_us=100) for decision in decisions]
    await store(database, decisions, outcomes)
    hours = await rows(database, "decisions_hourly")
    assert sum(row["decisions"] for row in hours) == 3
    assert sum(sum(row["latency_counts"]) for row in hours) == 3
    assert sum(row["gain_us"] for row in await rows(database, "outcomes_hourly")) == 300
