"""The SQL of the rollups' summaries: few rows are read, whatever the history's length."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import lru_cache
from typing import Any, Final, Literal, NamedTuple

from sqlalchemy import (
    ARRAY,
    BigInteger,
    ColumnElement,
    Text,
    and_,
    any_,
    bindparam,
    cast,
    func,
    literal_column,
    or_,
    select,
)
from sqlalchemy.dialects.postgresql import array

from app.db.native import Kept
from app.db.session import ReadSession
from app.decisions.histogram import ERROR_BOUNDS, LATENCY_BOUNDS_US
from app.decisions.models import DecisionRollupRow, OutcomeRollupRow
from app.decisions.record import DecisionKind, DecisionOutcome, OutcomeStatus

_DAY: Final = "day"
_BUCKETS: Final = {"decisions": len(LATENCY_BOUNDS_US) + 1, "outcomes": len(ERROR_BOUNDS) + 1}
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


class _Shape(NamedTuple):
    """A statement but for its values, which are composed once: they name a hundred sums.

    `what`: the sums alone, with a histogram of the buckets `used`, or the histogram of everything.
    """

    table: Literal["decisions", "outcomes"]
    what: Literal["sums", "sums and histogram", "histogram"]
    used: range
    by_bucket: bool
    groups: tuple[str, ...]
    filters: tuple[str, ...]
    everyone: bool
    spans: int


class SummaryRepository:
    """Sums over one read session. Rows have `bucket` when asked for, then groups, then sums."""

    def __init__(self, session: ReadSession) -> None:
        self._session = session

    async def decisions(self, question: RollupQuestion) -> Sequence[Any]:
        """Of `decision_rollup`; `latency` is a histogram over `LATENCY_BOUNDS_US`, if any."""
        return await self._sums("decisions", question)

    async def outcomes(self, question: RollupQuestion) -> Sequence[Any]:
        """Of `outcome_rollup`; `errors` is a histogram over `ERROR_BOUNDS`, if any."""
        return await self._sums("outcomes", question)

    async def _sums(
        self, table: Literal["decisions", "outcomes"], question: RollupQuestion
    ) -> Sequence[Any]:
        shape = _Shape(
            table,
            "sums" if question.counts_only else "sums and histogram",
            range(0) if question.counts_only else await self._used(table, question),
            question.by_bucket,
            tuple(question.groups),
            tuple(sorted(question.filters)),
            question.tenants is None,
            len(question.spans),
        )
        values = _values(question, question.spans) | {"limit_rows": question.limit_rows}
        found: Sequence[Any] = (await self._session.execute(_statement(shape), values)).all()
        return found

    async def _used(
        self, table: Literal["decisions", "outcomes"], question: RollupQuestion
    ) -> range:
        """The buckets of a histogram in which anything was counted, and some beside them.

        Most of them never are, and every one that is asked for costs as much as any other sum. Days
        say which: they are a few rows, are never removed, and grow with the hours and minutes.
        """
        every = range(_BUCKETS[table])
        if all(span.step == _DAY for span in question.spans):
            return every
        whole = Span(
            _DAY,
            min(span.begin for span in question.spans).replace(hour=0, minute=0),
            max(span.end for span in question.spans),
        )
        filters = tuple(sorted(question.filters))
        everyone = question.tenants is None
        shape = _Shape(table, "histogram", every, False, (), filters, everyone, 1)
        values = _values(question, [whole]) | {"limit_rows": 1}
        row = (await self._session.execute(_statement(shape), values)).one()
        seen = [number for number, total in enumerate(row[0]) if total]
        if not seen:
            return range(0)
        # In few sizes, so that there are few statements.
        first = seen[0] // _BUCKETS_AT_ONCE * _BUCKETS_AT_ONCE
        last = -(-(seen[-1] + 1) // _BUCKETS_AT_ONCE) * _BUCKETS_AT_ONCE
        return range(first, min(last, _BUCKETS[table]))


def _values(question: RollupQuestion, spans: Sequence[Span]) -> dict[str, Any]:
    values: dict[str, Any] = {f"of_{name}": value for name, value in question.filters.items()}
    if question.tenants is not None:
        values["tenants"] = sorted(question.tenants)
    for number, span in enumerate(spans):
        values |= {f"{name}_{number}": value for name, value in span._asdict().items()}
    return values


@lru_cache(maxsize=512)
def _statement(shape: _Shape) -> Kept:
    of: Any = DecisionRollupRow if shape.table == "decisions" else OutcomeRollupRow
    keys = [_dimension(of, name) for name in shape.groups]
    named = [key.label(name) for key, name in zip(keys, shape.groups, strict=True)]
    if shape.by_bucket:
        keys.insert(0, of.bucket)
        named.insert(0, of.bucket)
    sums = [] if shape.what == "histogram" else _SUMS[shape.table]()
    if shape.what != "sums":
        counts, label = (
            (of.latency_counts, "latency")
            if shape.table == "decisions"
            else (of.error_counts, "errors")
        )
        sums.append(_histogram(counts, shape.used).label(label))
    statement = (
        select(*named, *sums)
        .where(
            or_(*(_within(of, number) for number in range(shape.spans))),
            *(_dimension(of, name) == bindparam(f"of_{name}") for name in shape.filters),
        )
        .group_by(*keys)
        .order_by(*keys)
        .limit(bindparam("limit_rows", type_=BigInteger()))
    )
    if not shape.everyone:
        statement = statement.where(of.tenant == any_(bindparam("tenants", type_=ARRAY(Text))))
    return Kept(statement)


# Outcomes have no action of their own: theirs follows from what was asked and how it ended. Whether
# a materialize that fell back was to be computed again or skipped is not told: it counts as the
# first, and nothing but its number is counted.
_ACTION_OF_OUTCOME: Final = """CASE
    WHEN kind = '' THEN ''
    WHEN kind = 'lookup' THEN CASE status WHEN 'recomputed' THEN 'recompute' ELSE 'reuse' END
    WHEN status = 'completed' OR kind = 'estimate' THEN 'transfer'
    WHEN status = 'registered' THEN 'register'
    WHEN status = 'fell_back' THEN CASE kind WHEN 'materialize' THEN 'recompute' ELSE 'skip' END
    WHEN backend = '' THEN 'register'
    ELSE 'transfer' END"""


def _dimension(of: Any, name: str) -> Any:
    """A column of the rollup, or what stands for it."""
    if of is OutcomeRollupRow and name == "action":
        return literal_column(_ACTION_OF_OUTCOME, Text)
    return getattr(of, name)


def _decision_sums() -> list[ColumnElement[Any]]:
    of = DecisionRollupRow
    lookups = _is(of.kind, DecisionKind.LOOKUP)
    hit = _is(of.outcome, DecisionOutcome.HIT)
    unavailable = _is(of.outcome, DecisionOutcome.UNAVAILABLE)
    return [
        _total(of.decisions).label("decisions"),
        _total(of.decisions, lookups).label("lookups"),
        _total(of.decisions, lookups, hit).label("hits"),
        _total(of.decisions, lookups, unavailable).label("unavailable"),
        # What follows a lookup says again what it matched.
        _total(of.query_tokens, lookups).label("query_tokens"),
        _total(of.matched_tokens, lookups).label("matched_tokens"),
    ]


def _outcome_sums() -> list[ColumnElement[Any]]:
    of = OutcomeRollupRow
    moves = or_(*(_is(of.kind, kind) for kind in _MOVES))
    completed = _is(of.status, OutcomeStatus.COMPLETED)
    registered = _is(of.status, OutcomeStatus.REGISTERED)
    fell_back = _is(of.status, OutcomeStatus.FELL_BACK)
    consumed = _is(of.status, OutcomeStatus.CONSUMED)
    return [
        _total(of.outcomes).label("outcomes"),
        _total(of.outcomes, completed).label("completed"),
        _total(of.outcomes, completed, moves).label("moved"),
        _total(of.outcomes, fell_back, moves).label("fell_back"),
        _total(of.outcomes, consumed).label("consumed"),
        _total(of.outcomes, or_(completed, registered), moves).label("delivered"),
        _total(of.used, moves).label("used"),
        _total(of.tokens).label("tokens"),
        _total(of.bytes).label("bytes"),
        _total(of.gain_us).label("gain_us"),
        _total(of.compared).label("compared"),
        _total(of.compared_observed_us).label("compared_observed_us"),
        _total(of.predicted_us).label("predicted_us"),
    ]


_SUMS: Final = {"decisions": _decision_sums, "outcomes": _outcome_sums}


def _is(column: Any, word: DecisionKind | DecisionOutcome | OutcomeStatus) -> ColumnElement[bool]:
    """In the statement itself: these never change, and a parameter each is work each time."""
    return column == literal_column(f"'{word}'")  # type: ignore[no-any-return]


def _within(of: Any, number: int) -> ColumnElement[bool]:
    return and_(
        of.step == bindparam(f"step_{number}"),
        of.bucket >= bindparam(f"begin_{number}"),
        of.bucket < bindparam(f"end_{number}"),
    )


def _total(column: Any, *conditions: ColumnElement[bool]) -> ColumnElement[int]:
    """A sum as an integer, 0 of nothing; sums of bigint are numeric in Postgres."""
    total: Any = func.sum(column)
    if conditions:
        total = total.filter(*conditions)
    # Sums of several groups, each of which may be at the most that its column holds.
    most: ColumnElement[Any] = literal_column(str(2**63 - 1))
    return cast(func.least(func.coalesce(total, literal_column("0")), most), BigInteger)


def _histogram(counts: Any, used: range) -> ColumnElement[Any]:
    """The counts bucket by bucket: taking arrays apart as rows would cost five times as much."""
    nothing = cast(literal_column("0"), BigInteger)
    cells = [*([nothing] * used.start), *(_count(counts, at) for at in used)]
    return array(cells or [nothing])


def _count(counts: Any, at: int) -> ColumnElement[int]:
    total = func.sum(counts[literal_column(str(at + 1))])
    return cast(func.coalesce(total, literal_column("0")), BigInteger)
