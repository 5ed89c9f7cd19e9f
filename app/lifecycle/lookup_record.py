"""Observe, for lookups: what is noted while a request waits, and the row that is made of it later.

A lookup is answered in microseconds, and building its row would be a third of that. So the request
leaves an observation, and the writer asks for the row when it stores a batch: the same work, done
many times in a row, is also half as expensive.
"""

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Final
from uuid import UUID

import msgspec

from app.contract.evidence import QueryEvidence
from app.contract.transitions import LifecycleState, path
from app.contract.verdict import Mismatch
from app.db.copy_text import NULL, array_field, escaped, json_field
from app.decisions.record import INPUTS_VERSION, DecisionKind, DecisionOutcome
from app.index.matcher import Candidate
from app.index.registered import ScopeIdentity
from app.index.scopes import TenantHashing
from app.policy.document import advisory_mismatches
from app.policy.provider import ActivePolicy

_HEADS_CACHE_ENTRIES: Final = 4_096
_MAX_RECORDED_EXCLUSIONS: Final = 256
_NOTHING_EXCLUDED: Final = "[]"
_KIND: Final = DecisionKind.LOOKUP.value
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)


class Exclusion(msgspec.Struct, frozen=True, gc=False):
    """A candidate that covers the query and may not be used, and why."""

    candidate: Candidate
    mismatch: Mismatch


class End(msgspec.Struct, frozen=True, gc=False):
    """How a lookup ends, and the states it went through to get there."""

    outcome: str
    path: str

    @classmethod
    def of(cls, outcome: DecisionOutcome, *through: LifecycleState) -> "End":
        return cls(outcome.value, array_field(path(*through)))


class InputsHead(msgspec.Struct, frozen=True, gc=False):
    """What repeats from one decision to the next, as fields; kept once for all of them."""

    tenant: str
    scope_fields: str
    policy: str
    inputs: str


class LookupObservation(msgspec.Struct, frozen=True, gc=False):
    """One answered lookup, without its tokens."""

    recorder: "LookupRecorder"
    decision_id: UUID
    created_us: int
    head: InputsHead
    query_tokens: int
    input_fingerprint: str
    key_id: str
    trace_id: str | None
    freshness: str
    end: End
    reason: str | None
    winner: Candidate | None
    excluded: Sequence[Exclusion]
    identity_hash: bytes | None
    candidates: int
    truncated: int
    index_revision: int
    latency_us: int

    def fields(self) -> str:
        return self.recorder.fields(self)


class LookupRecorder:
    """Makes rows of observations; what repeats from one to the next is encoded once."""

    def __init__(
        self, hashing: TenantHashing, active: ActivePolicy, *, max_candidates: int
    ) -> None:
        self._hashing = hashing
        self._active = active
        self._max_candidates = max_candidates
        self._heads: dict[tuple[ScopeIdentity, int], InputsHead] = {}
        self._second = -1
        self._second_text = ""

    def fields(self, seen: LookupObservation) -> str:
        """The columns of `Decision` in their order: one line, because each costs as a value."""
        decision_id, winner = seen.decision_id, seen.winner
        identity_hash = NULL if seen.identity_hash is None else f"\\\\x{seen.identity_hash.hex()}"
        if winner is None:
            found = f"{NULL}\t{NULL}"
            compatibility = NULL
        else:
            found = f"{escaped(winner.state.entry_id)}\t{winner.state.state_id}"
            compatibility = _COMPATIBLE_JSON
        return (
            f"{decision_id}\t{self._time_field(seen.created_us)}\t{seen.head.scope_fields}\t"
            f"{_KIND}\t{seen.end.outcome}\t{seen.reason or NULL}\t{identity_hash}\t"
            f"{NULL}\t{decision_id}\t"  # no parent: a lookup begins its chain
            f"{escaped(seen.key_id)}\t{seen.trace_id or decision_id.hex}\t{seen.head.policy}\t"
            f"{found}\t{_match_field(seen, winner)}\t{compatibility}\t"
            f"{_excluded_field(seen.excluded)}\t"
            f"{NULL}\t{NULL}\t{seen.end.path}\t"  # neither estimate nor selected_path
            f"{seen.index_revision}\t{seen.latency_us}\t{self._inputs_field(seen)}"
        )

    def head(
        self, scope: ScopeIdentity, evidence: QueryEvidence, number: int, active: ActivePolicy
    ) -> InputsHead:
        """The repeating part of decisions of this scope with this evidence, under this policy.

        Made once, so that an observation keeps one value alive and none of its request.
        """
        if active is not self._active:
            self._heads.clear()
            self._active = active
        key = (scope, number)
        head = self._heads.get(key)
        if head is None:
            head = InputsHead(
                scope.tenant,
                "\t".join(map(escaped, (scope.tenant, scope.namespace, scope.model))),
                escaped(active.label),
                json_field(self._encoded_head(scope, evidence)),
            )
            if len(self._heads) >= _HEADS_CACHE_ENTRIES:
                self._heads.clear()
            self._heads[key] = head
        return head

    def _time_field(self, created_us: int) -> str:
        second, micros = divmod(created_us, 1_000_000)
        if second != self._second:
            self._second = second
            self._second_text = f"{_EPOCH + timedelta(seconds=second):%Y-%m-%d %H:%M:%S}"
        return f"{self._second_text}.{micros:06d}+00"

    def _inputs_field(self, seen: LookupObservation) -> str:
        """What the decision was made from."""
        # The caller's own hash of its prompt is not keyed; only ours leaves the process.
        fingerprint = self._hashing.fingerprint(seen.head.tenant, seen.input_fingerprint.encode())
        return (
            f'{seen.head.inputs},"query_tokens":{seen.query_tokens},'
            f'"input_fingerprint":"{fingerprint}","freshness":"{seen.freshness}"}}'
        )

    def _encoded_head(self, scope: ScopeIdentity, evidence: QueryEvidence) -> str:
        return _json(
            {
                "v": INPUTS_VERSION,
                "engine_family": scope.engine_family,
                "semantic_type": scope.semantic_type,
                "model_identity": evidence.model_identity,
                "input_semantic_identity": evidence.input_semantic_identity,
                "max_candidates": self._max_candidates,
                "advisory": advisory_mismatches(self._active.policy, scope.tenant, scope.namespace),
            }
        )[:-1]


_encode = msgspec.json.Encoder().encode


def _json(value: object) -> str:
    return _encode(value).decode()


_COMPATIBLE_JSON: Final = _json({"reusable": True, "reason": "compatible"})


def _match_field(seen: LookupObservation, winner: Candidate | None) -> str:
    """What the index found; how many were looked at and excluded, of which `excluded` lists 256."""
    if winner is not None:
        return (
            f'{{"classification":"{winner.classification}",'
            f'"matched_tokens":{winner.matched_tokens},{_counts(seen)},'
            f"{json_field(winner.state.facts)}"
        )
    return f"{{{_counts(seen)}}}" if seen.candidates else NULL


def _counts(seen: LookupObservation) -> str:
    return (
        f'"candidates":{seen.candidates},"truncated":{seen.truncated},'
        f'"excluded":{len(seen.excluded)}'
    )


def _excluded_field(excluded: Sequence[Exclusion]) -> str:
    if not excluded:
        return _NOTHING_EXCLUDED
    listed = _json(
        [
            {
                "entry_id": exclusion.candidate.state.entry_id,
                "classification": exclusion.candidate.classification,
                "matched_tokens": exclusion.candidate.matched_tokens,
                "reason": exclusion.mismatch.reason,
                "field": exclusion.mismatch.field,
            }
            for exclusion in excluded[:_MAX_RECORDED_EXCLUSIONS]
        ]
    )
    return json_field(listed)
