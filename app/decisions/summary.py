"""What a time brought: counts, the four rates, gain, latency and how good predictions were.

Rates are kept apart on purpose: that state matched, that it could be reached, that it arrived, and
that it was used are four facts.
"""

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from types import SimpleNamespace
from typing import Any, Final

from sqlalchemy import Row

from app.db.session import ReadSession
from app.decisions.histogram import ERROR_BOUNDS, LATENCY_BOUNDS_US, quantile
from app.decisions.summary_repository import RollupQuestion, Span, SummaryRepository
from app.errors import ErrorCode, FieldError, NexusError

MAX_GROUPS: Final = 3
# A day by minute, two months by hour, four years by day.
MAX_BUCKETS: Final = 1_500
MAX_CELLS: Final = 10_000
_HOURS_UNTIL: Final = timedelta(days=62)
_MINUTES_UNTIL: Final = timedelta(hours=6)
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)


class SummaryStep(StrEnum):
    """How time is divided; `none`: one cell for all of it."""

    MINUTE = "minute"
    HOUR = "hour"
    DAY = "day"
    NONE = "none"


class Dimension(StrEnum):
    """What sums are told apart by."""

    TENANT = "tenant"
    MODEL = "model"
    KIND = "kind"
    ACTION = "action"
    BACKEND = "backend"
    REASON = "reason"
    OUTCOME = "outcome"
    POLICY_VERSION = "policy_version"


# What is known of a decision and not of what came of it.
_OF_DECISIONS: Final = frozenset({Dimension.OUTCOME})
_LENGTHS: Final = {
    SummaryStep.MINUTE: timedelta(minutes=1),
    SummaryStep.HOUR: timedelta(hours=1),
    SummaryStep.DAY: timedelta(days=1),
}


@dataclass(frozen=True, slots=True)
class SummaryQuestion:
    """What to sum up. `tenants` are those that the caller may see, None for all.

    The times are aware; they are taken to the step's bounds around them.
    """

    tenants: Collection[str] | None
    created_from: datetime
    created_to: datetime
    step: SummaryStep = SummaryStep.HOUR
    group_by: Sequence[str] = ()
    filters: Mapping[str, str] = field(default_factory=dict)
    # Decisions alone: neither their latency nor what came of them, which is most of the work.
    counts_only: bool = False
    # Whether all of it is wanted as one cell besides.
    with_total: bool = False


@dataclass(slots=True)
class Cell:
    """Sums of one bucket and group. A rate of nothing is None.

    From `outcomes` on all are None where outcomes cannot be told apart by what was asked.
    `error_*` are quantiles of observed over predicted time, `bias` the ratio of their sums.
    """

    bucket: datetime | None
    group: dict[str, str | None]
    decisions: int = 0
    lookups: int = 0
    hits: int = 0
    unavailable: int = 0
    query_tokens: int = 0
    matched_tokens: int = 0
    latency_p50_us: float | None = None
    latency_p95_us: float | None = None
    latency_p99_us: float | None = None
    outcomes: int | None = None
    completed: int | None = None
    moved: int | None = None
    fell_back: int | None = None
    consumed: int | None = None
    delivered: int | None = None
    used: int | None = None
    tokens: int | None = None
    bytes: int | None = None
    gain_us: int | None = None
    compared: int | None = None
    error_p50: float | None = None
    error_p90: float | None = None
    error_p99: float | None = None
    bias: float | None = None

    @property
    def logical_match(self) -> float | None:
        """Of the lookups, those with a match."""
        return _rate(self.hits, self.lookups)

    @property
    def physical_availability(self) -> float | None:
        """Of the lookups with a match, those whose state could be reached."""
        return _rate(self.hits, self.hits + self.unavailable)

    @property
    def completed_materialization(self) -> float | None:
        """Of the attempts to move state, those that a worker completed."""
        if self.moved is None or self.fell_back is None:
            return None
        return _rate(self.moved, self.moved + self.fell_back)

    @property
    def useful_reuse(self) -> float | None:
        """Of the decisions that brought state, those whose state a runtime says it used."""
        return None if self.used is None else _rate(self.used, self.delivered or 0)


@dataclass(frozen=True, slots=True)
class Summary:
    """Cells by bucket, then group; what has no decision and no outcome has no cell."""

    created_from: datetime
    created_to: datetime
    cells: Sequence[Cell]
    # Empty unless it was asked for.
    total: Cell


async def summarise(session: ReadSession, question: SummaryQuestion) -> Summary:
    """Raises INVALID_FIELD for a time that ends before it begins, and for more than MAX_CELLS."""
    spans = span_list(question)
    asked = RollupQuestion(
        tenants=question.tenants,
        spans=spans,
        by_bucket=question.step is not SummaryStep.NONE,
        groups=tuple(question.group_by),
        filters=question.filters,
        limit_rows=MAX_CELLS + 1,
        counts_only=question.counts_only,
    )
    repository = SummaryRepository(session)
    cells: dict[tuple[Any, ...], Cell] = {}
    dimensions = {*question.group_by, *question.filters}
    with_outcomes = not question.counts_only and not _OF_DECISIONS & dimensions
    total = _new_cell(None, {}, with_outcomes=with_outcomes)
    decisions = await repository.decisions(asked)
    outcomes = await repository.outcomes(asked) if with_outcomes else []
    for rows, add in ((decisions, _add_decisions), (outcomes, _add_outcomes)):
        for row in rows:
            add(_cell(cells, asked, row, with_outcomes=with_outcomes), row)
        if rows and question.with_total:
            add(total, _added_up(rows))
    # Sums over nothing at all are a row, too.
    for key in [key for key, cell in cells.items() if not cell.decisions and not cell.outcomes]:
        del cells[key]
    if len(cells) > MAX_CELLS:
        raise _invalid(
            "group_by",
            f"That is more than {MAX_CELLS} cells: group by less, ask for longer steps or for"
            " a shorter time",
        )
    begin, end = min(span.begin for span in spans), max(span.end for span in spans)
    return Summary(begin, end, [cells[key] for key in sorted(cells)], total)


def span_list(question: SummaryQuestion) -> list[Span]:
    """The buckets to add up, which cover the time asked for. Raises INVALID_FIELD."""
    return [*_spans(question.step, *_aligned(question))]


def _aligned(question: SummaryQuestion) -> tuple[datetime, datetime]:
    """The times at bounds of the step, around those asked for."""
    begin, end = question.created_from, question.created_to
    if end <= begin:
        raise _invalid("to", "`to` must be later than `from`")
    step = question.step
    if step is SummaryStep.NONE:
        step = _finest(end - begin)
    length = _LENGTHS[step]
    try:
        begin, end = _floor(begin, length), _ceiling(end, length)
    except OverflowError:
        raise _invalid("to", "The time lies outside what a calendar holds") from None
    if question.step is not SummaryStep.NONE and (end - begin) // length > MAX_BUCKETS:
        raise _invalid(
            "step", f"That is more than {MAX_BUCKETS} steps: ask for longer ones, or for less time"
        )
    return begin, end


def _floor(moment: datetime, length: timedelta) -> datetime:
    return _EPOCH + (moment - _EPOCH) // length * length


def _ceiling(moment: datetime, length: timedelta) -> datetime:
    return _EPOCH - (_EPOCH - moment) // length * length


def _finest(whole: timedelta) -> SummaryStep:
    """What a time without steps is rounded to."""
    if whole <= _MINUTES_UNTIL:
        return SummaryStep.MINUTE
    return SummaryStep.HOUR if whole <= _HOURS_UNTIL else SummaryStep.DAY


def _spans(step: SummaryStep, begin: datetime, end: datetime) -> Iterator[Span]:
    """The buckets to add up: without steps, the longest that fit."""
    if step is not SummaryStep.NONE:
        yield Span(step, begin, end)
        return
    inner: tuple[datetime, datetime] | None = None
    for longer in (SummaryStep.DAY, SummaryStep.HOUR, SummaryStep.MINUTE):
        length = _LENGTHS[longer]
        first = _ceiling(begin, length)
        last = _floor(end, length)
        if inner is None:
            if first < last:
                yield Span(longer, first, last)
                inner = first, last
            continue
        if first < inner[0]:
            yield Span(longer, first, inner[0])
        if inner[1] < last:
            yield Span(longer, inner[1], last)
        inner = min(first, inner[0]), max(last, inner[1])


def _cell(
    cells: dict[tuple[Any, ...], Cell], asked: RollupQuestion, row: Row[Any], *, with_outcomes: bool
) -> Cell:
    values = tuple(getattr(row, name) for name in asked.groups)
    bucket = row.bucket if asked.by_bucket else None
    key = (bucket, *values) if asked.by_bucket else values
    found = cells.get(key)
    if found is None:
        # What a row had no value of is "" in the rollup.
        group = {name: value or None for name, value in zip(asked.groups, values, strict=True)}
        found = cells[key] = _new_cell(bucket, group, with_outcomes=with_outcomes)
    return found


def _new_cell(
    bucket: datetime | None, group: dict[str, str | None], *, with_outcomes: bool
) -> Cell:
    made = Cell(bucket, group)
    if with_outcomes:
        made.outcomes = made.completed = made.moved = made.fell_back = 0
        made.delivered = made.used = 0
        made.consumed = made.tokens = made.bytes = made.gain_us = made.compared = 0
    return made


def _added_up(rows: Sequence[Row[Any]]) -> Any:
    """One row of sums for all of them."""
    names = [name for name in rows[0]._fields if isinstance(getattr(rows[0], name), int | list)]
    columns = {name: [getattr(row, name) for row in rows] for name in names}
    return SimpleNamespace(
        **{
            name: [*map(sum, zip(*values, strict=True))]
            if isinstance(values[0], list)
            else sum(values)
            for name, values in columns.items()
        }
    )


def _add_decisions(cell: Cell, row: Any) -> None:
    for name in ("decisions", "lookups", "hits", "unavailable", "query_tokens", "matched_tokens"):
        setattr(cell, name, getattr(row, name))
    latency = getattr(row, "latency", ())
    cell.latency_p50_us = quantile(LATENCY_BOUNDS_US, latency, 0.5)
    cell.latency_p95_us = quantile(LATENCY_BOUNDS_US, latency, 0.95)
    cell.latency_p99_us = quantile(LATENCY_BOUNDS_US, latency, 0.99)


def _add_outcomes(cell: Cell, row: Any) -> None:
    for name in ("outcomes", "completed", "moved", "fell_back", "consumed"):
        setattr(cell, name, getattr(row, name))
    for name in ("delivered", "used", "tokens", "bytes", "gain_us", "compared"):
        setattr(cell, name, getattr(row, name))
    cell.error_p50 = quantile(ERROR_BOUNDS, row.errors, 0.5)
    cell.error_p90 = quantile(ERROR_BOUNDS, row.errors, 0.9)
    cell.error_p99 = quantile(ERROR_BOUNDS, row.errors, 0.99)
    cell.bias = _rate(row.compared_observed_us, row.predicted_us)


def _rate(part: int, whole: int) -> float | None:
    return part / whole if whole else None


def _invalid(name: str, detail: str) -> NexusError:
    finding = FieldError(f"/query/{name}", ErrorCode.INVALID_FIELD, detail)
    return NexusError(ErrorCode.INVALID_FIELD, detail, errors=[finding])
