"""Learns from outcomes, and follows what was learnt.

One replica at a time reads outcomes in the order of their transactions, each once, and stores what
they make of the estimators, in one transaction; all replicas follow that. So what is learnt does
not depend on who learns it.
"""

import asyncio
from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import structlog
from sqlalchemy import Row

from app.calibration.observations import Happened, Observation, observations
from app.calibration.parts import UNLEARNT, Calibration, Learnt, PartKey
from app.calibration.repository import (
    MAX_PARTS,
    ReadTo,
    begin_cursor,
    changes_of,
    claim_cursor,
    decisions_named,
    learnt_parts,
    move_cursor,
    outcomes_after,
    store_learnt,
)
from app.calibration_metrics import RATIO_BUCKETS, Errors
from app.clock import Clock
from app.db.follow import DEFAULT_INTERVAL_S, Follower
from app.db.session import Database
from app.planner.calibrate import CalibrationLimits, observed
from app.planner.links import Links
from app.planner.profile import Profile

BATCH_ROWS: Final = 500
_LEARN_INTERVAL_S: Final = 1.0

_log = structlog.get_logger("nexuskv.calibration")


class CalibrationKeeper(Follower):
    """`current` is what is in force; `base` and `links` are the profiles and links without
    calibration, `limits` how far one observation may go.
    """

    def __init__(
        self,
        database: Database,
        base: Callable[[str, str], Profile],
        links: Callable[[], Links],
        limits: Callable[[], CalibrationLimits],
        clock: Clock,
        *,
        interval_s: float = DEFAULT_INTERVAL_S,
    ) -> None:
        super().__init__("calibration", self._follow, clock, interval_s=interval_s)
        self._database = database
        self._base = base
        self._links = links
        self._limits = limits
        self._now = clock.now
        self.learnt_rows = 0
        # Parts that were not learnt of because there were too many.
        self.refused_parts = 0
        self.errors: dict[str, Errors] = {}
        self.drifts: Counter[str] = Counter()
        self.current = Calibration()

    async def learn(self) -> int:
        """What came since; returns how many outcomes were read, 0 also where another is at it.

        Raises DATABASE_UNAVAILABLE; what was not learnt then is learnt later.
        """
        read = 0
        while True:
            rows = await self._learn_batch()
            read += rows
            if rows < BATCH_ROWS:
                return read

    async def watch_learning(self) -> None:
        """Learn until cancelled; an outage is logged once and outlived."""
        well = True
        while True:
            try:
                await self.learn()
            # A bug in one outcome must not end the watch.
            except Exception as error:  # noqa: BLE001
                if well:
                    _log.warning("not_learnt", reason=repr(error))
                well = False
            else:
                well = True
            await asyncio.sleep(_LEARN_INTERVAL_S)

    async def _follow(self) -> None:
        async with self._database.read() as session:
            changes = await changes_of(session)
            if changes == self.current.version:
                return
            known = await learnt_parts(session)
        self.current = Calibration(known, changes)

    async def _learn_batch(self) -> int:
        async with self._database.write() as session:
            at = await claim_cursor(session)
            if at is None:
                await begin_cursor(session)
                return 0
            outcomes = await outcomes_after(session, at, BATCH_ROWS)
            if not outcomes:
                return 0
            decisions = await decisions_named(session, [row.decision_id for row in outcomes])
            before = await learnt_parts(session)
            after = self._learnt(outcomes, decisions, before)
            await store_learnt(session, after, self._now())
            last = outcomes[-1]
            changes = at.changes + bool(after)
            await move_cursor(session, ReadTo(last.xid, last.outcome_id, changes))
        self.learnt_rows += len(outcomes)
        return len(outcomes)

    def _learnt(
        self,
        outcomes: Sequence[Row[Any]],
        decisions: Mapping[Any, Row[Any]],
        before: Mapping[PartKey, Learnt],
    ) -> dict[PartKey, Learnt]:
        """Only what changed. A factor of something else than what it is learnt of now is begun
        anew.
        """
        limits, links = self._limits(), self._links()
        after: dict[PartKey, Learnt] = {}
        for outcome in outcomes:
            decision = decisions.get(outcome.decision_id)
            if decision is None:
                continue
            for one in observations(_happened(outcome, decision), self._base, links):
                known = after.get(one.key) or before.get(one.key) or UNLEARNT
                if known is UNLEARNT and len(before) + len(after) >= MAX_PARTS:
                    self.refused_parts += 1
                    continue
                if known.basis != one.basis:
                    known = Learnt(UNLEARNT.estimator, one.basis, known.drifts)
                change = observed(known.estimator, one.predicted_us, one.observed_us, limits)
                self._count(one, known.estimator.factor, drifted=change.drifted)
                drifts = known.drifts + change.drifted
                after[one.key] = Learnt(change.estimator, one.basis, drifts)
        return after

    def _count(self, one: Observation, factor: float, *, drifted: bool) -> None:
        kind = one.key.part.partition(":")[0]
        ratio = one.observed_us / (one.predicted_us * factor) if one.predicted_us else 0.0
        errors = self.errors.setdefault(kind, Errors([0] * (len(RATIO_BUCKETS) + 1), [0.0]))
        errors.counts[bisect_left(RATIO_BUCKETS, ratio)] += 1
        errors.total[0] += ratio
        if drifted:
            self.drifts[kind] += 1
            _log.info("cost_changed", **one.key._asdict())

    def mean_errors(self) -> dict[str, tuple[int, float]]:
        """By kind of part: how many are known, and the mean size of their errors."""
        sums: dict[str, tuple[int, float]] = {}
        for key, learnt in self.current.known.items():
            kind = key.part.partition(":")[0]
            number, total = sums.get(kind, (0, 0.0))
            sums[kind] = number + 1, total + learnt.estimator.spread
        return {kind: (number, total / number) for kind, (number, total) in sums.items()}


def _happened(outcome: Row[Any], decision: Row[Any]) -> Happened:
    return Happened(
        outcome.status,
        outcome.transfer_us,
        outcome.bytes_transferred,
        outcome.detail if isinstance(outcome.detail, dict) else {},
        decision.kind,
        decision.model,
        decision.inputs if isinstance(decision.inputs, dict) else {},
        decision.estimate if isinstance(decision.estimate, dict) else {},
        decision.query_tokens,
    )
