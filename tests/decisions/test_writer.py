"""Everything recorded is stored exactly once, or counted as lost."""

import asyncio
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

import pytest
from sqlalchemy import select
from structlog.testing import capture_logs

from app.clock import SystemClock, SystemIds
from app.db.session import Database
from app.decisions.models import DecisionRow
from app.decisions.record import Decision
from app.decisions.writer import DecisionWriter, LossReason, WriterLimits
from app.metrics import Metrics
from tests.decisions.conftest import WriterFactory
from tests.decisions.rows import (
    a_decision,
    an_outcome,
    id_at,
    store,
    stored_decisions,
    stored_numbers,
    stored_outcomes,
)

WAIT_S = 30.0


async def test_a_row_is_stored_as_it_was_recorded(
    database: Database, make_writer: WriterFactory
) -> None:
    writer = make_writer(database)
    await writer.start()
    bare: dict[str, Any] = dict.fromkeys(
        ("identity_hash", "trace_id", "entry_id", "state_id", "match", "compatibility")
    )
    recorded = [a_decision(), a_decision(**bare, path=[], excluded="[]", model="模型")]
    for decision in recorded:
        writer.record(decision)
    assert await writer.wait_flushed(writer.recorded, wait_s=WAIT_S)
    async with database.read() as session:
        columns = DecisionRow.__table__
        rows = (await session.execute(select(columns).order_by(columns.c.writer_seq))).all()
    for seq, (row, decision) in enumerate(zip(rows, recorded, strict=True), 1):
        for name, value in decision._asdict().items():
            found = getattr(row, name)
            if name in ("match", "compatibility", "excluded", "estimate", "inputs"):
                assert found == (None if value is None else JSON[value])
            else:
                assert found == value, name
        assert (row.writer_id, row.writer_seq) == (writer.writer_id, seq)


JSON: dict[str, object] = {
    '{"classification":"prefix","units":128}': {"classification": "prefix", "units": 128},
    '{"reusable":true}': {"reusable": True},
    '[{"entry_id":"entry-2","reason":"evidence_mismatch","field":"adapter"}]': [
        {"entry_id": "entry-2", "reason": "evidence_mismatch", "field": "adapter"}
    ],
    "[]": [],
    '{"version":1,"candidates":[1,2,3]}': {"version": 1, "candidates": [1, 2, 3]},
}


async def test_several_batches_of_both_kinds_are_stored_once_and_without_gap(
    database: Database, make_writer: WriterFactory
) -> None:
    writer = make_writer(database, batch_rows=50)
    decisions = [a_decision() for _ in range(230)]
    outcomes = []
    for decision in decisions[:130]:
        writer.record(decision)
    await writer.start()
    for decision in decisions[130:]:
        writer.record(decision)
        outcomes.append(an_outcome(decision))
        writer.record_outcome(outcomes[-1])
    assert await writer.wait_flushed(330, wait_s=WAIT_S)
    assert await stored_decisions(database) == [row.decision_id for row in decisions]
    assert await stored_outcomes(database) == [row.outcome_id for row in outcomes]
    assert await stored_numbers(database) == list(range(1, 331))
    assert (writer.recorded, writer.stored, writer.pending, writer.pending_bytes) == (
        330, 330, 0, 0,
    )  # fmt: skip
    assert writer.lost_rows == 0


async def test_a_full_batch_is_stored_without_being_asked(
    database: Database, make_writer: WriterFactory
) -> None:
    flushed = asyncio.Event()
    writer = DecisionWriter(
        database,
        SystemIds(),
        SystemClock(),
        limits=WriterLimits(batch_rows=10, flush_interval_s=3600),
        observe_flush_s=lambda _duration_s: flushed.set(),
    )
    await writer.start()
    for _ in range(10):
        writer.record(a_decision())
    await flushed.wait()
    assert await writer.drain(WAIT_S) == 0
    assert len(await stored_decisions(database)) == 10


async def test_a_few_rows_are_stored_after_the_interval(database: Database) -> None:
    flushed = asyncio.Event()
    writer = DecisionWriter(
        database,
        SystemIds(),
        SystemClock(),
        limits=WriterLimits(flush_interval_s=0.005),
        observe_flush_s=lambda _duration_s: flushed.set(),
    )
    await writer.start()
    writer.record(a_decision())
    await flushed.wait()
    assert len(await stored_decisions(database)) == 1
    await writer.drain(WAIT_S)


async def test_a_full_queue_refuses_the_newest_and_counts_them(
    database: Database, make_writer: WriterFactory
) -> None:
    writer = make_writer(database, max_rows=100)
    with capture_logs() as logs:
        decisions = [a_decision() for _ in range(107)]
        for decision in decisions:
            writer.record(decision)
        assert (writer.recorded, writer.pending) == (107, 100)
        assert writer.lost == {reason: 7 * (reason == "queue_full") for reason in LossReason}
        await writer.start()
        assert await writer.wait_flushed(107, wait_s=WAIT_S)
        writer.record(a_decision())
        assert await writer.drain(WAIT_S) == 0
    assert (await stored_decisions(database))[:100] == [row.decision_id for row in decisions[:100]]
    # The gap in the stored numbers is the loss.
    assert await stored_numbers(database) == [*range(1, 101), 108]
    losses = [line["lost_rows"] for line in logs if line["event"] == "decisions_lost"]
    assert losses == [7]


async def test_a_queue_over_its_bytes_refuses_and_recovers(
    database: Database, make_writer: WriterFactory
) -> None:
    writer = make_writer(database, max_bytes=10_000)
    big = a_decision(inputs='{"text":"' + "x" * 6_000 + '"}')
    writer.record(big)
    writer.record(a_decision(inputs=big.inputs))
    assert writer.lost["queue_full"] == 1
    assert 6_000 < writer.pending_bytes <= 10_000
    await writer.start()
    assert await writer.wait_flushed(2, wait_s=WAIT_S)
    assert writer.pending_bytes == 0
    writer.record(a_decision(inputs=big.inputs))
    assert await writer.wait_flushed(3, wait_s=WAIT_S)
    assert await stored_numbers(database) == [1, 3]


async def test_large_rows_travel_in_smaller_batches(
    database: Database, make_writer: WriterFactory
) -> None:
    flights: list[float] = []
    writer = DecisionWriter(
        database,
        SystemIds(),
        SystemClock(),
        limits=WriterLimits(flush_interval_s=3600, batch_bytes=20_000),
        observe_flush_s=flights.append,
    )
    decisions = [a_decision(inputs='{"text":"' + "x" * 9_000 + '"}') for _ in range(7)]
    for decision in decisions:
        writer.record(decision)
    await writer.start()
    assert await writer.wait_flushed(7, wait_s=WAIT_S)
    assert await writer.drain(WAIT_S) == 0
    assert len(flights) == 4
    assert await stored_decisions(database) == [row.decision_id for row in decisions]


async def test_the_writers_counts_are_metrics(
    database: Database, make_writer: WriterFactory
) -> None:
    writer = make_writer(database, max_rows=2)
    metrics = Metrics(version="0", implementation="compiled")
    metrics.watch_decisions(writer)
    for _ in range(5):
        writer.record(a_decision())
    _, page = metrics.render()
    lines = page.decode().splitlines()
    assert "nexuskv_decisions_recorded_total 5.0" in lines
    assert "nexuskv_decisions_stored_total 0.0" in lines
    assert "nexuskv_decisions_queued 2.0" in lines
    assert 'nexuskv_decisions_lost_total{reason="queue_full"} 3.0' in lines
    assert 'nexuskv_decisions_lost_total{reason="invalid"} 0.0' in lines


POISON = [
    {"tenant": "a\x00b"},
    {"inputs": '{"text":"\\u0000"}'},
    {"excluded": "{not json"},
    {"latency_us": 2**63},
    {"index_revision": None},
    {"model": "lone \ud800 surrogate"},
    {"decision_id": "no uuid"},
    {"path": ["a", None, 3]},
    # A btree entry holds at most a third of a page; Postgres compresses, so it must be random.
    {"tenant": "".join(str(UUID(int=n * 2**65 + 2**127 // (n + 3))) for n in range(500))},
]


@pytest.mark.parametrize("poison", POISON, ids=lambda poison: next(iter(poison)))
async def test_a_row_that_postgres_refuses_is_lost_alone(
    database: Database, make_writer: WriterFactory, poison: dict[str, Any]
) -> None:
    writer = make_writer(database)
    decisions = [a_decision() for _ in range(40)]
    decisions[17] = decisions[17]._replace(**poison)
    outcome = an_outcome(decisions[3])
    with capture_logs() as logs:
        for decision in decisions:
            writer.record(decision)
        writer.record_outcome(outcome)
        await writer.start()
        assert await writer.wait_flushed(41, wait_s=WAIT_S)
    expected = [row.decision_id for row in decisions if row is not decisions[17]]
    assert await stored_decisions(database) == expected
    assert await stored_outcomes(database) == [outcome.outcome_id]
    assert writer.lost == {reason: int(reason == "invalid") for reason in LossReason}
    refused = [line for line in logs if line["event"] == "decision_row_refused"]
    assert [line["writer_seq"] for line in refused] == [18]
    assert str(poison) not in str(refused)


async def test_many_refused_rows_are_counted_and_few_logged(
    database: Database, make_writer: WriterFactory
) -> None:
    writer = make_writer(database)
    with capture_logs() as logs:
        for number in range(60):
            writer.record(a_decision(tenant="acme" if number % 2 else "a\x00"))
        await writer.start()
        assert await writer.wait_flushed(60, wait_s=WAIT_S)
    assert writer.lost["invalid"] == 30
    assert len(await stored_decisions(database)) == 30
    assert len([line for line in logs if line["event"] == "decision_row_refused"]) == 5
    assert [line["lost_rows"] for line in logs if line["event"] == "decisions_lost"] == [30]


async def test_rows_already_stored_are_not_stored_again(
    database: Database, make_writer: WriterFactory
) -> None:
    decisions = [a_decision() for _ in range(20)]
    await store(database, decisions[5:9])
    writer = make_writer(database)
    for decision in [*decisions, decisions[12]]:
        writer.record(decision)
    await writer.start()
    assert await writer.wait_flushed(21, wait_s=WAIT_S)
    assert sorted(await stored_decisions(database)) == sorted(row.decision_id for row in decisions)
    assert writer.lost_rows == 0


async def test_a_day_without_a_partition_gets_one(
    database: Database, make_writer: WriterFactory
) -> None:
    days = [datetime(2024, 2, 29, 23, 59, tzinfo=UTC), datetime(2031, 7, 1, tzinfo=UTC)]
    old = [a_decision(decision_id=id_at(day, 1)) for day in days]
    decisions = [a_decision(), *old, a_decision()]
    writer = make_writer(database)
    for decision in decisions:
        writer.record(decision)
    writer.record_outcome(an_outcome(old[0], created_at=days[0] + timedelta(days=40)))
    await writer.start()
    assert await writer.wait_flushed(5, wait_s=WAIT_S)
    assert await stored_decisions(database) == [row.decision_id for row in decisions]
    assert len(await stored_outcomes(database)) == 1


async def test_drain_stores_what_is_queued_and_refuses_what_comes_after(
    database: Database, make_writer: WriterFactory
) -> None:
    writer = make_writer(database, batch_rows=100)
    await writer.start()
    decisions = [a_decision() for _ in range(450)]
    for decision in decisions:
        writer.record(decision)
    assert await writer.drain(WAIT_S) == 0
    writer.record(a_decision())
    assert await stored_decisions(database) == [row.decision_id for row in decisions]
    assert writer.lost == {reason: int(reason == "closed") for reason in LossReason}
    assert writer.pending == 0
    assert await writer.drain(WAIT_S) == 0


async def test_a_writer_that_never_ran_counts_its_rows_as_lost(
    database: Database, make_writer: WriterFactory
) -> None:
    writer = make_writer(database)
    writer.record(a_decision())
    assert await writer.drain(WAIT_S) == 1
    assert writer.lost["shutdown"] == 1
    assert await stored_decisions(database) == []


async def test_waiting_for_rows_that_cannot_come_ends(
    database: Database, make_writer: WriterFactory
) -> None:
    writer = make_writer(database)
    await writer.start()
    assert await writer.wait_flushed(0, wait_s=WAIT_S)
    assert not await writer.wait_flushed(1, wait_s=0.001)


def test_a_decision_knows_its_columns() -> None:
    assert len(a_decision()) == len(Decision._fields) == 25
