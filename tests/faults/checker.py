"""Compares what was promised with what is stored: nothing missing, nothing twice."""

from collections.abc import Iterable
from datetime import date, datetime
from pathlib import Path
from typing import NamedTuple

from sqlalchemy import text

from app.db.session import Database
from app.decisions.completeness import prove
from tests.faults.load import Acknowledged
from tests.fixtures.database import run_elsewhere

STEPS = ("minute", "hour", "day")


class Stored(NamedTuple):
    """The history as it is. Ids appear as often as they are stored."""

    decisions: list[str]
    outcomes: list[str]
    outcomes_of: list[str]
    # (first, last, reason), in order.
    gaps: list[tuple[int, int, str]]
    writers: int
    # What `nexuskv history check` finds wrong.
    unproven: list[str]
    # By step: sums of the rollups that differ from the rows.
    wrong_sums: list[str]

    @property
    def reasons(self) -> set[str]:
        return {reason for _, _, reason in self.gaps}

    def lost(self, reason: str) -> int:
        """How many numbers are in gaps for this reason."""
        return sum(last - first + 1 for first, last, why in self.gaps if why == reason)


def stored(database_url: str) -> Stored:
    """Everything that is in the database now."""

    async def find() -> Stored:
        async with Database(database_url, pool_connections=2) as database:
            proofs = await prove(database)
            async with database.read() as session:
                decisions = await session.execute(text("SELECT decision_id FROM decision"))
                outcomes = await session.execute(
                    text("SELECT outcome_id, decision_id FROM decision_outcome")
                )
                told = outcomes.all()
                gaps = await session.execute(
                    text(
                        "SELECT first_seq, last_seq, reason FROM decision_gap"
                        " ORDER BY writer_id, first_seq"
                    )
                )
                return Stored(
                    [str(row[0]) for row in decisions],
                    [str(row[0]) for row in told],
                    [str(row[1]) for row in told],
                    [tuple(row) for row in gaps],
                    len(proofs),
                    [str(proof) for proof in proofs if not proof.holds],
                    [*await _wrong(session, "decision"), *await _wrong(session, "outcome")],
                )

    found: Stored = run_elsewhere(find())
    return found


async def _wrong(session, kind: str) -> Iterable[str]:
    """The buckets of every step in which the rollup and the rows differ."""
    table, rollup, count = {
        "decision": ("decision", "decision_rollup", "decisions"),
        "outcome": ("decision_outcome", "outcome_rollup", "outcomes"),
    }[kind]
    said = []
    for step in STEPS:
        found = await session.execute(
            text(
                f"SELECT bucket, r.n, d.n FROM"
                f" (SELECT bucket, sum({count})::bigint n FROM {rollup} WHERE step = '{step}'"
                f"   GROUP BY bucket) r FULL JOIN"
                f" (SELECT date_trunc('{step}', created_at, 'UTC') bucket, count(*) n FROM {table}"
                f"   GROUP BY 1) d USING (bucket) WHERE r.n IS DISTINCT FROM d.n"
            )
        )
        said += [f"{kind} by {step} at {at:%F %R}: {sums} != {rows}" for at, sums, rows in found]
    return said


def days_stored(database_url: str) -> dict[date, int]:
    """How many decisions lie on each UTC day, by the partition that they are in."""

    async def find() -> dict[date, int]:
        async with Database(database_url, pool_connections=1) as database, database.read() as read:
            rows = await read.execute(
                text("SELECT right(tableoid::regclass::text, 8), count(*) FROM decision GROUP BY 1")
            )
            return {datetime.strptime(day, "%Y%m%d").date(): count for day, count in rows}  # noqa: DTZ007

    found: dict[date, int] = run_elsewhere(find())
    return found


def writers_left(spool: Path) -> list[str]:
    """Directories of writers that are still there."""
    return sorted(path.name for path in spool.iterdir() if path.is_dir())


def check(
    database_url: str,
    acknowledged: Acknowledged,
    spool: Path | None,
    *,
    may_lack: frozenset[str] = frozenset(),
) -> Stored:
    """Everything that was promised is there once, and nothing is unaccounted for.

    `may_lack` are reasons for which numbers, not promised ones, may have no row. The service must
    have ended, or all that it recorded must be stored; with a `spool`, nothing may be left in it.
    """
    found = stored(database_url)
    there = set(found.decisions)
    kept = acknowledged.kept()
    assert kept, "nothing was acknowledged: the test proved nothing"
    missing = kept - there
    assert not missing, f"{len(missing)} of {len(kept)} acknowledged decisions are missing"
    assert not acknowledged.lost() & there, "stored, and said to be lost"
    assert len(found.decisions) == len(there), "stored twice"
    assert len(found.outcomes) == len(set(found.outcomes)), "an outcome is stored twice"
    assert len(found.outcomes_of) == len(set(found.outcomes_of)), "two outcomes of one decision"
    assert acknowledged.receipts <= set(found.outcomes_of), "an outcome is missing"
    assert not found.unproven, found.unproven
    assert not found.wrong_sums, found.wrong_sums
    assert found.reasons <= may_lack, found.gaps
    if spool is not None:
        assert writers_left(spool) == []
    return found
