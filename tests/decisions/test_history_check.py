"""`nexuskv history check` finds exactly what is missing and what is there twice."""

import asyncio
import json
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

from hypothesis import given
from hypothesis import strategies as st
from sqlalchemy import text
from typer.testing import CliRunner

from app.cli import cli
from app.clock import SystemIds
from app.db.session import Database
from app.decisions.completeness import Numbers, prove
from app.decisions.partitions import drop_partitions_before, ensure_day
from app.decisions.retention import HistoryLimits
from app.decisions.retention_repository import KeepRule, set_keep_rule
from app.decisions.retention_rounds import HistoryKeeper
from tests.control.logs import captured_logs
from tests.db.rows import DECISION_COLUMNS, OUTCOME_COLUMNS, decision, outcome
from tests.decisions.test_retention import SteppingClock

NOW = datetime.now(UTC)
IDS = SystemIds()
SECOND = timedelta(seconds=1)
small = st.integers(1, 60)


async def write(
    database: Database,
    numbers: list[int],
    *,
    committed: int | None = None,
    gaps: tuple[tuple[int, int, str], ...] = (),
    times: dict[int, datetime] | None = None,
    tenants: tuple[str, ...] = ("acme",),
    writer_id: UUID | None = None,
) -> UUID:
    """Rows of one writer: every third is an outcome, a second passes from one to the next."""
    writer_id = writer_id or IDS.uuid7()
    decisions, outcomes = [], []
    for place, number in enumerate(numbers):
        at = (times or {}).get(number, NOW - timedelta(hours=2) + number * SECOND)
        tenant = tenants[place % len(tenants)]
        row = {"writer_id": writer_id, "writer_seq": number, "tenant": tenant}
        if number % 3:
            decisions.append(decision(at, **row))
        else:
            outcomes.append(outcome(at, **row))
    async with database.write() as session:
        await session.copy_lines("decision", DECISION_COLUMNS, decisions)
        await session.copy_lines("decision_outcome", OUTCOME_COLUMNS, outcomes)
        await session.execute(
            text("INSERT INTO decision_writer VALUES (:writer, :seq, now(), now())"),
            {"writer": writer_id, "seq": committed or max(numbers)},
        )
        for first, last, reason in gaps:
            await session.execute(
                text(
                    "INSERT INTO decision_gap VALUES (:writer, CAST(:first AS bigint),"
                    " CAST(:last AS bigint), :reason, now())"
                ),
                {"writer": writer_id, "first": first, "last": last, "reason": reason},
            )
    return writer_id


def command(url: str, *args: str) -> Any:
    env = {"NEXUSKV_DATABASE_URL": url, "COLUMNS": "120", "TERM": "dumb", "NO_COLOR": "1"}
    with captured_logs():
        return CliRunner().invoke(cli, ["history", "check", *args], env=env)


@given(st.lists(st.tuples(small, st.integers(0, 9)), max_size=30), small, small)
def test_numbers_are_a_set_that_counts_repeats(spans, first, last):
    numbers, model, repeated = Numbers(), set(), 0
    for begin, length in spans:
        numbers.add(begin, begin + length)
        added = set(range(begin, begin + length + 1))
        repeated += len(model & added)
        model |= added
    wanted = set(range(first, last + 1))
    holes = {
        number for begin, end in numbers.holes(first, last) for number in range(begin, end + 1)
    }
    assert numbers.repeated == repeated
    assert numbers.count(first, last) == len(model & wanted)
    assert holes == wanted - model
    assert len(numbers) == len([number for number in model if number + 1 not in model])


async def test_each_fault_is_found_and_told_apart(database: Database) -> None:
    every = list(range(1, 41))
    whole = await write(database, every)
    hole = await write(database, [n for n in every if n not in (7, 20, 21)])
    start = await write(database, every[4:])
    end = await write(database, every[:35], committed=40)
    lost = await write(database, [*every[:9], *every[29:]], gaps=((10, 29, "spool_full"),))
    twice = await write(database, [*every, 12])
    both = await write(database, every, gaps=((5, 6, "refused"),))
    ahead = await write(database, every, committed=30)
    # Slices of nine rows: a fault is seen also where slices meet.
    found = {proof.writer_id: proof for proof in await prove(database, slice_rows=9)}
    faults = {
        writer_id: (proof.missing, proof.twice, sum(proof.gaps.values()))
        for writer_id, proof in found.items()
    }
    assert faults == {
        whole: (0, 0, 0),
        hole: (3, 0, 0),
        start: (4, 0, 0),
        end: (5, 0, 0),
        lost: (0, 0, 20),
        twice: (0, 1, 0),
        both: (0, 2, 2),
        ahead: (0, 0, 0),
    }
    assert found[hole].holes == [(7, 7), (20, 21)]
    assert found[lost].gaps == {"spool_full": 20}
    assert (found[ahead].rows, found[whole].rows) == (30, 40)
    assert {writer for writer, proof in found.items() if proof.holds} == {whole, lost, ahead}
    alone = await prove(database, hole)
    assert [(proof.writer_id, proof.missing) for proof in alone] == [(hole, 3)]


async def test_days_that_left_are_not_missed_and_their_order_does_not_matter(
    database: Database,
) -> None:
    """Number 12 was given after 11, for a request that began before midnight, and left with it."""
    midnight = datetime(NOW.year, NOW.month, NOW.day, tzinfo=UTC) - timedelta(days=3)
    for age in range(6):
        await ensure_day(database, NOW.date() - timedelta(days=age))
    times = {n: midnight + (n - 12) * timedelta(minutes=20) for n in range(1, 41)}
    times[11], times[12] = times[12], times[11]
    made = midnight - timedelta(days=1)
    ms = round(made.timestamp() * 1000)
    writer_id = UUID(int=(ms << 80) | (0x7 << 76) | (0b10 << 62) | 1)
    await write(database, [n for n in range(1, 41) if n != 30], times=times, writer_id=writer_id)
    (proof,) = await prove(database)
    assert (proof.from_seq, proof.missing) == (1, 1)
    await drop_partitions_before(database, midnight)
    (proof,) = await prove(database)
    assert proof.from_seq > 12
    assert (proof.missing, proof.holes) == (1, [(30, 30)])
    # A late row makes a day of its own long ago: those between are not missing.
    await ensure_day(database, NOW.date() - timedelta(days=30))
    assert (await prove(database))[0].missing == 1


async def test_rows_that_left_before_their_day_are_not_missed(database: Database) -> None:
    old = {n: NOW - timedelta(days=2) + n * SECOND for n in range(1, 21)}
    for age in range(4):
        await ensure_day(database, NOW.date() - timedelta(days=age))
    numbers = [n for n in range(1, 41) if n != 33]
    await write(database, numbers, times=old, tenants=("acme", "brief"))
    async with database.write() as session:
        await set_keep_rule(session, KeepRule("brief", "", 1))
    await HistoryKeeper(database, SteppingClock(), HistoryLimits(), pause_s=0).remove()
    (proof,) = await prove(database)
    assert (proof.missing, proof.holes) == (1, [(33, 33)])
    assert 1 < proof.from_seq <= 33


async def test_the_command_says_it_and_exits_with_it(database: Database, database_url: str) -> None:
    def run(*args: str) -> Any:
        return asyncio.to_thread(command, database_url, *args)

    assert "No writer" in (await run()).stdout
    await write(database, [1, 2, 3])
    good = await run()
    assert good.exit_code == 0
    assert "Nothing is missing" in good.stdout
    bad = await write(database, [1, 2, 5], gaps=((3, 3, "spool_full"),))
    told = await run()
    assert told.exit_code == 1
    assert f"{bad}: missing: 4 to 4" in told.stdout
    assert "spool_full 1" in told.stdout
    document = await run("--json")
    assert document.exit_code == 1
    read = json.loads(document.stdout)
    assert read["complete"] is False
    assert [one["missing"] for one in read["writers"]] == [0, 1]
    assert (await run("--writer", str(bad), "--json")).exit_code == 1
    unknown = await run("--writer", str(UUID(int=1)))
    assert unknown.exit_code == 1
    assert "no writer" in unknown.stderr
