"""The first slice: describe, match, validate, observe.

Reads the index and nothing else: no database, no write but the decision. A hit is safe to answer
from a replica's memory because estimate and materialize check Postgres again.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final
from uuid import UUID

import msgspec

from app.clock import Clock, IdSource
from app.contract.compatibility import Compatible, Mismatch, compare
from app.contract.enums import ExclusionReason, MatchClassification, StateSemanticType
from app.contract.evidence import QueryEvidence
from app.contract.transitions import LifecycleState, path
from app.decisions.record import INPUTS_VERSION, Decision, DecisionKind, DecisionOutcome
from app.decisions.writer import DecisionSink
from app.errors import ErrorCode, NexusError
from app.execution.grants import SourceGrant
from app.index.matcher import Candidate, Freshness, Matches, StateIndex
from app.index.registered import ScopeIdentity
from app.lifecycle.caller import Caller, Refused
from app.lifecycle.queries import LookupQuery
from app.policy.document import ExecutionPolicy, advisory_mismatches

_SEMANTIC_TYPES: Final = frozenset(StateSemanticType)
_VERDICT_CACHE_ENTRIES: Final = 65_536
# When every candidate of a page is excluded the search widens, up to this many.
_MAX_CANDIDATES: Final = 4_096
_MAX_RECORDED_EXCLUSIONS: Final = 32
_US_PER_S: Final = 1_000_000
_EVIDENCE_REASONS: Final = frozenset(
    {
        ExclusionReason.EVIDENCE_MISSING,
        ExclusionReason.EVIDENCE_MISMATCH,
        ExclusionReason.FINGERPRINT_MISMATCH,
    }
)

_S = LifecycleState
_PATH_HIT: Final = list(path(_S.DESCRIBED, _S.MATCHED, _S.VALIDATED))
_PATH_MISS: Final = list(path(_S.DESCRIBED, _S.RECOMPUTED, _S.OBSERVED))
_PATH_EXCLUDED: Final = list(path(_S.DESCRIBED, _S.MATCHED, _S.RECOMPUTED, _S.OBSERVED))
_PATH_REJECTED: Final = list(path(_S.DESCRIBED, _S.SKIPPED, _S.OBSERVED))


@dataclass(frozen=True, slots=True)
class Hit:
    """The best compatible candidate, and the grant to ask for its estimate."""

    candidate: Candidate
    grant: SourceGrant
    decision_id: UUID


@dataclass(frozen=True, slots=True)
class Miss:
    """Nothing reusable was found; `known` is False where the index could not tell."""

    known: bool
    decision_id: UUID


@dataclass(frozen=True, slots=True)
class Exclusion:
    """A candidate that covers the query and may not be used, and why."""

    candidate: Candidate
    mismatch: Mismatch


class _Judged:
    """Candidates looked at so far: the excluded ones, and the winner if there is one."""

    __slots__ = ("excluded", "winner")

    def __init__(self) -> None:
        self.excluded: list[Exclusion] = []
        self.winner: Candidate | None = None


class Lookup:
    """Answers lookups from the index of this process."""

    def __init__(
        self,
        index: StateIndex,
        sink: DecisionSink,
        policy: ExecutionPolicy,
        clock: Clock,
        ids: IdSource,
        *,
        max_candidates: int,
        source_handle_ttl_s: float,
    ) -> None:
        self._index = index
        self._sink = sink
        self._policy = policy
        self._clock = clock
        self._ids = ids
        self._max_candidates = max_candidates
        self._ttl_us = round(source_handle_ttl_s * _US_PER_S)
        self._verdicts: dict[tuple[int, int], Compatible | Mismatch] = {}

    def run(self, query: LookupQuery, caller: Caller, freshness: Freshness) -> Hit | Miss | Refused:
        """Exactly one decision is recorded, unless the key lacks the tenant: then none."""
        tenant = query.scope.tenant
        if not caller.principal.may_use(tenant):
            # Nothing may be written into the history of a tenant that the caller only named.
            return Refused(
                NexusError(ErrorCode.TENANT_FORBIDDEN, "this key may not act for that tenant"), None
            )
        decision_id = self._ids.uuid7()
        if query.scope.semantic_type not in _SEMANTIC_TYPES:
            error = NexusError(
                ErrorCode.UNSUPPORTED_IDENTITY,
                "identity.semantic_type is not a state type of nexuskv.contract.v1",
            )
            self._record(
                decision_id, query, caller, freshness, None, _Judged(), DecisionOutcome.REJECTED,
                _PATH_REJECTED, error.code.value,
            )
            return Refused(error, decision_id)
        matches, judged = self._judge(query)
        return self._answer(decision_id, query, caller, freshness, matches, judged)

    def _answer(
        self,
        decision_id: UUID,
        query: LookupQuery,
        caller: Caller,
        freshness: Freshness,
        matches: Matches,
        judged: _Judged,
    ) -> Hit | Miss | Refused:
        winner = judged.winner
        if winner is not None:
            self._record(
                decision_id, query, caller, freshness, matches, judged, DecisionOutcome.HIT,
                _PATH_HIT, None,
            )
            return Hit(winner, self._grant(winner, matches, decision_id, query), decision_id)
        if judged.excluded:
            error = _evidence_error(judged.excluded)
            self._record(
                decision_id, query, caller, freshness, matches, judged, DecisionOutcome.EXCLUDED,
                _PATH_EXCLUDED, judged.excluded[0].mismatch.reason.value,
            )
            return Refused(error, decision_id) if error else Miss(True, decision_id)
        known = freshness is Freshness.CURRENT
        self._record(
            decision_id, query, caller, freshness, matches, judged,
            DecisionOutcome.MISS if known else DecisionOutcome.UNKNOWN,
            _PATH_MISS, "cache_miss" if known else f"index_{freshness.value}",
        )
        return Miss(known, decision_id)

    def _judge(self, query: LookupQuery) -> tuple[Matches, _Judged]:
        limit = self._max_candidates
        while True:
            matches = self._index.match(query.scope, query.tokens, max_candidates=limit)
            judged = _Judged()
            for candidate in matches.candidates:
                verdict = self._verdict(query, candidate)
                if isinstance(verdict, Compatible):
                    judged.winner = candidate
                    return matches, judged
                judged.excluded.append(Exclusion(candidate, verdict))
            if not matches.truncated or limit >= _MAX_CANDIDATES:
                return matches, judged
            limit *= 8

    def _verdict(self, query: LookupQuery, candidate: Candidate) -> Compatible | Mismatch:
        state = candidate.state
        key = (state.evidence_class, query.evidence_number)
        verdict = self._verdicts.get(key)
        if verdict is None:
            verdict = compare(state.entry, state.evidence, query.evidence, exact=False)
            if len(self._verdicts) >= _VERDICT_CACHE_ENTRIES:
                self._verdicts.clear()
            self._verdicts[key] = verdict
        if candidate.classification is not MatchClassification.EXACT or state.evidence is None:
            return verdict
        if state.evidence.input_fingerprint == query.evidence.input_fingerprint:
            return verdict
        return compare(state.entry, state.evidence, query.evidence, exact=True)

    def _grant(
        self, winner: Candidate, matches: Matches, decision_id: UUID, query: LookupQuery
    ) -> SourceGrant:
        return SourceGrant(
            tenant=query.scope.tenant,
            state_id=winner.state.state_id,
            generation=winner.state.generation,
            matched_tokens=winner.matched_tokens,
            identity_hash=matches.identity_hash,
            lookup_id=decision_id,
            expires_us=self._clock.now_us() + self._ttl_us,
        )

    def _record(
        self,
        decision_id: UUID,
        query: LookupQuery,
        caller: Caller,
        freshness: Freshness,
        matches: Matches | None,
        judged: _Judged,
        outcome: DecisionOutcome,
        taken: list[str],
        reason: str | None,
    ) -> None:
        scope, winner = query.scope, judged.winner
        self._sink.record(
            Decision(
                decision_id=decision_id,
                created_at=self._clock.now(),
                tenant=scope.tenant,
                namespace=scope.namespace,
                model=scope.model,
                kind=DecisionKind.LOOKUP,
                outcome=outcome,
                fallback_reason=reason,
                identity_hash=matches.identity_hash if matches else None,
                parent_id=None,
                root_id=decision_id,
                key_id=caller.principal.key_id,
                trace_id=caller.trace_id or decision_id.hex,
                policy_version=self._policy.version,
                entry_id=winner.state.entry_id if winner else None,
                state_id=winner.state.state_id if winner else None,
                match=_match_json(winner, matches) if winner and matches else None,
                compatibility=_COMPATIBLE_JSON if winner else None,
                excluded=_excluded_json(judged.excluded),
                estimate=None,
                selected_path=None,
                path=taken,
                index_revision=self._index.revision,
                latency_us=self._clock.monotonic_us() - caller.started_us,
                inputs=self._inputs_json(query, freshness),
            )
        )

    def _inputs_json(self, query: LookupQuery, freshness: Freshness) -> str:
        scope, evidence = query.scope, query.evidence
        return _json(
            {
                "v": INPUTS_VERSION,
                "engine_family": scope.engine_family,
                "semantic_type": scope.semantic_type,
                "query_tokens": len(query.tokens),
                "model_identity": evidence.model_identity,
                "input_semantic_identity": evidence.input_semantic_identity,
                # The caller's own hash of its prompt is not keyed; only ours leaves the process.
                "input_fingerprint": self._index.hashing.fingerprint(
                    scope.tenant, evidence.input_fingerprint.encode()
                ),
                "freshness": freshness.value,
                "max_candidates": self._max_candidates,
                "advisory": advisory_mismatches(self._policy, scope.tenant, scope.namespace),
            }
        )


_encode = msgspec.json.Encoder().encode


def _json(value: object) -> str:
    return _encode(value).decode()


_COMPATIBLE_JSON: Final = _json({"reusable": True, "reason": "compatible"})


def _match_json(winner: Candidate, matches: Matches) -> str:
    state = winner.state
    return _json(
        {
            "classification": winner.classification,
            "matched_tokens": winner.matched_tokens,
            "candidates": len(matches.candidates),
            "truncated": matches.truncated,
            "generation": state.generation,
            "tier": state.entry.location.tier,
            "locator": state.entry.location.locator,
        }
    )


def _excluded_json(excluded: Sequence[Exclusion]) -> str:
    if not excluded:
        return "[]"
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


def _evidence_error(excluded: Sequence[Exclusion]) -> NexusError | None:
    """A conflict only when every candidate failed for its evidence; else it is an ordinary miss."""
    reasons = {exclusion.mismatch.reason for exclusion in excluded}
    if not reasons <= _EVIDENCE_REASONS:
        return None
    if reasons == {ExclusionReason.EVIDENCE_MISSING}:
        return NexusError(
            ErrorCode.VALIDATION_EVIDENCE_MISSING,
            "every matching state was registered without evidence; register it with a validation",
        )
    fields = sorted({exclusion.mismatch.field for exclusion in excluded})
    return NexusError(
        ErrorCode.VALIDATION_EVIDENCE_MISMATCH,
        "every matching state was computed under another identity; differing: " + ", ".join(fields),
    )
