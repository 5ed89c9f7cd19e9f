"""What leaves the history and what stays: by age, tenant and kind, beside readers and writers."""

import asyncio
from collections import Counter
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from sqlalchemy import text
from typer.testing import CliRunner

from app.cli import cli
from app.clock import SystemClock
from app.db.partitions import partition_name
from app.db.session import Database
from app.decisions.partitions import TABLES, attached_days, ensure_day
from app.decisions.retention import (
    ANY_KIND,
    ANY_TENANT,
    HistoryLimits,
    Keeping,
    TrustedClocks,
)
from app.decisions.retention_repository import KeepRule, keep_rules, set_keep_rule
from app.decisions.retention_rounds import HistoryKeeper
from app.errors import NexusError
from tests.control.logs import captured_logs
from tests.db.rows import (
    DECISION_COLUMNS,
    OUTCOME_COLUMNS,
    copy_lines,
    decision,
    eventually,
    outcome,
)

NOW = datetime.now(UTC)
TODAY = NOW.date()
YEAR_US = 365 * 86_400 * 1_000_000
KINDS = ("lookup", "estimate", "materialize")
TENANTS = ("acme", "brief", "long", "mixed")
RULES = [
    KeepRule("brief", ANY_KIND, 2),
    KeepRule("long", ANY_KIND, 12),
    KeepRule("mixed", "lookup", 1),
    KeepRule("mixed", "materialize", 9),
    KeepRule(ANY_TENANT, "estimate", 3),
]


class SteppingClock(SystemClock):
    """The machine's clocks, with the wall's put forward or back."""

    step_us = 0

    def now(self) -> datetime:
        return super().now() + timedelta(microseconds=self.step_us)

    def now_us(self) -> int:
        return super().now_us() + self.step_us


def keeper(database: Database, clock: SystemClock | None = None, **limits: int) -> HistoryKeeper:
    return HistoryKeeper(
        database,
        clock or SystemClock(),
        HistoryLimits(**{"days": 5, **limits}),
        pause_s=0,
        statement_timeout_s=1,
    )


def noon(age_days: int) -> datetime:
    day = TODAY - timedelta(days=age_days)
    return datetime(day.year, day.month, day.day, 12, tzinfo=UTC)


async def fill(database: Database, ages: list[int], *, each: int = 1) -> None:
    """`each` decisions and outcomes of every tenant and kind on every day."""
    decisions, outcomes = [], []
    for age in ages:
        await ensure_day(database, TODAY - timedelta(days=age))
        for tenant in TENANTS:
            for kind in KINDS:
                decisions += [decision(noon(age), tenant=tenant, kind=kind) for _ in range(each)]
                outcomes += [outcome(noon(age), tenant=tenant, kind=kind) for _ in range(each)]
    await copy_lines(database, "decision", DECISION_COLUMNS, decisions)
    await copy_lines(database, "decision_outcome", OUTCOME_COLUMNS, outcomes)


async def give_rules(database: Database, *rules: KeepRule) -> None:
    async with database.write() as session:
        for rule in rules:
            await set_keep_rule(session, rule)


async def rows(database: Database, query: str) -> list[tuple[Any, ...]]:
    async with database.read() as session:
        return [tuple(row) for row in (await session.execute(text(query))).all()]


async def kept(database: Database, table: str) -> Counter[tuple[int, str, str]]:
    """Rows by age, tenant and kind."""
    found = await rows(database, f"SELECT created_at, tenant, kind FROM {table}")
    return Counter(((TODAY - at.date()).days, tenant, kind) for at, tenant, kind in found)


async def fill_sums(database: Database) -> None:
    """One sum of each step for every day of the last 500."""
    async with database.write() as session:
        for table, own, amounts in (
            ("decision_rollup", 3, 6),
            ("outcome_rollup", 2, 9),
        ):
            empty = ", ".join(["''"] * own)
            zeros = ", ".join(["0"] * amounts)
            await session.execute(
                text(
                    f"INSERT INTO {table} SELECT step, date_trunc('day', now()) - make_interval("
                    f"days => age), 'acme', 'm', 'lookup', '', 'p', {empty}, {zeros}, '{{}}'"
                    " FROM unnest(ARRAY['minute', 'hour', 'day']) step, generate_series(0, 499) age"
                )
            )


@given(
    rules=st.lists(
        st.builds(
            KeepRule,
            st.sampled_from([*TENANTS, ANY_TENANT]),
            st.sampled_from([ANY_KIND, *KINDS]),
            st.integers(1, 400),
        ),
        max_size=8,
        unique_by=lambda rule: rule[:2],
    ).map(lambda rules: [rule for rule in rules if rule[:2] != (ANY_TENANT, ANY_KIND)]),
    default_days=st.integers(1, 400),
    age_days=st.integers(0, 402),
)
def test_what_leaves_a_day_is_what_its_rule_says(rules, default_days, age_days):
    keeping = Keeping(rules, default_days)
    for tenant in TENANTS:
        leaving = keeping.leaving(tenant, age_days)
        for kind in (*KINDS, "of old"):
            expired = keeping.days(tenant, kind) < age_days
            assert keeping.shortest_days <= keeping.days(tenant, kind) <= keeping.longest_days
            assert (leaving is not None and (kind in leaving.kinds) != leaving.but) == expired


def test_the_most_special_rule_counts():
    keeping = Keeping(
        [
            KeepRule("a", "lookup", 1),
            KeepRule("a", ANY_KIND, 2),
            KeepRule(ANY_TENANT, "lookup", 3),
        ],
        4,
    )
    found = [keeping.days(*key) for key in (("a", "lookup"), ("a", "store"), ("b", "lookup"))]
    assert found == [1, 2, 3]
    assert keeping.days("b", "store") == 4


async def test_every_tenant_and_kind_is_kept_as_long_as_its_rule_says(database: Database) -> None:
    ages = [0, 1, 2, 3, 4, 6, 8, 10, 12, 13, 20]
    await give_rules(database, *RULES)
    await fill(database, ages)
    ours = keeper(database)
    for _ in range(3):
        removed = await ours.remove()
        assert removed is not None
    assert not removed.left
    keeping = Keeping(RULES, 5)
    expected = Counter(
        (age, tenant, kind)
        for age in ages
        for tenant in TENANTS
        for kind in KINDS
        if age <= keeping.days(tenant, kind)
    )
    for table in TABLES:
        assert await kept(database, table) == expected
        assert min(await attached_days(database, table)) == TODAY - timedelta(days=12)
    assert {row[0] for row in await rows(database, "SELECT removed_rows FROM decision_removed")}
    assert ours.rows["decision"] == ours.rows["decision_outcome"] > 0
    assert ours.rounds["done"] == 3


async def test_more_rows_than_a_batch_leave_and_others_stay(database: Database) -> None:
    await give_rules(database, KeepRule("mixed", "lookup", 1), KeepRule("long", ANY_KIND, 20))
    await fill(database, [3], each=1_100)
    await keeper(database).remove()
    expected = {
        (3, tenant, kind): 1_100
        for tenant in TENANTS
        for kind in KINDS
        if (tenant, kind) != ("mixed", "lookup")
    }
    for table in TABLES:
        assert await kept(database, table) == expected


async def test_sums_stay_when_their_rows_are_gone(database: Database) -> None:
    await fill(database, [8])
    await fill_sums(database)
    ours = keeper(database, minute_days=3, hour_days=400)
    await ours.remove()
    assert await kept(database, "decision") == Counter()
    assert ours.dropped == len(TABLES)
    for table in ("decision_rollup", "outcome_rollup"):
        found = await rows(database, f"SELECT step, count(*) FROM {table} GROUP BY step")
        assert dict(found) == {"minute": 4, "hour": 401, "day": 500}


async def test_inserts_go_on_beside_a_long_reader_and_a_later_round_finishes(
    database: Database, database_url: str
) -> None:
    """A REPEATABLE READ transaction that has read every day stays open over the removal."""
    await give_rules(database, KeepRule("brief", ANY_KIND, 2))
    await fill(database, [0, 3, 20])
    ours = keeper(database)
    async with (
        Database(database_url, statement_timeout_s=60) as reading,
        reading.engine.connect() as connection,
    ):
        await connection.execute(text("BEGIN ISOLATION LEVEL REPEATABLE READ"))
        count = text("SELECT count(*) FROM decision")
        before = await connection.scalar(count)
        removing = asyncio.create_task(ours.remove())

        async def waits() -> bool:
            found = await rows(
                database,
                "SELECT 1 FROM pg_stat_activity WHERE wait_event_type = 'Lock'"
                " AND application_name = 'nexuskv-history'",
            )
            return bool(found)

        await eventually(waits)
        for age in (0, 3):
            async with asyncio.timeout(2):
                row = decision(noon(age), tenant="acme")
                await copy_lines(database, "decision", DECISION_COLUMNS, [row])
        with pytest.raises(NexusError):
            await removing
        # Its moment is still whole for the reader: the rows deleted since, too.
        assert await connection.scalar(count) == before
        await connection.execute(text("ROLLBACK"))
    assert (20, "acme", "lookup") not in await kept(database, "decision")
    assert await ours.remove() is not None
    for table in TABLES:
        gone = partition_name(table, TODAY - timedelta(days=20))
        assert await rows(database, f"SELECT 1 WHERE to_regclass('{gone}') IS NOT NULL") == []
    left = await kept(database, "decision")
    assert left[0, "acme", "lookup"] == left[3, "acme", "lookup"] == 2
    assert (3, "brief", "lookup") not in left


async def test_one_replica_removes_at_a_time(database: Database, database_url: str) -> None:
    await fill(database, [20])
    async with Database(database_url) as other:
        replicas = [keeper(database), keeper(other), keeper(other)]
        await asyncio.gather(*(replica.remove() for replica in replicas))
        assert sum(one.dropped for one in replicas) == len(TABLES)
        done = sum(one.rounds["done"] for one in replicas)
        assert done + sum(one.rounds["busy"] for one in replicas) == 3
        assert done >= 1
        # A turn ends with its round.
        assert await replicas[1].remove() is not None


@pytest.mark.parametrize("step_us", [YEAR_US, -YEAR_US])
async def test_a_clock_that_stepped_removes_nothing(database: Database, step_us: int) -> None:
    await fill(database, [0, 4])
    clock = SteppingClock()
    ours = keeper(database, clock)
    assert await ours.remove() is not None
    clock.step_us = step_us
    for _ in range(3):
        assert await ours.remove() is None, "the database's clock says otherwise"
    assert ours.rounds["doubt"] == 3
    clock.step_us = 0
    assert await ours.remove() is None, "it stepped since the last look"
    assert await ours.remove() is not None
    for age in (0, 4):
        assert (age, "acme", "lookup") in await kept(database, "decision")


def test_clocks_that_step_together_are_believed_at_the_next_look_only():
    clock = SteppingClock()
    clocks = TrustedClocks(clock)
    assert clocks.agreed(clock.now()) is not None
    clock.step_us = YEAR_US
    assert clocks.agreed(clock.now()) is None
    late = clock.now() - timedelta(minutes=50)
    assert clocks.agreed(late) == late, "the earlier one counts"


async def test_a_round_drops_few_days_so_that_a_wrong_one_is_not_the_end(
    database: Database,
) -> None:
    ages = list(range(10, 22))
    for age in ages:
        await ensure_day(database, TODAY - timedelta(days=age))
    ours = keeper(database)
    left = []
    for _ in range(3):
        await ours.remove()
        days = await attached_days(database, "decision")
        left.append(sum((TODAY - day).days >= 10 for day in days))
    assert left == [5, 0, 0]


async def test_days_ahead_are_made_whatever_was_missed(database: Database) -> None:
    clock = SteppingClock()
    ours = keeper(database, clock)
    await ours.prepare()
    assert ours.days_ahead == 7
    clock.step_us = 30 * 86_400 * 1_000_000
    await ours.prepare()
    assert ours.days_ahead == 7
    for table in TABLES:
        last = clock.now().date() + timedelta(days=7)
        assert (await attached_days(database, table))[-1] == last


def command(url: str, *args: str) -> Any:
    env = {"NEXUSKV_DATABASE_URL": url, "COLUMNS": "100", "TERM": "dumb", "NO_COLOR": "1"}
    with captured_logs():
        return CliRunner().invoke(cli, ["history", "retention", *args], env=env)


async def test_rules_are_set_listed_and_taken_back(database: Database, database_url: str) -> None:
    def run(*args: str) -> Any:
        return asyncio.to_thread(command, database_url, *args)

    assert "NEXUSKV_HISTORY_DAYS" in (await run("list")).stdout
    for args in (("acme", "90"), ("acme", "--kind", "lookup", "7"), ("acme", "60")):
        result = await run("set", *args)
        assert result.exit_code == 0, result.output
    async with database.read() as session:
        assert await keep_rules(session) == [
            KeepRule("acme", "", 60),
            KeepRule("acme", "lookup", 7),
        ]
    listed = (await run("list")).stdout
    assert "every" in listed
    assert "lookup" in listed
    assert (await run("unset", "acme")).exit_code == 0
    again = await run("unset", "acme")
    assert again.exit_code == 1
    assert "retention list" in again.stderr
    assert '"days": 7' in (await run("list", "--json")).stdout


@pytest.mark.parametrize(
    ("args", "says"),
    [
        (("set", "acme", "0"), "days"),
        (("set", "acme", "401"), "400"),
        (("set", "*", "7"), "NEXUSKV_HISTORY_DAYS"),
        (("set", "a" * 129, "7"), "128"),
        (("set", "acme", "7", "--kind", "guess"), "lookup"),
    ],
)
def test_rules_that_cannot_be_are_refused(shared_database_url: str, args, says) -> None:
    result = command(shared_database_url, *args)
    assert result.exit_code == 2
    assert says in result.output
