"""The SQL of the rollups' summaries: few rows are read, whatever the history's length."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final, NamedTuple

from sqlalchemy import (
    BigInteger,
    ColumnElement,
    Double,
    Row,
    and_,
    cast,
    func,
    literal_column,
    or_,
    select,
)
from sqlalchemy.dialects.postgresql import array

from app.db.session import ReadSession
from app.decisions.histogram import ERROR_BOUNDS, LATENCY_BOUNDS_US
from app.decisions.models import DecisionRollupRow, OutcomeRollupRow
from app.decisions.record import DecisionKind, DecisionOutcome, OutcomeStatus
from app.decisions.repository import visible

# What came of a decision to move state; the others move nothing.
_MOVES: Final = (DecisionKind.MATERIALIZE, DecisionKind.PREFETCH, DecisionKind.STORE)


class Span(NamedTuple):
    """Buckets of one step, from the first inclusive to the last exclusive."""

    step: str
    begin: datetime
    end: datetime


@dataclass(frozen=True, slots=True)
class RollupQuestion:
    """Which sums. `groups` and `filters` name columns of the rollup; a filter "" is "no value"."""

    tenants: Collection[str] | None
    spans: Sequence[Span]
    by_bucket: bool
    groups: Sequence[str]
    filters: Mapping[str, str]
    limit_rows: int
    # Without a histogram, which is most of the work.
    counts_only: bool = False


class SummaryRepository:
    """Sums over one read session. Rows have `bucket` when asked for, then groups, then sums."""

    def __init__(self, session: ReadSession) -> None:
        self._session = session

    async def decisions(self, question: RollupQuestion) -> Sequence[Row[Any]]:
        """Of `decision_rollup`; `latency` is a histogram over `LATENCY_BOUNDS_US`, if any."""
        of = DecisionRollupRow
        lookups = of.kind == DecisionKind.LOOKUP
        sums: list[ColumnElement[Any]] = [
            _total(of.decisions).label("decisions"),
            _total(of.decisions, lookups).label("lookups"),
            _total(of.decisions, lookups, of.outcome == DecisionOutcome.HIT).label("hits"),
            _total(of.decisions, lookups, of.outcome == DecisionOutcome.UNAVAILABLE).label(
                "unavailable"
            ),
            _total(of.query_tokens).label("query_tokens"),
            _total(of.matched_tokens).label("matched_tokens"),
        ]
        if not question.counts_only:
            buckets = len(LATENCY_BOUNDS_US) + 1
            sums.append(_histogram(of.latency_counts, buckets).label("latency"))
        return await self._rows(of, sums, question)

    async def outcomes(self, question: RollupQuestion) -> Sequence[Row[Any]]:
        """Of `outcome_rollup`; `errors` is a histogram over `ERROR_BOUNDS`."""
        of = OutcomeRollupRow
        moves = of.kind.in_(_MOVES)
        completed = of.status == OutcomeStatus.COMPLETED
        sums = [
            _total(of.outcomes).label("outcomes"),
            _total(of.outcomes, completed).label("completed"),
            _total(of.outcomes, completed, moves).label("moved"),
            _total(of.outcomes, of.status == OutcomeStatus.FELL_BACK, moves).label("fell_back"),
            _total(of.outcomes, of.status == OutcomeStatus.CONSUMED).label("consumed"),
            _total(of.tokens).label("tokens"),
            _total(of.bytes).label("bytes"),
            _total(of.gain_us).label("gain_us"),
            _total(of.compared).label("compared"),
            _total(of.compared_observed_us).label("compared_observed_us"),
            _total(of.predicted_us).label("predicted_us"),
            _histogram(of.error_counts, len(ERROR_BOUNDS) + 1).label("errors"),
        ]
        return await self._rows(of, sums, question)

    async def _rows(
        self, of: Any, sums: Sequence[Any], question: RollupQuestion
    ) -> Sequence[Row[Any]]:
        keys = [getattr(of, name) for name in question.groups]
        if question.by_bucket:
            keys.insert(0, of.bucket)
        statement = (
            select(*keys, *sums)
            .where(
                or_(*(_within(of, span) for span in question.spans)),
                *(getattr(of, name) == value for name, value in question.filters.items()),
                *visible(of.tenant, question.tenants),
            )
            .group_by(*keys)
            .order_by(*keys)
            .limit(question.limit_rows)
        )
        found: Sequence[Row[Any]] = (await self._session.execute(statement)).all()
        return found


def _within(of: Any, span: Span) -> ColumnElement[bool]:
    return and_(of.step == span.step, of.bucket >= span.begin, of.bucket < span.end)


def _total(column: Any, *conditions: ColumnElement[bool]) -> ColumnElement[int]:
    """A sum as an integer, 0 of nothing; sums of bigint are numeric in Postgres."""
    total: Any = func.sum(column)
    if conditions:
        total = total.filter(*conditions)
    return cast(func.coalesce(total, 0), BigInteger)


def _histogram(counts: Any, buckets: int) -> ColumnElement[Any]:
    """The counts bucket by bucket: taking the arrays apart as rows would cost five times as much.

    They are summed up as doubles, which hold counts to 2^53 exactly and take half the time of
    numeric.
    """
    return array([_count(counts, number) for number in range(1, buckets + 1)])


def _count(counts: Any, number: int) -> ColumnElement[int]:
    total = func.sum(cast(counts[literal_column(str(number))], Double))
    return cast(func.coalesce(total, literal_column("0")), BigInteger)
