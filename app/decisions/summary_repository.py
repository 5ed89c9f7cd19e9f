"""The SQL of the rollups' summaries: few rows are read, whatever the history's length."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final, NamedTuple

from sqlalchemy import (
    BigInteger,
    ColumnElement,
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

_DAY: Final = "day"
_BUCKETS_AT_ONCE: Final = 8
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
            used = await self._used(of, of.latency_counts, len(LATENCY_BOUNDS_US) + 1, question)
            sums.append(_histogram(of.latency_counts, used).label("latency"))
        return await self._rows(of, sums, question)

    async def outcomes(self, question: RollupQuestion) -> Sequence[Row[Any]]:
        """Of `outcome_rollup`; `errors` is a histogram over `ERROR_BOUNDS`."""
        of = OutcomeRollupRow
        moves = of.kind.in_(_MOVES)
        completed = of.status == OutcomeStatus.COMPLETED
        used = await self._used(of, of.error_counts, len(ERROR_BOUNDS) + 1, question)
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
            _histogram(of.error_counts, used).label("errors"),
        ]
        return await self._rows(of, sums, question)

    async def _used(self, of: Any, counts: Any, buckets: int, question: RollupQuestion) -> range:
        """The buckets of a histogram in which anything was counted, and some beside them.

        Most of them never are, and every one that is asked for costs as much as any other sum. Days
        say which: they are a few rows, are never removed, and grow with the hours and minutes.
        """
        finer = [span for span in question.spans if span.step != _DAY]
        if not finer:
            return range(buckets)
        whole = Span(
            _DAY,
            min(span.begin for span in question.spans).replace(hour=0, minute=0),
            max(span.end for span in question.spans),
        )
        statement = select(_histogram(counts, range(buckets))).where(
            _within(of, whole), *_chosen(of, question)
        )
        totals: list[int] = (await self._session.execute(statement)).scalar_one()
        seen = [number for number, total in enumerate(totals) if total]
        if not seen:
            return range(0)
        # In few sizes, so that there are few statements.
        first = seen[0] // _BUCKETS_AT_ONCE * _BUCKETS_AT_ONCE
        last = -(-(seen[-1] + 1) // _BUCKETS_AT_ONCE) * _BUCKETS_AT_ONCE
        return range(first, min(last, buckets))

    async def _rows(
        self, of: Any, sums: Sequence[Any], question: RollupQuestion
    ) -> Sequence[Row[Any]]:
        keys = [getattr(of, name) for name in question.groups]
        if question.by_bucket:
            keys.insert(0, of.bucket)
        statement = (
            select(*keys, *sums)
            .where(or_(*(_within(of, span) for span in question.spans)), *_chosen(of, question))
            .group_by(*keys)
            .order_by(*keys)
            .limit(question.limit_rows)
        )
        found: Sequence[Row[Any]] = (await self._session.execute(statement)).all()
        return found


def _chosen(of: Any, question: RollupQuestion) -> list[ColumnElement[bool]]:
    equal = [getattr(of, name) == value for name, value in question.filters.items()]
    return [*equal, *visible(of.tenant, question.tenants)]


def _within(of: Any, span: Span) -> ColumnElement[bool]:
    return and_(of.step == span.step, of.bucket >= span.begin, of.bucket < span.end)


def _total(column: Any, *conditions: ColumnElement[bool]) -> ColumnElement[int]:
    """A sum as an integer, 0 of nothing; sums of bigint are numeric in Postgres."""
    total: Any = func.sum(column)
    if conditions:
        total = total.filter(*conditions)
    return cast(func.coalesce(total, 0), BigInteger)


def _histogram(counts: Any, used: range) -> ColumnElement[Any]:
    """The counts bucket by bucket: taking arrays apart as rows would cost five times as much."""
    nothing = cast(literal_column("0"), BigInteger)
    cells = [*([nothing] * used.start), *(_count(counts, at) for at in used)]
    return array(cells or [nothing])


def _count(counts: Any, at: int) -> ColumnElement[int]:
    total = func.sum(counts[literal_column(str(at + 1))])
    return cast(func.coalesce(total, literal_column("0")), BigInteger)
