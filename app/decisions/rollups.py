"""Sums of rows: how much every bucket of time and group grows by a batch. Pure.

Rows are counted in their minute, hour and day of `created_at`, in UTC, in the transaction that
stores them: what the rollups say is what the rows said, also when these are gone.
"""

from collections.abc import Collection, Iterable
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Final, NamedTuple
from uuid import UUID

from app.decisions.histogram import ERROR_BOUNDS, LATENCY_BOUNDS_US, bucket_of
from app.decisions.lookup_lines import EndParts, ScopeParts, SeenLookup
from app.decisions.record import Decision, DecisionKind, Outcome, OutcomeStatus

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_MS_A_MINUTE: Final = 60_000
STEPS: Final = {
    "minute": timedelta(minutes=1),
    "hour": timedelta(hours=1),
    "day": timedelta(days=1),
}


class DecisionGroup(NamedTuple):
    """The key of a sum of decisions; "" for what a row has not."""

    step: str
    bucket: datetime
    tenant: str
    model: str
    kind: str
    backend: str
    policy_version: str
    outcome: str
    action: str
    reason: str


class OutcomeGroup(NamedTuple):
    """Likewise of outcomes."""

    step: str
    bucket: datetime
    tenant: str
    model: str
    kind: str
    backend: str
    policy_version: str
    status: str
    reason: str


@dataclass(slots=True)
class DecisionSums:
    decisions: int = 0
    query_tokens: int = 0
    matched_tokens: int = 0
    latency_us: int = 0
    predicted_us: int = 0
    recompute_us: int = 0
    latency_counts: list[int] = field(default_factory=lambda: [0] * (len(LATENCY_BOUNDS_US) + 1))

    def add_lookup(self, seen: SeenLookup) -> None:
        self.decisions += 1
        self.query_tokens += seen.query_tokens
        self.matched_tokens += seen.matched_tokens
        self.latency_us += seen.latency_us
        self.latency_counts[bucket_of(LATENCY_BOUNDS_US, seen.latency_us)] += 1

    def add(self, row: Decision) -> None:
        self.decisions += 1
        self.query_tokens += row.query_tokens or 0
        self.matched_tokens += row.matched_tokens or 0
        self.latency_us += row.latency_us
        self.predicted_us += row.predicted_us or 0
        self.recompute_us += row.recompute_us or 0
        self.latency_counts[bucket_of(LATENCY_BOUNDS_US, row.latency_us)] += 1


@dataclass(slots=True)
class OutcomeSums:
    """`compared` are physical ones with a prediction; `error_counts` are of these. `used` are
    decisions, however many tell of their use.
    """

    outcomes: int = 0
    physical: int = 0
    bytes: int = 0
    tokens: int = 0
    observed_us: int = 0
    predicted_us: int = 0
    gain_us: int = 0
    compared: int = 0
    compared_observed_us: int = 0
    used: int = 0
    error_counts: list[int] = field(default_factory=lambda: [0] * (len(ERROR_BOUNDS) + 1))

    def add(self, row: Outcome, *, again: bool = False) -> None:
        """`again`: that its decision's state was used was told before, or does not count."""
        self.outcomes += 1
        self.used += row.status == OutcomeStatus.CONSUMED and not again
        self.physical += row.physical
        self.bytes += row.bytes_transferred or 0
        self.tokens += row.tokens or 0
        self.observed_us += row.observed_us or 0
        self.gain_us += row.gain_us or 0
        # What was predicted is the transfer: compared with that where a worker timed it. A protocol
        # that was completed says nothing of how long bytes take.
        took_us = row.observed_us if row.transfer_us is None else row.transfer_us
        if row.physical and row.predicted_us and took_us is not None:
            self.predicted_us += row.predicted_us
            self.compared += 1
            self.compared_observed_us += took_us
            error = took_us / row.predicted_us
            self.error_counts[bucket_of(ERROR_BOUNDS, error)] += 1


@dataclass(slots=True)
class Increments:
    """By how much each group grows."""

    decisions: dict[DecisionGroup, DecisionSums] = field(default_factory=dict)
    outcomes: dict[OutcomeGroup, OutcomeSums] = field(default_factory=dict)

    def __bool__(self) -> bool:
        return bool(self.decisions or self.outcomes)


def bucket(step: timedelta, moment: datetime) -> datetime:
    """The beginning of the step that a moment lies in, in UTC."""
    return moment - (moment - _EPOCH) % step


def fold(
    decisions: Iterable[Decision],
    outcomes: Iterable[Outcome],
    lookups: Iterable[SeenLookup] = (),
    *,
    again: Collection[UUID] = (),
) -> Increments:
    """The increments of all of them; `lookups` are not among the decisions. `again` are ids of
    outcomes that tell of no further use.
    """
    made = Increments()
    minutes = _by_minute(lookups)
    for row in decisions:
        group = DecisionGroup(
            "minute",
            bucket(STEPS["minute"], row.created_at),
            row.tenant,
            row.model,
            row.kind,
            row.backend or "",
            row.policy_version,
            row.outcome,
            row.action or "",
            row.fallback_reason or "",
        )
        sums = minutes.get(group)
        if sums is None:
            sums = minutes[group] = DecisionSums()
        sums.add(row)
    told: dict[OutcomeGroup, OutcomeSums] = {}
    for one in outcomes:
        key = OutcomeGroup(
            "minute",
            bucket(STEPS["minute"], one.created_at),
            one.tenant,
            one.model or "",
            one.kind or "",
            one.backend or "",
            one.policy_version or "",
            one.status,
            one.fallback_reason or "",
        )
        told.setdefault(key, OutcomeSums()).add(one, again=one.outcome_id in again)
    for name, step in STEPS.items():
        for group, sums in minutes.items():
            wider = group._replace(step=name, bucket=bucket(step, group.bucket))
            _into(made.decisions.setdefault(wider, DecisionSums()), sums)
        for key, amounts in told.items():
            longer = key._replace(step=name, bucket=bucket(step, key.bucket))
            _into(made.outcomes.setdefault(longer, OutcomeSums()), amounts)
    return made


def _by_minute(lookups: Iterable[SeenLookup]) -> dict[DecisionGroup, DecisionSums]:
    counted: dict[tuple[int, ScopeParts, EndParts, str | None], DecisionSums] = {}
    for seen in lookups:
        key = (seen.at_ms // _MS_A_MINUTE, seen.scope, seen.end, seen.reason)
        sums = counted.get(key)
        if sums is None:
            sums = counted[key] = DecisionSums()
        sums.add_lookup(seen)
    minutes: dict[DecisionGroup, DecisionSums] = {}
    for (minute, scope, end, reason), sums in counted.items():
        group = DecisionGroup(
            "minute",
            _EPOCH + minute * STEPS["minute"],
            scope.tenant,
            scope.model,
            DecisionKind.LOOKUP.value,
            "",
            scope.policy_version,
            end.outcome,
            end.action,
            reason or "",
        )
        _into(minutes.setdefault(group, DecisionSums()), sums)
    return minutes


def fold_outcomes(rows: Iterable[Outcome], *, again: Collection[UUID]) -> Increments:
    """The increments of outcomes alone."""
    return fold((), rows, again=again)


def _into(total: DecisionSums | OutcomeSums, more: DecisionSums | OutcomeSums) -> None:
    for name in total.__slots__:
        there, here = getattr(total, name), getattr(more, name)
        if isinstance(there, list):
            setattr(total, name, [one + two for one, two in zip(there, here, strict=True)])
        else:
            setattr(total, name, there + here)
