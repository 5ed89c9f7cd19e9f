"""Connections cut at every point of a COPY, and Postgres away: none lost, none stored twice."""

import asyncio

import asyncpg
import pytest
from sqlalchemy import text
from structlog.testing import capture_logs

from app.db.session import Database
from app.decisions.record import Decision, Outcome
from tests.decisions.conftest import WriterFactory
from tests.decisions.cutting_proxy import CuttingProxy, Fault
from tests.decisions.rows import (
    a_decision,
    an_outcome,
    stored_decisions,
    stored_numbers,
    stored_outcomes,
)

WAIT_S = 30.0
UNIQUE_VIOLATION = b"23505"


def rows_of_both_kinds(count: int) -> tuple[list[Decision], list[Outcome]]:
    decisions = [a_decision() for _ in range(count)]
    return decisions, [an_outcome(decision) for decision in decisions[::2]]


@pytest.mark.parametrize(
    "faults",
    [
        [Fault.CUT_BEFORE_DATA],
        [Fault.CUT_BEFORE_ANSWER],
        [Fault.CUT_BEFORE_ANSWER] * 4,
        [Fault.CUT_BEFORE_DATA, Fault.CUT_BEFORE_ANSWER, Fault.CUT_BEFORE_DATA],
    ],
    ids=lambda faults: "-".join(fault.name for fault in faults),
)
async def test_a_connection_cut_during_copy_loses_nothing_and_repeats_nothing(
    database: Database,
    proxied: Database,
    proxy: CuttingProxy,
    make_writer: WriterFactory,
    faults: list[Fault],
) -> None:
    writer = make_writer(proxied, batch_rows=20)
    decisions, outcomes = rows_of_both_kinds(50)
    for decision in decisions:
        writer.record(decision)
    for outcome in outcomes:
        writer.record_outcome(outcome)
    proxy.faults = list(faults)
    await writer.start()
    assert await writer.wait_flushed(75, wait_s=WAIT_S)
    assert proxy.faults_done == len(faults)
    assert await stored_decisions(database) == [row.decision_id for row in decisions]
    assert await stored_outcomes(database) == [row.outcome_id for row in outcomes]
    assert await stored_numbers(database) == list(range(1, 76))
    assert (writer.stored, writer.lost_rows) == (75, 0)


async def test_rows_that_arrive_after_their_retry_are_refused_by_the_key(
    database: Database, proxied: Database, proxy: CuttingProxy, make_writer: WriterFactory
) -> None:
    writer = make_writer(proxied)
    decisions, _ = rows_of_both_kinds(30)
    for decision in decisions:
        writer.record(decision)
    proxy.faults = [Fault.HOLD]
    await writer.start()
    # The retry is stored, because the server has not seen the first attempt yet.
    assert await writer.wait_flushed(30, wait_s=WAIT_S)
    assert proxy.faults_done == 1
    assert UNIQUE_VIOLATION in await proxy.release()
    assert await stored_decisions(database) == [row.decision_id for row in decisions]


async def test_a_backend_terminated_in_the_middle_of_copy(
    database: Database, proxied: Database, proxy: CuttingProxy, make_writer: WriterFactory
) -> None:
    terminated: list[int] = []

    async def terminate() -> None:
        async with database.write() as session:
            behind = (
                "FROM pg_stat_activity"
                " WHERE application_name = 'behind-proxy' AND datname = current_database()"
            )
            terminated.extend(await session.scalars(text(f"SELECT pid {behind}")))
            # From here on the proxy may notice the end of the connection and stop this hook.
            await session.execute(text(f"SELECT pg_terminate_backend(pid, 5000) {behind}"))

    proxy.on_copy = terminate
    writer = make_writer(proxied)
    decisions, outcomes = rows_of_both_kinds(40)
    for decision in decisions:
        writer.record(decision)
    for outcome in outcomes:
        writer.record_outcome(outcome)
    await writer.start()
    assert await writer.wait_flushed(60, wait_s=WAIT_S)
    assert terminated
    assert await stored_numbers(database) == list(range(1, 61))
    assert writer.lost_rows == 0


async def test_rows_recorded_while_postgres_is_away_are_stored_when_it_is_back(
    database: Database, proxied: Database, proxy: CuttingProxy, make_writer: WriterFactory
) -> None:
    writer = make_writer(proxied, batch_rows=20)
    await writer.start()
    first, _ = rows_of_both_kinds(30)
    for decision in first:
        writer.record(decision)
    assert await writer.wait_flushed(30, wait_s=WAIT_S)
    proxy.go_away()
    second, _ = rows_of_both_kinds(30)
    with capture_logs() as logs:
        for decision in second:
            writer.record(decision)
        for _ in range(5):
            proxy.refusal.clear()
            await proxy.refusal.wait()
    assert {line["event"] for line in logs} == {"decision_flush_failed"}
    assert (writer.pending, writer.flushed_through, writer.lost_rows) == (30, 30, 0)
    assert len(await stored_decisions(database)) == 30
    proxy.come_back()
    assert await writer.wait_flushed(60, wait_s=WAIT_S)
    assert await stored_decisions(database) == [row.decision_id for row in [*first, *second]]


async def test_the_queue_fills_while_postgres_is_away_and_counts_what_it_refuses(
    database: Database, proxied: Database, proxy: CuttingProxy, make_writer: WriterFactory
) -> None:
    proxy.go_away()
    writer = make_writer(proxied, max_rows=60, batch_rows=20)
    await writer.start()
    with capture_logs() as logs:
        for number in range(100):
            writer.record(a_decision())
            if number % 20 == 19:
                proxy.refusal.clear()
                await proxy.refusal.wait()
    # Told while it happens, not when it is over; more of it within ten seconds is not told again.
    (told,) = [line["lost_rows"] for line in logs if line["event"] == "decisions_lost"]
    assert told in (20, 40)
    assert (writer.pending, writer.lost["queue_full"]) == (60, 40)
    proxy.come_back()
    assert await writer.wait_flushed(100, wait_s=WAIT_S)
    writer.record(a_decision())
    assert await writer.wait_flushed(101, wait_s=WAIT_S)
    assert await stored_numbers(database) == [*range(1, 61), 101]
    assert (writer.stored, writer.lost_rows) == (61, 40)


async def test_drain_reports_what_it_could_not_store(
    database: Database, proxied: Database, proxy: CuttingProxy, make_writer: WriterFactory
) -> None:
    proxy.go_away()
    writer = make_writer(proxied, batch_rows=20)
    await writer.start()
    for _ in range(50):
        writer.record(a_decision())
    with capture_logs() as logs:
        assert await writer.drain(0.05) == 50
    assert (writer.pending, writer.lost["shutdown"], writer.stored) == (0, 50, 0)
    losses = [line for line in logs if line["event"] == "decisions_lost"]
    assert [(line["lost_rows"], line["by_reason"]["shutdown"]) for line in losses] == [(50, 50)]
    assert await stored_decisions(database) == []


async def test_drain_ends_also_when_the_server_answers_nothing(
    database: Database, proxied: Database, proxy: CuttingProxy, make_writer: WriterFactory
) -> None:
    stuck = asyncio.Event()

    async def answer_nothing() -> None:
        stuck.set()
        await asyncio.Event().wait()

    proxy.on_copy = answer_nothing
    writer = make_writer(proxied)
    await writer.start()
    writer.record(a_decision())
    waiting = asyncio.create_task(writer.wait_flushed(1, wait_s=WAIT_S))
    await stuck.wait()
    assert await writer.drain(0.01) == 1
    await waiting
    proxy.go_away()
    assert writer.lost["shutdown"] == 1
    assert await stored_decisions(database) == []


async def test_drain_outlasts_a_short_absence(
    database: Database, proxied: Database, proxy: CuttingProxy, make_writer: WriterFactory
) -> None:
    proxy.go_away()
    # A back-off longer than any test: only the drain's own hurry ends it.
    writer = make_writer(proxied, retry_first_s=3600.0, retry_max_s=3600.0)
    await writer.start()
    decision = a_decision()
    writer.record(decision)
    assert not await writer.wait_flushed(1, wait_s=0.0)
    while not proxy.refused:
        await proxy.refusal.wait()
    proxy.come_back()
    assert await writer.drain(WAIT_S) == 0
    assert await stored_decisions(database) == [decision.decision_id]


async def test_a_row_that_cannot_be_sent_does_not_stop_a_retry(
    database: Database, proxied: Database, proxy: CuttingProxy, make_writer: WriterFactory
) -> None:
    writer = make_writer(proxied)
    decisions, _ = rows_of_both_kinds(30)
    decisions[7] = decisions[7]._replace(decision_id="no uuid")  # type: ignore[arg-type]
    for decision in decisions:
        writer.record(decision)
    proxy.faults = [Fault.CUT_BEFORE_ANSWER]
    await writer.start()
    assert await writer.wait_flushed(30, wait_s=WAIT_S)
    assert await stored_numbers(database) == [*range(1, 8), *range(9, 31)]
    assert (writer.stored, writer.lost["invalid"]) == (29, 1)


async def test_a_database_without_its_tables_is_waited_for(
    database: Database, make_writer: WriterFactory
) -> None:
    async with database.write() as session:
        await session.execute(text("ALTER TABLE decision RENAME TO decision_away"))
    writer = make_writer(database)
    writer.record(a_decision())
    with capture_logs() as logs:
        await writer.start()
        assert not await writer.wait_flushed(1, wait_s=0.2)
        async with database.write() as session:
            await session.execute(text("ALTER TABLE decision_away RENAME TO decision"))
        assert await writer.wait_flushed(1, wait_s=WAIT_S)
    assert asyncpg.UndefinedTableError.__name__ in {line.get("error") for line in logs}
    assert writer.lost_rows == 0
