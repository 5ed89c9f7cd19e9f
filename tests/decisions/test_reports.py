"""Reports of outcomes from outside: each once, with what it adds to the sums."""

import asyncio
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import uuid4

import httpx
import pytest

from app.control.keys import Principal, Scope
from app.db.session import Database
from app.decisions.record import DecisionKind, DecisionOutcome, OutcomeStatus
from tests.decisions.answering import SCOPES, FixedAccess, application, client_of, refusal
from tests.decisions.rows import a_decision, an_outcome, id_at, store

LIST = "/v1/decisions"
BATCH = f"{LIST}/outcomes"
USED = {"status": "consumed", "tokens": 800, "observed_us": 1_500, "bytes": 4_096}


@pytest.fixture
def access() -> FixedAccess:
    return FixedAccess()


@pytest.fixture
async def client(database: Database, access: FixedAccess) -> AsyncIterator[httpx.AsyncClient]:
    async with client_of(application(database, access)) as client:
        yield client


async def report(client: httpx.AsyncClient, decision_id: Any, **body: Any) -> httpx.Response:
    return await client.post(f"{LIST}/{decision_id}/outcome", json=body)


async def sums(client: httpx.AsyncClient) -> dict[str, Any]:
    params = {"step": "none", "from": "2026-01-01T00:00:00Z", "to": "2099-01-01T00:00:00Z"}
    answer = await client.get(f"{LIST}/summary", params=params)
    (cell,) = answer.json()["cells"]
    return cell["outcomes"] | {"compared": cell["prediction"]["compared"]}


async def test_a_report_is_stored_once_however_often_it_is_sent(
    client: httpx.AsyncClient, database: Database
) -> None:
    decision = a_decision(predicted_us=1_000, recompute_us=9_000, backend="baseline")
    await store(database, [decision])
    body = USED | {"report_id": "r-1", "detail": {"engine": "vllm", "n": [1, 2]}}
    answers = await asyncio.gather(
        *(report(client, decision.decision_id, **body) for _ in range(8))
    )
    assert [answer.status_code for answer in answers] == [200] * 8
    results = sorted(answer.json()["result"] for answer in answers)
    assert results == ["already_stored"] * 7 + ["stored"]
    outcomes = [answer.json()["outcome"] for answer in answers]
    assert all(outcome == outcomes[0] for outcome in outcomes)
    assert (
        outcomes[0]
        | {
            "status": "consumed",
            "observed_us": 1_500,
            "bytes_transferred": 4_096,
            "tokens": 800,
            "gain_us": 7_500,
            "predicted_us": 1_000,
            "physical": False,
            "reporter": "key",
            "backend": "baseline",
            "kind": "lookup",
            "detail": {"engine": "vllm", "n": [1, 2]},
        }
        == outcomes[0]
    )
    shown = (await client.get(f"{LIST}/{decision.decision_id}")).json()["outcomes"]
    assert shown == outcomes[:1]
    found = await sums(client)
    assert (found["count"], found["gain_us"], found["tokens"]) == (1, 7_500, 800)
    # A runtime's word is no measurement of a transfer: predictions are not compared with it.
    assert (found["consumed"], found["compared"]) == (1, 0)


async def test_the_same_report_with_other_content_is_a_conflict(
    client: httpx.AsyncClient, database: Database
) -> None:
    decision = a_decision()
    await store(database, [decision])
    assert (await report(client, decision.decision_id, **USED)).status_code == 200
    for change in (
        {"tokens": 801},
        {"observed_us": None},
        {"bytes": 0},
        {"detail": {"x": 1}},
        {"reason": "late"},
    ):
        answer = await report(client, decision.decision_id, **(USED | change))
        assert refusal(answer) == (409, "outcome_conflict"), change
    # Other reports of the same decision: by their own id, or of another status.
    for other in (USED | {"report_id": "2", "tokens": 1}, {"status": "discarded"}):
        assert (await report(client, decision.decision_id, **other)).json()["result"] == "stored"
    assert (await sums(client))["count"] == 3


async def test_gain_counts_once_where_several_tell_at_the_same_time(
    client: httpx.AsyncClient, database: Database
) -> None:
    decision = a_decision(predicted_us=1_000, recompute_us=9_000, backend="baseline")
    await store(database, [decision])
    answers = await asyncio.gather(
        *(report(client, decision.decision_id, **USED, report_id=f"r-{n}") for n in range(8))
    )
    assert [answer.json()["result"] for answer in answers] == ["stored"] * 8
    found = await sums(client)
    assert (found["count"], found["gain_us"]) == (8, 7_500)


async def test_a_decision_is_used_once_however_often_it_is_told(
    client: httpx.AsyncClient, database: Database
) -> None:
    moves = [
        a_decision(kind=DecisionKind.MATERIALIZE, outcome=DecisionOutcome.ACKNOWLEDGED)
        for _ in range(2)
    ]
    refused = a_decision(kind=DecisionKind.MATERIALIZE, outcome=DecisionOutcome.REJECTED)
    lookup = a_decision()
    told = [an_outcome(move, status=OutcomeStatus.REGISTERED, kind="materialize") for move in moves]
    await store(database, [*moves, refused, lookup], told)
    for number in range(3):
        answers = await asyncio.gather(
            *(
                report(client, one.decision_id, status="consumed", report_id=f"{number}-{n}")
                for n in range(2)
                for one in (moves[0], refused, lookup)
            )
        )
        assert {answer.status_code for answer in answers} == {200}
    params = {"step": "none", "from": "2026-01-01T00:00:00Z", "to": "2099-01-01T00:00:00Z"}
    (cell,) = (await client.get(f"{LIST}/summary", params=params)).json()["cells"]
    found = cell["outcomes"]
    assert (found["consumed"], found["delivered"], found["used"]) == (18, 2, 1)
    assert cell["rates"]["useful_reuse"] == 0.5


async def test_gain_counts_once_for_a_decision(
    client: httpx.AsyncClient, database: Database
) -> None:
    """A worker's own report of a completed move has the gain; the runtime's word adds none."""
    move = a_decision(kind=DecisionKind.MATERIALIZE, recompute_us=9_000, predicted_us=900)
    lookup = a_decision(recompute_us=9_000, predicted_us=900)
    told = an_outcome(move, physical=True, predicted_us=900, recompute_us=9_000, gain_us=8_000)
    await store(database, [move, lookup], [told])
    for decision in (move, lookup):
        await report(client, decision.decision_id, **USED)
        await report(client, decision.decision_id, **USED, report_id="again")
        await report(client, decision.decision_id, status="expired", observed_us=5)
    found = await sums(client)
    assert (found["count"], found["gain_us"], found["compared"]) == (7, 8_000 + 7_500, 1)


async def test_a_batch_has_a_result_for_each(
    client: httpx.AsyncClient, database: Database, access: FixedAccess
) -> None:
    decisions = [a_decision(recompute_us=2_000) for _ in range(400)]
    foreign = a_decision(tenant="globex")
    await store(database, [*decisions, foreign])
    access.of_tenants("acme")
    await report(client, decisions[3].decision_id, **USED)
    await report(client, decisions[4].decision_id, **(USED | {"tokens": 7}))
    unknown = id_at(datetime.now(UTC) - timedelta(minutes=1), 9)
    named = [*(row.decision_id for row in decisions), foreign.decision_id, unknown, uuid4()]
    named += [decisions[0].decision_id]
    reports = [USED | {"decision_id": str(decision_id)} for decision_id in named]
    answer = await client.post(BATCH, json={"reports": reports})
    assert answer.status_code == 200, answer.text
    found = answer.json()["results"]
    assert [item["index"] for item in found] == list(range(len(named)))
    results = [item["result"] for item in found]
    assert results[400:] == ["not_found"] * 3 + ["already_stored"]
    assert results[3:5] == ["already_stored", "conflict"]
    assert results[:3] + results[5:400] == ["stored"] * 398
    again = (await client.post(BATCH, json={"reports": reports})).json()["results"]
    assert [item["result"] for item in again[:3]] == ["already_stored"] * 3
    assert (await sums(client))["count"] == 400


async def test_batches_at_once_in_any_order_store_each_report_once(
    client: httpx.AsyncClient, database: Database
) -> None:
    decisions = [a_decision() for _ in range(60)]
    await store(database, decisions)
    reports = [USED | {"decision_id": str(row.decision_id)} for row in decisions]
    orders = (reports, reports[::-1], reports[30:] + reports[:30])
    answers = await asyncio.gather(*(client.post(BATCH, json={"reports": o}) for o in orders))
    results = [item["result"] for answer in answers for item in answer.json()["results"]]
    assert (results.count("stored"), results.count("already_stored")) == (60, 120)
    assert (await sums(client))["count"] == 60


async def test_what_is_not_there_may_come_later(
    client: httpx.AsyncClient, database: Database, access: FixedAccess
) -> None:
    decision, foreign = a_decision(), a_decision(tenant="globex")
    await store(database, [foreign])
    access.of_tenants("acme")
    answer = await report(client, decision.decision_id, **USED)
    assert refusal(answer) == (404, "not_found")
    assert "again in a second" in answer.json()["detail"]
    other = await report(client, foreign.decision_id, **USED)
    assert other.json()["detail"] == answer.json()["detail"]
    await store(database, [decision])
    assert (await report(client, decision.decision_id, **USED)).status_code == 200


@pytest.mark.parametrize("number", ["NaN", "Infinity", "-Infinity", "1e400"])
async def test_what_json_has_not_is_refused(
    client: httpx.AsyncClient, database: Database, number: str
) -> None:
    decision = a_decision()
    await store(database, [decision])
    body = '{"status":"recomputed","detail":{"a":[{"b":' + number + "}]}}"
    answer = await client.post(
        f"{LIST}/{decision.decision_id}/outcome",
        content=body,
        headers={"content-type": "application/json"},
    )
    assert answer.status_code == 400
    assert answer.json()["errors"][0]["pointer"].startswith("/detail")


async def test_it_needs_its_own_scope(client: httpx.AsyncClient, access: FixedAccess) -> None:
    access.principal = Principal("key", SCOPES - {Scope.DECISIONS_WRITE}, None)
    assert refusal(await report(client, uuid4(), **USED)) == (403, "forbidden")
    assert refusal(await client.post(BATCH, json={"reports": []})) == (403, "forbidden")


@pytest.mark.parametrize(
    ("change", "code", "pointer"),
    [
        ({"status": "completed"}, "invalid_field", "/status"),
        ({"tokens": -1}, "invalid_field", "/tokens"),
        ({"observed_us": 1.5}, "invalid_field", "/observed_us"),
        ({"bytes": 2**60}, "invalid_field", "/bytes"),
        ({"tokens": 10**9 + 1}, "invalid_field", "/tokens"),
        ({"report_id": "a b"}, "invalid_field", "/report_id"),
        ({"reason": "It was late"}, "invalid_field", "/reason"),
        ({"detail": {"text": "x" * 5_000}}, "invalid_field", "/detail"),
        ({"detail": {"a\x00b": 1}}, "invalid_field", "/detail"),
        ({"detail": []}, "invalid_field", "/detail"),
        ({"gain_us": 1}, "unknown_field", "/gain_us"),
    ],
)
async def test_a_bad_report_is_refused_by_name(
    client: httpx.AsyncClient, change: dict[str, Any], code: str, pointer: str
) -> None:
    answer = await report(client, uuid4(), **(USED | change))
    assert refusal(answer) == (400, code)
    assert [error["pointer"] for error in answer.json()["errors"]] == [pointer]


async def test_a_batch_has_a_limit(client: httpx.AsyncClient) -> None:
    reports = [USED | {"decision_id": str(uuid4())}] * 1_001
    answer = await client.post(BATCH, json={"reports": reports})
    assert refusal(answer) == (400, "invalid_field")
    assert (await client.post(BATCH, json={"reports": []})).status_code == 400
