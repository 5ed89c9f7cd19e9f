"""`/v1/decisions/summary` against what the rows themselves say."""

from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from statistics import quantiles
from typing import Any

import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.control.keys import Scope
from app.db.session import Database
from app.decisions.partitions import ensure_day
from app.decisions.record import Decision, DecisionKind, DecisionOutcome, Outcome, OutcomeStatus
from app.decisions.summary import SummaryQuestion, SummaryStep, span_list
from tests.decisions.answering import FixedAccess, application, client_of, refusal
from tests.decisions.rows import a_decision, an_outcome, id_at, store

PATH = "/v1/decisions/summary"
DAY = datetime.now(UTC).replace(hour=0, minute=0, second=0, microsecond=0)
WHOLE_DAY = {"from": DAY.isoformat(), "to": (DAY + timedelta(days=1)).isoformat()}


@pytest.fixture
def access() -> FixedAccess:
    return FixedAccess()


@pytest.fixture
async def client(database: Database, access: FixedAccess) -> AsyncIterator[httpx.AsyncClient]:
    async with client_of(application(database, access)) as client:
        yield client


async def cells(client: httpx.AsyncClient, **params: Any) -> list[dict[str, Any]]:
    answer = await client.get(PATH, params=WHOLE_DAY | params)
    assert answer.status_code == 200, answer.text
    found: list[dict[str, Any]] = answer.json()["cells"]
    return found


def decided(minute: int, number: int, **changes: Any) -> Decision:
    """At that minute of the day."""
    return a_decision(decision_id=id_at(DAY + timedelta(minutes=minute), number), **changes)


def a_day() -> tuple[list[Decision], list[Outcome]]:
    """Lookups at 01:10 and 02:20 of two tenants, and materializations at 02:30."""
    outcomes = (
        [DecisionOutcome.HIT] * 6 + [DecisionOutcome.MISS] * 3 + [DecisionOutcome.UNAVAILABLE]
    )
    lookups = [
        decided(
            70 if number % 2 else 140,
            number,
            outcome=outcome,
            tenant="globex" if number % 5 == 4 else "acme",
            latency_us=100 * (number + 1),
            action="reuse" if outcome is DecisionOutcome.HIT else "recompute",
            query_tokens=1_000,
            matched_tokens=800 if outcome is DecisionOutcome.HIT else 0,
            fallback_reason=None if outcome is DecisionOutcome.HIT else "cache_miss",
        )
        for number, outcome in enumerate(outcomes)
    ]
    moves = [
        decided(
            150,
            100 + number,
            kind=DecisionKind.MATERIALIZE,
            outcome=DecisionOutcome.MATERIALIZED,
            action="transfer",
            backend="baseline",
        )
        for number in range(4)
    ]
    copied = {"model": "m-7b", "kind": "materialize", "backend": "baseline"}
    copied["policy_version"] = "default@1"
    told = [
        an_outcome(
            move,
            **copied,
            physical=True,
            observed_us=observed_us,
            predicted_us=1_000,
            recompute_us=9_000,
            gain_us=9_000 - observed_us,
            tokens=800,
        )
        for move, observed_us in zip(moves, (1_000, 2_000, 4_000), strict=False)
    ]
    none = {"observed_us": None, "bytes_transferred": None}
    told.append(an_outcome(moves[3], **copied, **none, status=OutcomeStatus.FELL_BACK))
    told.append(an_outcome(moves[0], **copied, **none, status=OutcomeStatus.CONSUMED))
    return lookups + moves, told


async def test_a_day_as_one_cell_has_the_four_rates_apart(
    client: httpx.AsyncClient, database: Database
) -> None:
    decisions, outcomes = a_day()
    await store(database, decisions, outcomes)
    (cell,) = await cells(client, step="none")
    assert (cell["bucket"], cell["group"]) == (None, {})
    assert (cell["decisions"], cell["lookups"], cell["hits"], cell["unavailable"]) == (14, 10, 6, 1)
    assert cell["rates"] == {
        "logical_match": 0.6,
        "physical_availability": pytest.approx(6 / 7),
        "completed_materialization": 0.75,
        "useful_reuse": pytest.approx(1 / 3),
    }
    assert (cell["query_tokens"], cell["matched_tokens"]) == (10_000, 4_800)
    assert cell["outcomes"] == {
        "count": 5,
        "completed": 3,
        "moved": 3,
        "fell_back": 1,
        "consumed": 1,
        "delivered": 3,
        "used": 1,
        "tokens": 2_400,
        "bytes": 3 * 4_096,
        "gain_us": 8_000 + 7_000 + 5_000,
    }
    # A histogram is exact to the width of its buckets, a fifth.
    exact = quantiles([row.latency_us for row in decisions], n=20, method="inclusive")
    assert cell["latency_us"]["p50"] == pytest.approx(exact[9], rel=0.2)
    assert cell["latency_us"]["p95"] == pytest.approx(exact[18], rel=0.2)
    prediction = cell["prediction"]
    assert prediction["compared"] == 3
    assert prediction["bias"] == pytest.approx(7 / 3)
    assert prediction["p50"] == pytest.approx(2, rel=0.2)
    assert prediction["p99"] == pytest.approx(4, rel=0.2)


async def test_sums_stay_at_the_most_that_they_can_hold(
    client: httpx.AsyncClient, database: Database
) -> None:
    most = 2**63 - 1
    for number, tenant in enumerate(("acme", "acme", "globex")):
        move = decided(100, 50 + number, tenant=tenant, kind=DecisionKind.MATERIALIZE)
        told = [an_outcome(move, tokens=most, bytes_transferred=most) for _ in range(2)]
        await store(database, [move], told)
    (cell,) = await cells(client, step="none")
    outcomes = cell["outcomes"]
    assert (outcomes["count"], outcomes["tokens"], outcomes["bytes"]) == (6, most, most)


async def test_by_hour_and_group_cells_are_sparse_and_add_up(
    client: httpx.AsyncClient, database: Database
) -> None:
    decisions, outcomes = a_day()
    await store(database, decisions, outcomes)
    found = await cells(client, group_by=["tenant", "kind"])
    assert [(cell["bucket"], cell["group"]["tenant"], cell["group"]["kind"]) for cell in found] == [
        (f"{DAY:%Y-%m-%d}T01:00:00Z", "acme", "lookup"),
        (f"{DAY:%Y-%m-%d}T01:00:00Z", "globex", "lookup"),
        (f"{DAY:%Y-%m-%d}T02:00:00Z", "acme", "lookup"),
        (f"{DAY:%Y-%m-%d}T02:00:00Z", "acme", "materialize"),
        (f"{DAY:%Y-%m-%d}T02:00:00Z", "globex", "lookup"),
    ]
    assert sum(cell["decisions"] for cell in found) == 14
    assert [cell["outcomes"]["gain_us"] for cell in found] == [0, 0, 0, 20_000, 0]
    assert [cell["rates"]["completed_materialization"] for cell in found] == [
        None, None, None, 0.75, None,
    ]  # fmt: skip
    by_minute = await cells(client, step="minute", group_by="kind")
    assert [cell["bucket"][11:16] for cell in by_minute] == ["01:10", "02:20", "02:30"]


async def test_by_reason_null_stands_for_none_and_outcomes_have_the_action_they_end_as(
    client: httpx.AsyncClient, database: Database
) -> None:
    decisions, outcomes = a_day()
    await store(database, decisions, outcomes)
    by_reason = await cells(client, step="day", group_by="reason")
    assert {cell["group"]["reason"]: cell["decisions"] for cell in by_reason} == {
        None: 10,
        "cache_miss": 4,
    }
    by_action = await cells(client, step="day", group_by="action")
    assert {cell["group"]["action"]: cell["decisions"] for cell in by_action} == {
        "recompute": 4,
        "reuse": 6,
        "transfer": 4,
    }
    told = {cell["group"]["action"]: cell["outcomes"] for cell in by_action}
    # Three that arrived, one of them used; the fourth was computed again.
    assert (told["transfer"]["count"], told["transfer"]["gain_us"]) == (4, 20_000)
    assert (told["recompute"]["count"], told["recompute"]["gain_us"]) == (1, 0)
    assert told["reuse"]["count"] == 0
    rates = {cell["group"]["action"]: cell["rates"] for cell in by_action}
    assert rates["transfer"]["useful_reuse"] == pytest.approx(1 / 3)
    (one,) = await cells(client, step="day", action="transfer", kind="materialize")
    assert (one["decisions"], one["lookups"]) == (4, 0)
    assert one["rates"]["logical_match"] is None
    assert one["prediction"]["compared"] == 3
    by_outcome = await cells(client, step="day", group_by="outcome")
    assert all(cell["outcomes"] is None is cell["prediction"] for cell in by_outcome)


@pytest.mark.parametrize(
    ("kind", "status", "backend", "action"),
    [
        ("lookup", OutcomeStatus.CONSUMED, None, "reuse"),
        ("lookup", OutcomeStatus.RECOMPUTED, None, "recompute"),
        ("materialize", OutcomeStatus.COMPLETED, "baseline", "transfer"),
        ("materialize", OutcomeStatus.CONSUMED, "baseline", "transfer"),
        ("materialize", OutcomeStatus.REGISTERED, None, "register"),
        ("materialize", OutcomeStatus.CONSUMED, None, "register"),
        ("materialize", OutcomeStatus.FELL_BACK, "baseline", "recompute"),
        ("prefetch", OutcomeStatus.COMPLETED, "baseline", "transfer"),
        ("store", OutcomeStatus.FELL_BACK, None, "skip"),
    ],
)
async def test_the_action_of_an_outcome(
    client: httpx.AsyncClient,
    database: Database,
    *,
    kind: str,
    status: OutcomeStatus,
    backend: str | None,
    action: str,
) -> None:
    decision = decided(10, 1)
    outcome = an_outcome(decision, kind=kind, status=status, backend=backend)
    await store(database, [decision], [outcome])
    found = await cells(client, step="day", group_by="action")
    told = {cell["group"]["action"]: cell["outcomes"]["count"] for cell in found}
    assert {name for name, count in told.items() if count} == {action}
    (one,) = await cells(client, step="day", action=action, group_by="kind", kind=kind)
    assert one["outcomes"]["count"] == 1


async def test_a_key_sums_up_its_tenants_only(
    client: httpx.AsyncClient, database: Database, access: FixedAccess
) -> None:
    decisions, outcomes = a_day()
    await store(database, decisions, outcomes)
    access.of_tenants("globex")
    (cell,) = await cells(client, step="none")
    assert (cell["decisions"], cell["outcomes"]["count"]) == (2, 0)
    assert await cells(client, step="day", group_by="tenant", tenant="globex")
    answer = await client.get(PATH, params={"tenant": "acme"})
    assert refusal(answer) == (403, "tenant_forbidden")
    access.of_tenants()
    assert await cells(client, step="none") == []
    access.having(Scope.DECISIONS_WRITE)
    assert refusal(await client.get(PATH)) == (403, "forbidden")


async def test_the_last_day_by_hour_is_the_default(
    client: httpx.AsyncClient, database: Database
) -> None:
    now = datetime.now(UTC)
    # Soon after midnight that is the day before yesterday, of which no partition is made ahead.
    long_ago = now - timedelta(hours=26)
    await ensure_day(database, long_ago.date())
    old = a_decision(decision_id=id_at(long_ago, 1))
    await store(database, [a_decision(), old])
    answer = (await client.get(PATH)).json()
    assert answer["step"] == "hour"
    begin, end = (datetime.fromisoformat(answer[name]) for name in ("from", "to"))
    assert begin <= now - timedelta(days=1) < begin + timedelta(hours=1)
    assert end - timedelta(hours=1) < now <= end
    assert [cell["decisions"] for cell in answer["cells"]] == [1]


@pytest.mark.parametrize(
    ("query", "pointer"),
    [
        ("step=minute&from=2026-01-01T00:00:00Z&to=2026-01-03T00:00:00Z", "/query/step"),
        ("from=2026-01-02T00:00:00Z&to=2026-01-01T00:00:00Z", "/query/to"),
        ("step=day&from=9999-12-31T10:00:00Z&to=9999-12-31T23:00:00Z", "/query/to"),
        ("group_by=tenant&group_by=tenant", "/query/group_by"),
        ("group_by=tenant&group_by=model&group_by=kind&group_by=reason", "/query/group_by"),
        ("step=week", "/query/step"),
    ],
)
async def test_what_cannot_be_summed_up_is_refused(
    client: httpx.AsyncClient, query: str, pointer: str
) -> None:
    answer = await client.get(f"{PATH}?{query}")
    assert refusal(answer) == (400, "invalid_field")
    assert [error["pointer"] for error in answer.json()["errors"]] == [pointer]


async def test_more_cells_than_a_limit_are_refused(
    client: httpx.AsyncClient, database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("app.decisions.summary.MAX_CELLS", 2)
    await store(database, [decided(minute, 1) for minute in (1, 100, 200)])
    answer = await client.get(PATH, params=WHOLE_DAY)
    assert refusal(answer) == (400, "invalid_field")
    assert len(await cells(client, step="day")) == 1


@given(
    since=st.timedeltas(timedelta(0), timedelta(days=20_000)),
    length=st.timedeltas(timedelta(microseconds=1), timedelta(days=100)),
)
def test_spans_without_steps_cover_the_time_once(since: timedelta, length: timedelta) -> None:
    begin = datetime(1990, 1, 1, tzinfo=UTC) + since
    question = SummaryQuestion(None, begin, begin + length, SummaryStep.NONE)
    spans = sorted(span_list(question), key=lambda span: span.begin)
    lengths = {"minute": 60, "hour": 3600, "day": 86_400}
    assert spans[0].begin <= begin
    assert spans[-1].end >= begin + length
    for before, after in pairwise(spans):
        assert before.end == after.begin
    for span in spans:
        assert span.begin < span.end
        assert span.begin.timestamp() % lengths[span.step] == 0
        assert span.end.timestamp() % lengths[span.step] == 0
