"""`/v1/decisions` over HTTP against rows in Postgres."""

from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID, uuid4

import httpx
import pytest

from app.control.keys import Scope
from app.db.session import Database
from app.decisions.record import Decision, DecisionKind, DecisionOutcome
from app.paging import encode_cursor
from tests.decisions.answering import FixedAccess, application, client_of, refusal
from tests.decisions.rows import a_decision, an_outcome, id_at, store

NOW = datetime.now(UTC).replace(microsecond=0)
LIST = "/v1/decisions"


@pytest.fixture
def access() -> FixedAccess:
    return FixedAccess()


@pytest.fixture
async def client(database: Database, access: FixedAccess) -> AsyncIterator[httpx.AsyncClient]:
    async with client_of(application(database, access)) as client:
        yield client


async def ids_of(client: httpx.AsyncClient, **params: str) -> list[str]:
    answer = await client.get(LIST, params=params)
    assert answer.status_code == 200, answer.text
    return [item["decision_id"] for item in answer.json()["items"]]


async def walk(client: httpx.AsyncClient, page_size: int, **params: str) -> list[str]:
    seen: list[str] = []
    cursor: dict[str, str] = {}
    while True:
        query = {"page_size": str(page_size)} | params | cursor
        answer = await client.get(LIST, params=query)
        assert answer.status_code == 200, answer.text
        page = answer.json()
        assert len(page["items"]) <= page_size
        seen += [item["decision_id"] for item in page["items"]]
        if page["next_cursor"] is None:
            return seen
        assert len(page["items"]) == page_size
        cursor = {"cursor": page["next_cursor"]}


def at(seconds_ago: float, number: int = 1, **changes: Any) -> Decision:
    decision_id = id_at(NOW - timedelta(seconds=seconds_ago), number)
    return a_decision(decision_id=decision_id, **changes)


async def test_the_pages_are_the_whole_set_newest_first_also_where_times_are_equal(
    client: httpx.AsyncClient, database: Database
) -> None:
    rows = [at(seconds, number) for seconds in (0, 5, 5.001, 90_000) for number in range(1, 8)]
    await store(database, rows)
    expected = [
        str(row.decision_id)
        for row in sorted(rows, key=lambda row: (row.created_at, row.decision_id), reverse=True)
    ]
    for page_size in (1, 3, 7, 27, 28, 29):
        assert await walk(client, page_size) == expected


async def test_every_filter_alone_and_all_together(
    client: httpx.AsyncClient, database: Database
) -> None:
    others = {
        "tenant": {"tenant": "globex"},
        "namespace": {"namespace": "other"},
        "model": {"model": "m-70b"},
        "kind": {"kind": DecisionKind.ESTIMATE},
        "outcome": {"outcome": DecisionOutcome.MISS},
        "action": {"action": "transfer"},
        "backend": {"backend": "baseline"},
        "tier": {"tier": "host_dram"},
        "reason": {"fallback_reason": "cache_miss"},
        "policy_version": {"policy_version": "default@2"},
        "trace_id": {"trace_id": "f" * 32},
    }
    rows = {name: at(5 + n, n, **change) for n, (name, change) in enumerate(others.items(), 1)}
    everything = {name: value for change in others.values() for name, value in change.items()}
    whole = at(50, 77, **everything)
    await store(database, [at(60, 99), whole, *rows.values()])
    for name, change in others.items():
        (value,) = change.values()
        found = await ids_of(client, **{name: value})
        assert found == [str(rows[name].decision_id), str(whole.decision_id)], name
    together = {name: next(iter(change.values())) for name, change in others.items()}
    assert await ids_of(client, **together) == [str(whole.decision_id)]


async def test_a_trace_that_began_with_a_decision_is_found(
    client: httpx.AsyncClient, database: Database
) -> None:
    first, other = a_decision(trace_id=None), a_decision(trace_id=None)
    later = a_decision(trace_id=first.decision_id.hex, root_id=first.decision_id)
    await store(database, [first, other, later])
    for trace, found in (
        (first.decision_id.hex, {first.decision_id, later.decision_id}),
        (other.decision_id.hex, {other.decision_id}),
        (uuid4().hex, set()),
    ):
        answer = await client.get(LIST, params={"trace_id": trace})
        assert {UUID(item["decision_id"]) for item in answer.json()["items"]} == found


async def test_from_is_inclusive_and_to_is_exclusive(
    client: httpx.AsyncClient, database: Database
) -> None:
    rows = [at(seconds) for seconds in (30, 20, 10)]
    await store(database, rows)
    bounds = {"from": rows[0].created_at.isoformat(), "to": rows[2].created_at.isoformat()}
    assert await ids_of(client, **bounds) == [str(row.decision_id) for row in (rows[1], rows[0])]
    assert await ids_of(client, **{"from": bounds["to"], "to": bounds["from"]}) == []


async def test_a_cursor_belongs_to_its_filters(
    client: httpx.AsyncClient, database: Database
) -> None:
    await store(database, [at(10, number) for number in range(1, 6)])
    page = (await client.get(LIST, params={"page_size": 2, "tenant": "acme"})).json()
    cursor = page["next_cursor"]
    more = await client.get(LIST, params={"page_size": 3, "tenant": "acme", "cursor": cursor})
    assert more.status_code == 200
    assert len(more.json()["items"]) == 3
    for params in (
        {"cursor": cursor},
        {"cursor": cursor, "tenant": "globex"},
        {"cursor": cursor, "tenant": "acme", "kind": "lookup"},
        {"cursor": cursor[:-2], "tenant": "acme"},
        {"cursor": "nonsense", "tenant": "acme"},
        {"cursor": ""},
    ):
        assert refusal(await client.get(LIST, params=params)) == (400, "invalid_cursor")


@pytest.mark.parametrize(
    "moment", ["0001-01-01T00:00:00+14:00", "9999-12-31T23:59:59.9-14:00", "2026-01-01T00:00:00"]
)
async def test_a_cursor_of_no_time_is_refused(client: httpx.AsyncClient, moment: str) -> None:
    place = ((moment, uuid4()), (5, 10, ()))
    cursor = encode_cursor("decisions.created_at.v2", {}, place)
    answer = await client.get(LIST, params={"cursor": cursor})
    assert refusal(answer) == (400, "invalid_cursor")


async def test_an_item_tells_the_decision_and_leaves_its_inputs_to_the_single_view(
    client: httpx.AsyncClient, database: Database
) -> None:
    row = at(1)
    await store(database, [row])
    (item,) = (await client.get(LIST)).json()["items"]
    assert "inputs" not in item
    assert item["identity_hash"] == "000102030405060708090a0b0c0d0e0f"
    assert item["match"] == {"classification": "prefix", "units": 128}
    assert item["excluded"][0]["reason"] == "evidence_mismatch"
    assert item["estimate"] is None
    assert (item["latency_us"], item["index_revision"]) == (310, 42)
    assert datetime.fromisoformat(item["created_at"]) == row.created_at
    detail = (await client.get(f"{LIST}/{row.decision_id}")).json()
    assert detail["inputs"] == {"version": 1, "candidates": [1, 2, 3]}
    assert {name: detail[name] for name in item} == item


async def test_a_decision_shows_its_whole_chain_and_all_outcomes_oldest_first(
    client: httpx.AsyncClient, database: Database
) -> None:
    root = at(300)
    follow = {"root_id": root.decision_id}
    estimate = at(
        200, kind=DecisionKind.ESTIMATE, outcome=DecisionOutcome.ESTIMATED,
        parent_id=root.decision_id, **follow,
    )  # fmt: skip
    materialize = at(
        100, kind=DecisionKind.MATERIALIZE, outcome=DecisionOutcome.MATERIALIZED,
        parent_id=estimate.decision_id, **follow,
    )  # fmt: skip
    # A receipt is replayed for a week; a row of the tables' last partitions stands for that.
    replay = at(
        -6 * 86_400, kind=DecisionKind.MATERIALIZE, outcome=DecisionOutcome.REPLAYED,
        parent_id=materialize.decision_id, **follow,
    )  # fmt: skip
    stranger = at(250)
    outcomes = [
        an_outcome(materialize, created_at=NOW),
        an_outcome(estimate, created_at=NOW - timedelta(seconds=50), physical=True),
        an_outcome(stranger),
    ]
    await store(database, [replay, materialize, stranger, estimate, root], outcomes)
    chain = [str(row.decision_id) for row in (root, estimate, materialize, replay)]
    for decision_id in chain:
        detail = (await client.get(f"{LIST}/{decision_id}")).json()
        assert detail["decision_id"] == decision_id
        assert [link["decision_id"] for link in detail["chain"]] == chain
        assert [row["decision_id"] for row in detail["outcomes"]] == [chain[1], chain[2]]
        assert [row["physical"] for row in detail["outcomes"]] == [True, False]
    assert detail["outcomes"][1]["detail"] == {"backend": "baseline"}
    alone = (await client.get(f"{LIST}/{stranger.decision_id}")).json()
    assert [link["decision_id"] for link in alone["chain"]] == [str(stranger.decision_id)]


async def test_a_key_sees_its_tenants_only(
    client: httpx.AsyncClient, database: Database, access: FixedAccess
) -> None:
    rows = {
        tenant: at(10, number, tenant=tenant)
        for number, tenant in enumerate(("acme", "globex", "initech"), 1)
    }
    await store(database, list(rows.values()))
    # What no pipeline writes: another tenant's row under this one's root.
    intruder = at(5, 9, tenant="globex", root_id=rows["acme"].decision_id)
    await store(database, [intruder])
    assert len(await ids_of(client)) == 4
    access.of_tenants("acme", "initech")
    own = [str(rows[tenant].decision_id) for tenant in ("initech", "acme")]
    assert await ids_of(client) == own
    assert await walk(client, 1) == own
    assert await ids_of(client, tenant="acme") == own[1:]
    forbidden = await client.get(LIST, params={"tenant": "globex"})
    absent = await client.get(LIST, params={"tenant": "never-heard-of"})
    assert refusal(forbidden) == refusal(absent) == (403, "tenant_forbidden")
    foreign = await client.get(f"{LIST}/{rows['globex'].decision_id}")
    unknown = await client.get(f"{LIST}/{id_at(NOW, 77)}")
    assert refusal(foreign) == refusal(unknown) == (404, "not_found")
    assert foreign.json()["detail"] == unknown.json()["detail"]
    detail = (await client.get(f"{LIST}/{own[1]}")).json()
    assert [link["decision_id"] for link in detail["chain"]] == own[1:]


async def test_another_tenants_cursor_gives_nothing_away(
    client: httpx.AsyncClient, database: Database, access: FixedAccess
) -> None:
    await store(database, [at(10, n, tenant="globex") for n in range(1, 4)] + [at(60, 9)])
    cursor = (await client.get(LIST, params={"page_size": 1})).json()["next_cursor"]
    access.of_tenants("acme")
    page = (await client.get(LIST, params={"cursor": cursor})).json()
    assert [item["tenant"] for item in page["items"]] == ["acme"]


async def test_a_key_without_tenants_sees_nothing(
    client: httpx.AsyncClient, database: Database, access: FixedAccess
) -> None:
    await store(database, [at(10)])
    access.of_tenants()
    assert await ids_of(client) == []


async def test_the_scope_is_required(client: httpx.AsyncClient, access: FixedAccess) -> None:
    access.having(Scope.BRIDGE, Scope.STATES_READ, Scope.DECISIONS_WRITE)
    assert refusal(await client.get(LIST)) == (403, "forbidden")
    assert refusal(await client.get(f"{LIST}/{uuid4()}")) == (403, "forbidden")


@pytest.mark.parametrize(
    ("query", "code", "pointer"),
    [
        ("tenat=acme", "unknown_field", "/query/tenat"),
        ("created_from=2026-01-01T00:00:00Z", "unknown_field", "/query/created_from"),
        ("tenant=a%00b", "invalid_field", "/query/tenant"),
        ("model=%00", "invalid_field", "/query/model"),
        ("namespace=", "invalid_field", "/query/namespace"),
        ("kind=guess", "invalid_field", "/query/kind"),
        ("outcome=HIT", "invalid_field", "/query/outcome"),
        ("from=2026-01-01T00:00:00", "invalid_field", "/query/from"),
        ("from=2026-01-01T00:00:00+00:00", "invalid_field", "/query/from"),
        ("to=yesterday", "invalid_field", "/query/to"),
        ("to=0001-01-01T00:00:00%2B14:00", "invalid_field", "/query/to"),
        ("page_size=0", "invalid_field", "/query/page_size"),
        ("page_size=-5", "invalid_field", "/query/page_size"),
        ("page_size=ten", "invalid_field", "/query/page_size"),
        ("page_size=1.5", "invalid_field", "/query/page_size"),
    ],
)
async def test_a_bad_query_is_refused_by_name(
    client: httpx.AsyncClient, query: str, code: str, pointer: str
) -> None:
    answer = await client.get(f"{LIST}?{query}")
    assert refusal(answer) == (400, code)
    assert [error["pointer"] for error in answer.json()["errors"]] == [pointer]


async def test_a_page_over_the_limit_is_cut_to_it(
    client: httpx.AsyncClient, database: Database
) -> None:
    await store(database, [at(10, number) for number in range(1, 1_003)])
    assert len(await ids_of(client)) == 100
    assert len(await ids_of(client, page_size="1000")) == 1_000
    assert len(await ids_of(client, page_size="99999999999999999999")) == 1_000


@pytest.mark.parametrize(
    "decision_id",
    [
        uuid4(),  # not time-ordered
        UUID("ffffffff-ffff-7fff-bfff-ffffffffffff"),  # in the year 10889
        UUID("00000000-0000-7000-8000-000000000000"),  # in 1970
        UUID(int=0),
    ],
)
async def test_an_id_that_no_decision_can_have_is_not_found(
    client: httpx.AsyncClient, decision_id: UUID
) -> None:
    assert refusal(await client.get(f"{LIST}/{decision_id}")) == (404, "not_found")


async def test_what_is_no_id_is_not_found(client: httpx.AsyncClient) -> None:
    assert refusal(await client.get(f"{LIST}/latest")) == (404, "not_found")


async def test_without_postgres_the_history_is_unavailable(client: httpx.AsyncClient) -> None:
    nowhere = Database("postgresql://nobody@127.0.0.1:1/none", connect_timeout_s=2)
    client._transport.app.state.services.database = nowhere  # type: ignore[attr-defined]
    for path in (LIST, f"{LIST}/{id_at(NOW, 1)}"):
        assert refusal(await client.get(path)) == (503, "database_unavailable")
    await nowhere.close()


async def test_the_routes_declare_their_answers(client: httpx.AsyncClient) -> None:
    document = (await client.get("/openapi.json")).json()
    listed = document["paths"][LIST]["get"]
    assert {parameter["name"] for parameter in listed["parameters"]} == {
        "tenant", "namespace", "model", "kind", "outcome", "action", "backend", "tier", "reason",
        "policy_version", "trace_id", "from", "to", "page_size", "cursor",
    }  # fmt: skip
    assert set(listed["responses"]) >= {"200", "400", "401", "403", "503"}
    single = document["paths"][f"{LIST}/{{decision_id}}"]["get"]
    assert set(single["responses"]) >= {"200", "400", "401", "403", "404", "503"}
    for name in ("DecisionView", "DecisionDetail", "OutcomeView"):
        properties = document["components"]["schemas"][name]["properties"]
        assert all(p.endswith("_us") <= ("microseconds" in str(v)) for p, v in properties.items())
