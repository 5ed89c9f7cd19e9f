"""Rows of the partitioned tables with as little in them as the columns allow."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from datetime import datetime
from typing import Any
from uuid import UUID

import pytest

from app.clock import SystemIds
from app.db.copy_text import line
from app.db.session import Database, ReadSession
from app.decisions.models import DecisionOutcomeRow, DecisionRow

DECISION_COLUMNS = [column.name for column in DecisionRow.__table__.columns]
OUTCOME_COLUMNS = [column.name for column in DecisionOutcomeRow.__table__.columns]
WRITER = UUID(int=7)
IDS = SystemIds()


def decision(created_at: datetime, **changes: Any) -> bytes:
    decision_id = IDS.uuid7()
    values: dict[str, Any] = {
        **dict.fromkeys(DECISION_COLUMNS),
        "decision_id": decision_id,
        "created_at": created_at,
        "tenant": "acme",
        "namespace": "chat",
        "model": "m",
        "kind": "lookup",
        "outcome": "miss",
        "root_id": decision_id,
        "key_id": "k",
        "policy_version": "default@1",
        "excluded": "[]",
        "path": ["described", "matched"],
        "index_revision": 1,
        "latency_us": 40,
        "inputs": '{"v": 1}',
        "writer_id": WRITER,
        "writer_seq": 1,
    } | changes
    return line(values[name] for name in DECISION_COLUMNS)


def outcome(created_at: datetime, **changes: Any) -> bytes:
    values: dict[str, Any] = {
        **dict.fromkeys(OUTCOME_COLUMNS),
        "outcome_id": IDS.uuid7(),
        "created_at": created_at,
        "decision_id": IDS.uuid7(),
        "tenant": "acme",
        "status": "consumed",
        "physical": False,
        "detail": "{}",
        "writer_id": WRITER,
        "writer_seq": 1,
    } | changes
    return line(values[name] for name in OUTCOME_COLUMNS)


async def copy_lines(
    database: Database, table: str, columns: Sequence[str], lines: Sequence[bytes]
) -> None:
    """One COPY in a transaction of its own; raises what it raises."""
    async with database.write() as session:
        await session.copy_lines(table, columns, lines)


async def eventually(condition: Callable[[], Awaitable[bool]], *, deadline_s: float = 10) -> None:
    """Return once `condition` holds; fail when it does not in time."""
    async with asyncio.timeout(deadline_s):
        while not await condition():
            await asyncio.sleep(0.01)


def noted_statements(monkeypatch: pytest.MonkeyPatch, part: str) -> list[str]:
    """The statements with `part` in them that sessions execute from now on, as they come."""
    seen: list[str] = []
    execute = ReadSession.execute

    async def noting(self: ReadSession, statement: Any, values: Any = None) -> Any:
        if part in str(statement):
            seen.append(str(statement))
        return await execute(self, statement, values)

    monkeypatch.setattr(ReadSession, "execute", noting)
    return seen
