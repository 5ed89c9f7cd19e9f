"""Lookups on their way to Postgres: nearly all rows are, so their lines are made from parts.

What repeats from one lookup to the next was encoded once by whoever answered, and is decoded and
escaped once here.
"""

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from typing import Final
from uuid import UUID

import msgspec

from app.db.copy_text import NULL, array_field, escaped
from app.decisions.record import LAST_ID_MS, DecisionOutcome
from app.decisions.rows import (
    COMPATIBLE,
    NOTHING_EXCLUDED,
    LookupRow,
    end_of,
    match_counts,
    scope_of,
    winner_of,
)

_OUTCOMES: Final = frozenset(each.value for each in DecisionOutcome)
_MS_PER_S: Final = 1_000
_MILLISECOND: Final = timedelta(milliseconds=1)
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
# Of a UUID without its dashes.
_ID_DIGITS, _VERSION_AT = 32, 12
_BYTES: Final = "\\\\x"


@dataclass(frozen=True, slots=True, eq=False)
class ScopeParts:
    """Fields of a LookupScope, escaped and with the tabs between them."""

    tenant: str
    model: str
    policy_version: str
    names: str
    policy: str
    inputs: str


@dataclass(frozen=True, slots=True, eq=False)
class EndParts:
    """Likewise of a LookupEnd."""

    outcome: str
    action: str
    path: str


@dataclass(frozen=True, slots=True, eq=False)
class _WinnerParts:
    ids: str
    tier: str
    facts: str
    compatibility: str


class SeenLookup(msgspec.Struct, frozen=True, gc=False):
    """What sums need of a lookup; `at_ms` since the epoch."""

    at_ms: int
    scope: ScopeParts
    end: EndParts
    reason: str | None
    query_tokens: int
    matched_tokens: int
    latency_us: int

    @property
    def created_at(self) -> datetime:
        return _EPOCH + self.at_ms * _MILLISECOND


@lru_cache(maxsize=4_096)
def _scope_parts(encoded: bytes) -> ScopeParts:
    scope = scope_of(encoded)
    names = "\t".join(map(escaped, (scope.tenant, scope.namespace, scope.model)))
    return ScopeParts(
        scope.tenant,
        scope.model,
        scope.policy_version,
        f"\t{names}\tlookup\t",
        escaped(scope.policy_version),
        escaped(scope.inputs),
    )


@lru_cache(maxsize=64)
def _end_parts(encoded: bytes) -> EndParts:
    end = end_of(encoded)
    if end.outcome not in _OUTCOMES:
        raise ValueError("no outcome of a lookup")
    return EndParts(end.outcome, escaped(end.action), array_field(end.path))


@lru_cache(maxsize=4_096)
def _winner_parts(encoded: bytes) -> _WinnerParts | None:
    winner = winner_of(encoded)
    if winner is None:
        return None
    ids = f"{escaped(winner.entry_id)}\t{UUID(bytes=winner.state_id)}"
    return _WinnerParts(ids, escaped(winner.tier), escaped(winner.facts), COMPATIBLE)


_NO_WINNER: Final = _WinnerParts(f"{NULL}\t{NULL}", NULL, "", NULL)


@lru_cache(maxsize=256)
def _second(at_s: int) -> str:
    return datetime.fromtimestamp(at_s, UTC).strftime("%Y-%m-%d %H:%M:%S")


def lookup_line(seen: LookupRow, writer_id: UUID, writer_seq: int) -> tuple[SeenLookup, bytes]:
    """The row's line of COPY, and what sums need. Raises ValueError for bytes that are no row."""
    scope, end = _scope_parts(bytes(seen.scope)), _end_parts(bytes(seen.end))
    found = _winner_parts(bytes(seen.winner))
    winner = found or _NO_WINNER
    made, at_ms = seen.decision_id.hex(), int.from_bytes(seen.decision_id[:6], "big")
    if len(made) != _ID_DIGITS or made[_VERSION_AT] != "7" or at_ms > LAST_ID_MS:
        raise ValueError("not the id of a decision")
    counts = match_counts(seen)
    if found is not None:
        others = f'"runners_up":{escaped(seen.runners_up)},' if seen.runners_up else ""
        match = (
            f'{{"classification":"{escaped(str(seen.classification))}",'
            f'"matched_tokens":{seen.matched_tokens},{counts},{others}{winner.facts}'
        )
    else:
        match = f"{{{counts}}}" if seen.candidates else NULL
    reason, identity = seen.reason, seen.identity_hash
    trace = seen.trace_id
    line = (
        f"{made}\t{_second(at_ms // _MS_PER_S)}.{at_ms % _MS_PER_S:03d}+00{scope.names}"
        f"{end.outcome}\t{NULL if reason is None else escaped(reason)}\t"
        f"{NULL if identity is None else f'{_BYTES}{identity.hex()}'}\t{NULL}\t{made}\t"
        f"{escaped(seen.key_id)}\t{NULL if trace is None else escaped(trace)}\t"
        f"{scope.policy}\t{winner.ids}\t{match}\t{winner.compatibility}\t"
        f"{escaped(seen.excluded) or NOTHING_EXCLUDED}\t{NULL}\t{NULL}\t{end.path}\t"
        f"{seen.index_revision}\t{seen.latency_us}\t"
        f'{scope.inputs},"query_tokens":{seen.query_tokens},'
        f'"input_fingerprint":"{escaped(seen.input_fingerprint)}",'
        f'"freshness":"{escaped(seen.freshness)}"}}\t'
        f"{end.action}\t{NULL}\t{winner.tier}\t{NULL}\t{escaped(seen.freshness)}\t"
        f"{escaped(seen.durability)}\t{seen.query_tokens}\t{seen.matched_tokens}\t{NULL}\t{NULL}\t"
        f"{writer_id}\t{writer_seq}\n"
    )
    counted = SeenLookup(
        at_ms, scope, end, reason, seen.query_tokens, seen.matched_tokens, seen.latency_us
    )
    return counted, line.encode()
