"""Connections that break around a COMMIT: whoever cannot know what became of it asks."""

import asyncio
import os
import signal
import sys

import msgspec
import pytest

from app.db.session import Database
from app.decisions.copier.main import CopierOrder
from tests.decisions.conftest import MakeSpooled
from tests.decisions.cutting_proxy import CuttingProxy, Fault
from tests.decisions.rows import (
    a_decision,
    an_outcome,
    stored_decisions,
    stored_numbers,
    stored_outcomes,
)
from tests.decisions.spooled import committed, gaps
from tests.faults.checker import stored

AROUND = [
    Fault.CUT_BEFORE_DATA,
    Fault.CUT_BEFORE_ANSWER,
    Fault.CUT_BEFORE_COMMIT,
    Fault.CUT_AFTER_COMMIT,
]


@pytest.mark.parametrize(
    "faults",
    [
        *([fault] for fault in AROUND),
        [Fault.CUT_AFTER_COMMIT] * 3,
        [Fault.CUT_BEFORE_COMMIT, Fault.CUT_AFTER_COMMIT] * 2,
    ],
    ids=lambda faults: "-".join(fault.name for fault in faults),
)
async def test_a_connection_cut_anywhere_stores_each_row_once(
    *,
    database: Database,
    database_url: str,
    proxied: Database,
    proxy: CuttingProxy,
    make_spooled: MakeSpooled,
    faults: list[Fault],
) -> None:
    spooled = make_spooled(proxied, batch_rows=20)
    decisions = [a_decision() for _ in range(100)]
    outcomes = [an_outcome(decision) for decision in decisions[::2]]
    for decision in decisions:
        spooled.spool.record(decision)
    for outcome in outcomes:
        spooled.spool.record_outcome(outcome)
    proxy.faults = list(faults)
    spooled.start()
    assert await spooled.stored()
    assert proxy.faults_done == len(faults)
    assert await stored_decisions(database) == [row.decision_id for row in decisions]
    assert await stored_outcomes(database) == [row.outcome_id for row in outcomes]
    assert await stored_numbers(database) == list(range(1, 151))
    assert await gaps(database) == []
    found = stored(database_url)
    assert (found.unproven, found.wrong_sums) == ([], [])


@pytest.mark.parametrize("late", [False, True], ids=["while it is tried again", "long before"])
async def test_a_commit_that_arrives_after_its_connection_was_given_up(
    *,
    database: Database,
    database_url: str,
    proxied: Database,
    proxy: CuttingProxy,
    make_spooled: MakeSpooled,
    late: bool,
) -> None:
    """The transaction goes on in the server, and holds the writer's number until it ends."""
    spooled = make_spooled(proxied, batch_rows=50)
    decisions = [a_decision() for _ in range(50)]
    for decision in decisions:
        spooled.spool.record(decision)
    proxy.faults = [Fault.HOLD_COMMIT]
    spooled.start()
    async with asyncio.timeout(30):
        while not proxy._held:
            await asyncio.sleep(0.001)
    if late:
        # Tried again meanwhile, in vain.
        assert not await spooled.stored(wait_s=0.2)
    assert b"COMMIT" in await proxy.release()
    assert await spooled.stored()
    # And on it goes.
    decisions.append(a_decision())
    spooled.spool.record(decisions[-1])
    assert await spooled.stored()
    assert await stored_decisions(database) == [row.decision_id for row in decisions]
    assert await committed(database, spooled.writer_id) == 51
    assert await gaps(database) == []
    found = stored(database_url)
    assert (found.unproven, found.wrong_sums) == ([], [])


async def test_a_copier_killed_between_the_commit_and_its_acknowledgement(
    *,
    database: Database,
    database_url: str,
    proxied_url: str,
    proxy: CuttingProxy,
    make_spooled: MakeSpooled,
) -> None:
    """The next one finds in Postgres how far it had come, and stores nothing twice."""
    spooled = make_spooled(database, batch_rows=20)
    decisions = [a_decision() for _ in range(100)]
    for decision in decisions:
        spooled.spool.record(decision)
    order = CopierOrder(str(spooled.directory), "error", 5.0, 5.0)
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-c",
        "from app.decisions.copier.main import main; main()",
        msgspec.json.encode(order).decode(),
        stdin=asyncio.subprocess.PIPE,
        env=os.environ | {"NEXUSKV_DATABASE_URL": proxied_url},
    )

    async def kill() -> None:
        process.kill()
        await process.wait()

    proxy.on_committed = kill
    assert await asyncio.wait_for(process.wait(), 60) == -signal.SIGKILL
    there = await stored_decisions(database)
    assert there
    assert spooled.spool.committed == 0
    spooled.start()
    assert await spooled.stored()
    assert await stored_decisions(database) == [row.decision_id for row in decisions]
    assert await stored_numbers(database) == list(range(1, 101))
    assert await gaps(database) == []
    found = stored(database_url)
    assert (found.unproven, found.wrong_sums) == ([], [])
