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
from app.contract.verdict import Mismatch
from app.decisions.record import INPUTS_VERSION, Decision, DecisionKind, DecisionOutcome
from app.index.matcher import Candidate
from app.index.registered import ScopeIdentity
from app.index.scopes import TenantHashing
from app.policy.document import ExecutionPolicy, advisory_mismatches

_HEADS_CACHE_ENTRIES: Final = 4_096
_MAX_RECORDED_EXCLUSIONS: Final = 256
_NOTHING_EXCLUDED: Final = "[]"
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)


class Exclusion(msgspec.Struct, frozen=True, gc=False):
    """A candidate that covers the query and may not be used, and why."""

    candidate: Candidate
    mismatch: Mismatch


class End(msgspec.Struct, frozen=True, gc=False):
    """How a lookup ends, and the states it went through to get there."""

    outcome: DecisionOutcome
    path: list[str]


class LookupObservation(msgspec.Struct, frozen=True, gc=False):
    """One answered lookup, without its tokens."""

    recorder: "LookupRecorder"
    decision_id: UUID
    created_us: int
    scope: ScopeIdentity
    query_tokens: int
    inputs_head: str
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

    def decision(self) -> Decision:
        return self.recorder.decision(self)


class LookupRecorder:
    """Makes rows of observations; what repeats from one to the next is encoded once."""

    def __init__(
        self, hashing: TenantHashing, policy: ExecutionPolicy, *, max_candidates: int
    ) -> None:
        self._hashing = hashing
        self._policy = policy
        self._max_candidates = max_candidates
        self._heads: dict[tuple[ScopeIdentity, int], str] = {}

    def decision(self, seen: LookupObservation) -> Decision:
        """The row of one lookup."""
        decision_id, scope, winner = seen.decision_id, seen.scope, seen.winner
        return Decision(
            decision_id,
            _EPOCH + timedelta(microseconds=seen.created_us),
            scope.tenant,
            scope.namespace,
            scope.model,
            DecisionKind.LOOKUP,
            seen.end.outcome,
            seen.reason,
            seen.identity_hash,
            None,  # parent_id: a lookup begins its chain
            decision_id,
            seen.key_id,
            seen.trace_id or decision_id.hex,
            self._policy.version,
            winner.state.entry_id if winner else None,
            winner.state.state_id if winner else None,
            _match_json(seen, winner),
            _COMPATIBLE_JSON if winner else None,
            _excluded_json(seen.excluded),
            None,  # estimate
            None,  # selected_path
            seen.end.path,
            seen.index_revision,
            seen.latency_us,
            self._inputs_json(seen),
        )

    def inputs_head(self, scope: ScopeIdentity, evidence: QueryEvidence, number: int) -> str:
        """What repeats in the inputs of every decision with this evidence: an open JSON object.

        Encoded once, so that an observation keeps one string alive and none of its request.
        """
        key = (scope, number)
        head = self._heads.get(key)
        if head is None:
            head = self._encoded_head(scope, evidence)
            if len(self._heads) >= _HEADS_CACHE_ENTRIES:
                self._heads.clear()
            self._heads[key] = head
        return head

    def _inputs_json(self, seen: LookupObservation) -> str:
        """What the decision was made from."""
        # The caller's own hash of its prompt is not keyed; only ours leaves the process.
        fingerprint = self._hashing.fingerprint(seen.scope.tenant, seen.input_fingerprint.encode())
        return (
            f'{seen.inputs_head},"query_tokens":{seen.query_tokens},'
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
                "advisory": advisory_mismatches(self._policy, scope.tenant, scope.namespace),
            }
        )[:-1]


_encode = msgspec.json.Encoder().encode


def _json(value: object) -> str:
    return _encode(value).decode()


_COMPATIBLE_JSON: Final = _json({"reusable": True, "reason": "compatible"})


def _match_json(seen: LookupObservation, winner: Candidate | None) -> str | None:
    """What the index found; how many were looked at and excluded, of which `excluded` lists 256."""
    if winner is not None:
        return (
            f'{{"classification":"{winner.classification}",'
            f'"matched_tokens":{winner.matched_tokens},{_counts(seen)},{winner.state.facts}'
        )
    return f"{{{_counts(seen)}}}" if seen.candidates else None


def _counts(seen: LookupObservation) -> str:
    return (
        f'"candidates":{seen.candidates},"truncated":{seen.truncated},'
        f'"excluded":{len(seen.excluded)}'
    )


def _excluded_json(excluded: Sequence[Exclusion]) -> str:
    if not excluded:
        return _NOTHING_EXCLUDED
    return _json(
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
