"""Everything spooled is stored exactly once, in its order, or a gap with a reason."""

import asyncio
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from uuid import UUID

import asyncpg
import pytest
from sqlalchemy import select, text
from structlog.testing import capture_logs

from app.clock import SystemClock, SystemIds
from app.db.session import Database
from app.decisions.copier.copying import Copier, CopierLimits
from app.decisions.models import DecisionOutcomeRow, DecisionRow
from app.decisions.rollups import STEPS, bucket
from app.decisions.spool.segment import HEADER_BYTES, segment_numbers, segment_path
from app.metrics import Metrics
from tests.decisions.conftest import MakeSpooled
from tests.decisions.cutting_proxy import CuttingProxy
from tests.decisions.rows import (
    a_decision,
    an_outcome,
    id_at,
    stored_decisions,
    stored_numbers,
    stored_outcomes,
)
from tests.decisions.spooled import QUICK, SEGMENT_BYTES, committed, gaps

JSON = ("match", "compatibility", "excluded", "estimate", "inputs", "detail")


async def test_rows_are_stored_as_they_were_recorded(
    database: Database, make_spooled: MakeSpooled
) -> None:
    spooled = make_spooled(database)
    bare: dict[str, Any] = dict.fromkeys(
        ("identity_hash", "trace_id", "entry_id", "state_id", "match", "compatibility")
    )
    full = a_decision(
        action="transfer", backend="worker", tier="host_dram", target="e1", freshness="current",
        durability="group", query_tokens=900, matched_tokens=128, predicted_us=10, recompute_us=640,
    )  # fmt: skip
    decisions = [full, a_decision(**bare, path=[], excluded="[]", model="模型\t\\n")]
    outcome = an_outcome(full, model="m", kind="materialize", gain_us=-5, recompute_us=640)
    for decision in decisions:
        assert spooled.spool.record(decision)
    assert spooled.spool.record_outcome(outcome)
    spooled.start()
    assert await spooled.stored()
    async with database.read() as session:
        made = DecisionRow.__table__
        rows = (await session.execute(select(made).order_by(made.c.writer_seq))).all()
        (told,) = (await session.execute(select(DecisionOutcomeRow.__table__))).all()
    for seq, (row, given) in enumerate(zip([*rows, told], [*decisions, outcome], strict=True), 1):
        for name, value in given._asdict().items():
            found = getattr(row, name)
            assert found == value or (name in JSON and found is not None), name
        assert (row.writer_id, row.writer_seq) == (spooled.writer_id, seq)
    assert rows[0].match == {"classification": "prefix", "units": 128}
    assert rows[1].match is None
    assert await committed(database, spooled.writer_id) == 3


async def test_several_batches_and_segments_leave_no_gap_and_nothing_behind(
    database: Database, make_spooled: MakeSpooled
) -> None:
    spooled = make_spooled(database, batch_rows=70)
    spooled.start()
    decisions, outcomes = [], []
    # More than a segment holds.
    inputs = '{"text":"' + "x" * 4_000 + '"}'
    for number in range(600):
        decisions.append(a_decision(inputs=inputs))
        while not spooled.spool.record(decisions[-1]):
            raise AssertionError("there is room")
        if number % 3 == 0:
            outcomes.append(an_outcome(decisions[-1]))
            spooled.spool.record_outcome(outcomes[-1])
        if number % 100 == 0:
            # The next segment is made beside us, as in a service between two requests.
            await asyncio.sleep(0.05)
    assert await spooled.stored()
    assert await stored_decisions(database) == [row.decision_id for row in decisions]
    assert await stored_outcomes(database) == [row.outcome_id for row in outcomes]
    assert await stored_numbers(database) == list(range(1, 801))
    assert (spooled.spool.recorded, spooled.spool.pending, spooled.spool.lost_rows) == (800, 0, 0)
    assert await gaps(database) == []
    directory = spooled.spool.directory
    assert directory is not None
    assert len(segment_numbers(directory)) <= 3
    await spooled.drain()
    assert not directory.exists()


async def test_a_batch_that_takes_too_long_is_stored_in_smaller_ones(
    database: Database, make_spooled: MakeSpooled
) -> None:
    async with database.write() as session:
        await session.execute(
            text(
                "CREATE FUNCTION slow() RETURNS trigger LANGUAGE plpgsql AS"
                " $$ BEGIN PERFORM pg_sleep(0.01); RETURN NEW; END $$"
            )
        )
        await session.execute(
            text(
                "CREATE TRIGGER slow BEFORE INSERT ON decision FOR EACH ROW EXECUTE FUNCTION slow()"
            )
        )
    try:
        url = database.url.render_as_string(hide_password=False)
        async with Database(url, pool_connections=1, statement_timeout_s=0.3) as hasty:
            spooled = make_spooled(hasty, batch_rows=64)
            decisions = [a_decision() for _ in range(64)]
            for decision in decisions:
                spooled.spool.record(decision)
            with capture_logs() as logs:
                spooled.start()
                assert await spooled.stored()
                await spooled.kill()
        assert await stored_decisions(database) == [row.decision_id for row in decisions]
        assert any(line["event"] == "decisions_not_copied" for line in logs)
        assert await gaps(database) == []
    finally:
        async with database.write() as session:
            await session.execute(text("DROP FUNCTION slow() CASCADE"))


async def test_the_sums_are_those_of_the_rows(
    database: Database, make_spooled: MakeSpooled
) -> None:
    spooled = make_spooled(database, batch_rows=7)
    spooled.start()
    for number in range(40):
        decision = a_decision(
            model=f"m{number % 3}", query_tokens=100, matched_tokens=number, latency_us=50 * number
        )
        spooled.spool.record(decision)
        if number % 2:
            spooled.spool.record_outcome(
                an_outcome(
                    decision, physical=True, predicted_us=1_000, observed_us=2_000, gain_us=number
                )
            )
    assert await spooled.stored()
    async with database.read() as session:
        for step in STEPS:
            found = await session.execute(
                text(
                    "SELECT model, sum(decisions)::int, sum(matched_tokens)::int,"
                    " (sum(latency_us))::int FROM decision_rollup WHERE step = :step"
                    " GROUP BY model ORDER BY model"
                ),
                {"step": step},
            )
            expected = [
                (f"m{rest}", len(own), sum(own), 50 * sum(own))
                for rest in range(3)
                if (own := range(rest, 40, 3))
            ]
            assert [tuple(row) for row in found.all()] == expected, step
        counts = await session.scalar(
            text("SELECT latency_counts FROM decision_rollup WHERE step = 'day' AND model = 'm0'")
        )
        told = await session.execute(
            text(
                "SELECT sum(outcomes)::int, sum(gain_us)::int, sum(compared)::int,"
                " sum(compared_observed_us)::int FROM outcome_rollup WHERE step = 'hour'"
            )
        )
        (sums,) = told.all()
    assert sum(counts) == 14
    assert tuple(sums) == (20, sum(range(1, 40, 2)), 20, 40_000)


def test_a_bucket_begins_where_its_step_does() -> None:
    moment = datetime(2026, 2, 28, 23, 59, 59, 999_999, tzinfo=UTC)
    begins = [bucket(step, moment).isoformat() for step in STEPS.values()]
    assert begins == [
        "2026-02-28T23:59:00+00:00",
        "2026-02-28T23:00:00+00:00",
        "2026-02-28T00:00:00+00:00",
    ]


async def test_a_few_rows_are_stored_after_the_interval(
    database: Database, make_spooled: MakeSpooled
) -> None:
    spooled = make_spooled(database, flush_interval_s=0.005)
    spooled.start()
    spooled.spool.record(a_decision())
    async with asyncio.timeout(30):
        while spooled.spool.committed < 1:
            await asyncio.sleep(0.001)
    assert len(await stored_decisions(database)) == 1


POISON = [
    {"tenant": "a\x00b"},
    {"inputs": '{"text":"\\u0000"}'},
    {"excluded": "{not json"},
    {"latency_us": 2**63},
    {"index_revision": None},
    {"model": "lone \ud800 surrogate"},
    {"decision_id": "no uuid"},
    {"kind": "no kind"},
    {"path": ["a", None, 3]},
    # A btree entry holds at most a third of a page; Postgres compresses, so it must be random.
    {"tenant": "".join(str(UUID(int=n * 2**65 + 2**127 // (n + 3))) for n in range(500))},
]


@pytest.mark.parametrize("poison", POISON, ids=lambda poison: next(iter(poison)))
async def test_a_row_that_cannot_be_stored_is_a_gap_alone(
    database: Database, make_spooled: MakeSpooled, poison: dict[str, Any]
) -> None:
    spooled = make_spooled(database)
    decisions = [a_decision() for _ in range(40)]
    decisions[17] = decisions[17]._replace(**poison)
    outcome = an_outcome(decisions[3])
    with capture_logs() as logs:
        for decision in decisions:
            spooled.spool.record(decision)
        spooled.spool.record_outcome(outcome)
        spooled.start()
        assert await spooled.stored()
    expected = [row.decision_id for row in decisions if row is not decisions[17]]
    assert await stored_decisions(database) == expected
    assert await stored_outcomes(database) == [outcome.outcome_id]
    ((first, last, reason),) = await gaps(database)
    assert (first, last) == (18, 18)
    assert reason in ("refused", "unreadable")
    async with database.read() as session:
        summed = text("SELECT sum(decisions)::int FROM decision_rollup WHERE step = 'day'")
        assert await session.scalar(summed) == 39
    assert str(poison) not in str(logs)


async def test_a_row_that_is_stored_already_is_not_stored_again(
    database: Database, make_spooled: MakeSpooled
) -> None:
    spooled = make_spooled(database)
    decisions = [a_decision() for _ in range(20)]
    for decision in [*decisions, decisions[12]]:
        spooled.spool.record(decision)
    spooled.start()
    assert await spooled.stored()
    assert await stored_decisions(database) == [row.decision_id for row in decisions]
    assert await gaps(database) == [(21, 21, "duplicate")]


async def test_a_day_without_a_partition_gets_one(
    database: Database, make_spooled: MakeSpooled
) -> None:
    days = [datetime(2024, 2, 29, 23, 59, tzinfo=UTC), datetime(2031, 7, 1, tzinfo=UTC)]
    old = [a_decision(decision_id=id_at(day, 1)) for day in days]
    decisions = [a_decision(), *old, a_decision()]
    spooled = make_spooled(database)
    for decision in decisions:
        spooled.spool.record(decision)
    spooled.spool.record_outcome(an_outcome(old[0], created_at=days[0] + timedelta(days=40)))
    spooled.start()
    assert await spooled.stored()
    assert await stored_decisions(database) == [row.decision_id for row in decisions]
    assert len(await stored_outcomes(database)) == 1


async def test_rows_without_room_are_gaps_and_the_rest_goes_on(
    database: Database, make_spooled: MakeSpooled
) -> None:
    spooled = make_spooled(database, max_bytes=2 * SEGMENT_BYTES)
    big = '{"text":"' + "x" * 60_000 + '"}'
    with capture_logs() as logs:
        kept = []
        for _ in range(200):
            decision = a_decision(inputs=big)
            if spooled.spool.record(decision):
                kept.append(decision)
            await asyncio.sleep(0.001)
    assert spooled.spool.full
    assert spooled.spool.lost == {"no_room": 200 - len(kept)}
    assert 2 * SEGMENT_BYTES // 70_000 <= len(kept) <= 2 * SEGMENT_BYTES // 60_000
    # Told while it happens; more of it within ten seconds is not told again.
    assert [line["lost_rows"] for line in logs if line["event"] == "decisions_lost"] == [1]
    spooled.start()
    assert await spooled.spool.wait_committed(len(kept), wait_s=30)
    assert not spooled.spool.full
    last = a_decision(inputs=big)
    assert spooled.spool.record(last)
    assert await spooled.stored()
    assert await stored_decisions(database) == [row.decision_id for row in [*kept, last]]
    assert await gaps(database) == [(len(kept) + 1, spooled.spool.recorded - 1, "no_room")]


async def test_losses_at_the_end_are_a_gap_when_the_writer_is_gone(
    database: Database, make_spooled: MakeSpooled
) -> None:
    spooled = make_spooled(database, max_bytes=2 * SEGMENT_BYTES)
    big = '{"text":"' + "x" * 60_000 + '"}'
    while spooled.spool.lost_rows < 3:
        spooled.spool.record(a_decision(inputs=big))
        await asyncio.sleep(0.001)
    recorded = spooled.spool.recorded
    await spooled.drain()
    assert await gaps(database) == [(recorded - 2, recorded, "no_room")]
    assert await committed(database, spooled.writer_id) == recorded


async def copied_by(database: Database, directory: Path) -> None:
    copier = Copier(database, directory, SystemClock(), SystemIds(), limits=CopierLimits(**QUICK))
    copier.drain()
    async with asyncio.timeout(30):
        await copier.run()
    copier.close()


async def test_what_a_killed_process_left_is_stored_once_also_if_half_of_it_was(
    database: Database, make_spooled: MakeSpooled, tmp_path: Path
) -> None:
    spooled = make_spooled(database, batch_rows=10)
    decisions = [a_decision() for _ in range(25)]
    for decision in decisions[:15]:
        spooled.spool.record(decision)
    spooled.start()
    assert await spooled.stored()
    await spooled.kill()
    for decision in decisions[15:]:
        spooled.spool.record(decision)
    left = spooled.left_behind(tmp_path / "left")
    await copied_by(database, left.parent)
    assert await stored_decisions(database) == [row.decision_id for row in decisions]
    assert not left.exists()


@pytest.mark.parametrize("cut", ["length", "number", "payload", "page"])
async def test_a_torn_end_takes_only_itself(
    database: Database, make_spooled: MakeSpooled, tmp_path: Path, cut: str
) -> None:
    spooled = make_spooled(database)
    decisions = [a_decision() for _ in range(60)]
    for decision in decisions:
        spooled.spool.record(decision)
    left = spooled.left_behind(tmp_path / "left")
    frame_bytes = (spooled.spool._at - HEADER_BYTES) // 60
    with segment_path(left, 1).open("r+b") as segment:
        last = HEADER_BYTES + 59 * frame_bytes
        if cut == "page":
            # As a machine that crashed leaves it: a page in the middle was never written.
            segment.seek(HEADER_BYTES + 20 * frame_bytes)
            segment.write(bytes(3 * frame_bytes))
        else:
            segment.seek(last + {"length": 0, "number": 8, "payload": frame_bytes - 40}[cut])
            segment.write(b"\x7f\x01\x02")
    await copied_by(database, left.parent)
    stored = await stored_decisions(database)
    if cut == "page":
        assert stored == [row.decision_id for row in [*decisions[:20], *decisions[23:]]]
        assert await gaps(database) == [(21, 23, "torn")]
    else:
        assert stored == [row.decision_id for row in decisions[:59]]
        assert await gaps(database) == [(60, 60, "torn")]


async def test_a_file_that_is_no_segment_is_set_aside(
    database: Database, make_spooled: MakeSpooled, tmp_path: Path
) -> None:
    spooled = make_spooled(database)
    decision = a_decision()
    spooled.spool.record(decision)
    left = spooled.left_behind(tmp_path / "left")
    segment_path(left, 0).write_bytes(b"nothing of ours" * 1_000)
    with capture_logs() as logs:
        await copied_by(database, left.parent)
    assert await stored_decisions(database) == [decision.decision_id]
    assert "spool_segment_refused" in {line["event"] for line in logs}
    assert [path.name for path in left.glob("*.refused")] == ["000000000000.refused"]


async def test_two_copiers_at_once_store_nothing_twice(
    database: Database, make_spooled: MakeSpooled
) -> None:
    spooled = make_spooled(database, batch_rows=5)
    other = Copier(
        database,
        spooled.directory,
        SystemClock(),
        SystemIds(),
        limits=CopierLimits(**(QUICK | {"batch_rows": 3})),
    )
    spooled.start()
    beside = asyncio.create_task(other.run())
    decisions = [a_decision() for _ in range(200)]
    for decision in decisions:
        spooled.spool.record(decision)
        await asyncio.sleep(0)
    assert await spooled.stored()
    beside.cancel()
    await asyncio.gather(beside, return_exceptions=True)
    other.close()
    assert await stored_decisions(database) == [row.decision_id for row in decisions]
    assert await committed(database, spooled.writer_id) == 200


async def test_rows_recorded_while_postgres_is_away_are_stored_when_it_is_back(
    database: Database, proxied: Database, proxy: CuttingProxy, make_spooled: MakeSpooled
) -> None:
    spooled = make_spooled(proxied, batch_rows=20)
    spooled.start()
    first = [a_decision() for _ in range(30)]
    for decision in first:
        spooled.spool.record(decision)
    assert await spooled.stored()
    proxy.go_away()
    second = [a_decision() for _ in range(30)]
    with capture_logs() as logs:
        for decision in second:
            spooled.spool.record(decision)
        assert not await spooled.stored(wait_s=0.0)
        for _ in range(3):
            proxy.refusal.clear()
            await proxy.refusal.wait()
    assert {line["event"] for line in logs} == {"decisions_not_copied"}
    assert (spooled.spool.pending, spooled.spool.lost_rows) == (30, 0)
    assert len(await stored_decisions(database)) == 30
    proxy.come_back()
    assert await spooled.stored()
    assert await stored_decisions(database) == [row.decision_id for row in [*first, *second]]


async def test_a_database_without_its_tables_is_waited_for(
    database: Database, make_spooled: MakeSpooled
) -> None:
    async with database.write() as session:
        await session.execute(text("ALTER TABLE decision RENAME TO decision_away"))
    spooled = make_spooled(database)
    spooled.spool.record(a_decision())
    with capture_logs() as logs:
        spooled.start()
        assert not await spooled.stored(wait_s=0.2)
        async with database.write() as session:
            await session.execute(text("ALTER TABLE decision_away RENAME TO decision"))
        assert await spooled.stored()
    assert asyncpg.UndefinedTableError.__name__ in {line.get("error") for line in logs}
    assert await gaps(database) == []


async def test_waiting_ends_also_for_rows_that_cannot_come(
    database: Database, make_spooled: MakeSpooled
) -> None:
    spooled = make_spooled(database)
    assert await spooled.spool.wait_committed(0, wait_s=0.0)
    assert not await spooled.spool.wait_committed(1, wait_s=0.001)
    spooled.spool.close()
    assert not spooled.spool.record(a_decision())


async def test_the_counts_are_metrics(database: Database, make_spooled: MakeSpooled) -> None:
    spooled = make_spooled(database)
    metrics = Metrics(version="0", implementation="compiled")
    metrics.watch_decisions(spooled.spool)
    for _ in range(5):
        spooled.spool.record(a_decision())
    lines = metrics.render()[1].decode().splitlines()
    assert "nexuskv_decisions_recorded_total 5.0" in lines
    assert "nexuskv_decisions_queued 5.0" in lines
    spooled.start()
    assert await spooled.stored()
    lines = metrics.render()[1].decode().splitlines()
    assert "nexuskv_decisions_stored_total 5.0" in lines
    assert 'nexuskv_decisions_lost_total{reason="no_room"} 0.0' in lines
