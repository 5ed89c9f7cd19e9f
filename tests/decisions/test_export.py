"""`/v1/decisions/export`: complete, of one moment, and in memory that does not grow with it."""

import io
import tracemalloc
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from itertools import count
from typing import Any

import httpx
import orjson
import pyarrow.parquet as pq
import pytest

from app.control.keys import Scope
from app.db.session import Database
from app.decisions.export import (
    ExportPages,
    NdjsonEncoder,
    ParquetEncoder,
    export_bytes,
)
from app.decisions.record import DecisionKind
from app.decisions.repository import DecisionFilter
from tests.decisions.answering import FixedAccess, application, client_of, refusal
from tests.decisions.rows import a_decision, id_at, store

NOW = datetime.now(UTC).replace(microsecond=0)
LIST = "/v1/decisions"
PATH = f"{LIST}/export"
_numbers = count(1)


@pytest.fixture
def access() -> FixedAccess:
    return FixedAccess()


@pytest.fixture
async def client(database: Database, access: FixedAccess) -> AsyncIterator[httpx.AsyncClient]:
    async with client_of(application(database, access)) as client:
        yield client


async def some(database: Database, how_many: int, **changes: Any) -> list[str]:
    """Ids, newest first, a second apart."""
    rows = [
        a_decision(decision_id=id_at(NOW - timedelta(seconds=number), next(_numbers)), **changes)
        for number in range(how_many)
    ]
    await store(database, rows)
    return [str(row.decision_id) for row in rows]


async def test_lines_are_what_the_single_view_has(
    client: httpx.AsyncClient, database: Database
) -> None:
    full = {"action": "reuse", "tier": "host_dram", "query_tokens": 7, "recompute_us": 9}
    ids = await some(database, 3, **full, model='模型 \\ "x"')
    ids += await some(database, 2, tenant="globex", match=None, trace_id=None, path=[])
    answer = await client.get(PATH)
    assert answer.headers["content-type"] == "application/x-ndjson"
    assert answer.headers["content-disposition"] == 'attachment; filename="decisions.ndjson"'
    found = [orjson.loads(line) for line in answer.content.splitlines()]
    assert sorted(row["decision_id"] for row in found) == sorted(ids)
    for row in found:
        detail = (await client.get(f"{LIST}/{row['decision_id']}")).json()
        del detail["chain"], detail["outcomes"], detail["cut"], detail["candidates"]
        assert row == detail
    only = await client.get(PATH, params={"tenant": "globex", "format": "ndjson"})
    assert [orjson.loads(line)["decision_id"] for line in only.content.splitlines()] == ids[3:]


async def test_parquet_reads_back_as_the_lines_are(
    client: httpx.AsyncClient, database: Database
) -> None:
    await some(database, 700)
    await some(
        database, 40, kind=DecisionKind.ESTIMATE, match=None, identity_hash=None, state_id=None
    )
    lines = (await client.get(PATH)).content.splitlines()
    answer = await client.get(PATH, params={"format": "parquet"})
    assert answer.headers["content-type"] == "application/vnd.apache.parquet"
    assert answer.headers["content-disposition"] == 'attachment; filename="decisions.parquet"'
    found = pq.read_table(io.BytesIO(answer.content)).to_pylist()
    assert len(found) == len(lines) == 740
    for row, line in zip(found, lines, strict=True):
        row["created_at"] = row["created_at"].isoformat().replace("+00:00", "Z")
        for name in ("match", "compatibility", "excluded", "estimate", "inputs"):
            row[name] = None if row[name] is None else orjson.loads(row[name])
        expected = orjson.loads(line)
        created_at = datetime.fromisoformat(expected["created_at"])
        assert row.pop("created_at") == created_at.isoformat().replace("+00:00", "Z")
        del expected["created_at"]
        assert row == expected


async def test_an_export_of_nothing_is_a_file(client: httpx.AsyncClient) -> None:
    assert (await client.get(PATH)).content == b""
    answer = await client.get(PATH, params={"format": "parquet"})
    assert pq.read_table(io.BytesIO(answer.content)).num_rows == 0


async def test_what_is_stored_meanwhile_is_not_in_it(database: Database) -> None:
    ids = await some(database, 50)
    pages = ExportPages(database, DecisionFilter(None), page_rows=10)
    found: list[str] = []
    async for rows in pages:
        found += [str(row.decision_id) for row in rows]
        await store(database, [a_decision(decision_id=id_at(NOW - timedelta(seconds=49), 99_999))])
        break
    async for rows in pages:
        found += [str(row.decision_id) for row in rows]
    assert found == ids


@pytest.mark.parametrize("encoder", [NdjsonEncoder, lambda: ParquetEncoder(group_rows=1_000)])
async def test_memory_does_not_grow_with_the_rows(database: Database, encoder: Any) -> None:
    inputs = orjson.dumps({"version": 1, "padding": "x" * 2_000}).decode()

    async def peak(rows: int) -> int:
        chosen = DecisionFilter(None, created_from=NOW - timedelta(seconds=rows - 1))
        tracemalloc.start()
        sent_bytes = 0
        async for piece in export_bytes(ExportPages(database, chosen, page_rows=100), encoder()):
            sent_bytes += len(piece)
        _, peak_bytes = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        assert sent_bytes
        return peak_bytes

    await some(database, 6_000, inputs=inputs)
    few, many = await peak(1_500), await peak(6_000)
    assert many < 1.5 * few


async def test_a_key_exports_its_tenants_only(
    client: httpx.AsyncClient, database: Database, access: FixedAccess
) -> None:
    await some(database, 2, tenant="globex")
    access.of_tenants("acme")
    assert (await client.get(PATH)).content == b""
    answer = await client.get(PATH, params={"tenant": "globex"})
    assert refusal(answer) == (403, "tenant_forbidden")
    assert refusal(await client.get(PATH, params={"format": "csv"})) == (400, "invalid_field")
    access.having(Scope.DECISIONS_WRITE)
    assert refusal(await client.get(PATH)) == (403, "forbidden")


async def test_without_postgres_an_export_is_refused_and_not_cut(
    client: httpx.AsyncClient,
) -> None:
    nowhere = Database("postgresql://nobody@127.0.0.1:1/none", connect_timeout_s=2)
    client._transport.app.state.services.database = nowhere  # type: ignore[attr-defined]
    for _ in range(4):  # More often than there are places.
        assert refusal(await client.get(PATH)) == (503, "database_unavailable")
    await nowhere.close()
