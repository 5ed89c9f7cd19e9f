"""The first slice: describe, match, validate, observe.

Reads the index and nothing else: no database, no write but the decision. A hit is safe to answer
from a replica's memory because estimate and materialize check Postgres again.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple
from uuid import UUID

import msgspec

from app.clock import Clock, IdSource
from app.contract.compatibility import Compatible, Mismatch, compare
from app.contract.enums import (
    ExclusionReason,
    FallbackReason,
    MatchClassification,
    StateSemanticType,
)
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
_INPUTS_CACHE_ENTRIES: Final = 4_096
_CACHE_MISS: Final = FallbackReason.CACHE_MISS.value
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


class Hit(msgspec.Struct, frozen=True, gc=False):
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


class _Asked(NamedTuple):
    """One lookup on its way through the steps."""

    decision_id: UUID
    query: LookupQuery
    caller: Caller
    freshness: Freshness


class _Judged(NamedTuple):
    """Candidates looked at: those excluded before the winner, and the winner if there is one."""

    matches: Matches
    winner: Candidate | None
    excluded: list[Exclusion]


class _End(NamedTuple):
    """How a lookup ends, and the states it went through to get there."""

    outcome: DecisionOutcome
    path: list[str]


_S = LifecycleState
_HIT: Final = _End(DecisionOutcome.HIT, list(path(_S.DESCRIBED, _S.MATCHED, _S.VALIDATED)))
_NO_MATCH: Final = list(path(_S.DESCRIBED, _S.RECOMPUTED, _S.OBSERVED))
_MISS: Final = _End(DecisionOutcome.MISS, _NO_MATCH)
_UNKNOWN: Final = _End(DecisionOutcome.UNKNOWN, _NO_MATCH)
_EXCLUDED: Final = _End(
    DecisionOutcome.EXCLUDED, list(path(_S.DESCRIBED, _S.MATCHED, _S.RECOMPUTED, _S.OBSERVED))
)
_REJECTED: Final = _End(DecisionOutcome.REJECTED, list(path(_S.DESCRIBED, _S.SKIPPED, _S.OBSERVED)))


class Lookup:
    """Answers lookups from the index of this process."""

    def __init__(
        self,
        index: StateIndex,
        sink: DecisionSink,
        policy: ExecutionPolicy,
        *,
        clock: Clock,
        ids: IdSource,
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
        self._inputs: dict[tuple[ScopeIdentity, int], str] = {}

    def run(self, query: LookupQuery, caller: Caller, freshness: Freshness) -> Hit | Miss | Refused:
        """Exactly one decision is recorded, unless the key lacks the tenant: then none."""
        if not caller.principal.may_use(query.scope.tenant):
            # Nothing may be written into the history of a tenant that the caller only named.
            return Refused(
                NexusError(ErrorCode.TENANT_FORBIDDEN, "this key may not act for that tenant"), None
            )
        asked = _Asked(self._ids.uuid7(), query, caller, freshness)
        if query.scope.semantic_type not in _SEMANTIC_TYPES:
            error = NexusError(
                ErrorCode.UNSUPPORTED_IDENTITY,
                "identity.semantic_type is not a state type of nexuskv.contract.v1",
            )
            self._record(asked, None, _REJECTED, error.code.value)
            return Refused(error, asked.decision_id)
        return self._answer(asked, self._judge(query))

    def _answer(self, asked: _Asked, judged: _Judged) -> Hit | Miss | Refused:
        decision_id, excluded = asked.decision_id, judged.excluded
        if judged.winner is not None:
            self._record(asked, judged, _HIT, None)
            return Hit(judged.winner, self._grant(asked, judged.winner, judged), decision_id)
        if asked.freshness is not Freshness.CURRENT:
            # A compatible state may be registered that is not here yet: nothing is said for sure.
            self._record(asked, judged, _UNKNOWN, f"index_{asked.freshness.value}")
            return Miss(False, decision_id)
        if excluded:
            self._record(asked, judged, _EXCLUDED, excluded[0].mismatch.reason.value)
            error = _evidence_error(excluded)
            return Refused(error, decision_id) if error else Miss(True, decision_id)
        self._record(asked, judged, _MISS, _CACHE_MISS)
        return Miss(True, decision_id)

    def _judge(self, query: LookupQuery) -> _Judged:
        limit = self._max_candidates
        while True:
            matches = self._index.match(query.scope, query.tokens, max_candidates=limit)
            excluded: list[Exclusion] = []
            for candidate in matches.candidates:
                verdict = self._verdict(query, candidate)
                if isinstance(verdict, Compatible):
                    return _Judged(matches, candidate, excluded)
                excluded.append(Exclusion(candidate, verdict))
            if not matches.truncated or limit >= _MAX_CANDIDATES:
                return _Judged(matches, None, excluded)
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

    def _grant(self, asked: _Asked, winner: Candidate, judged: _Judged) -> SourceGrant:
        return SourceGrant(
            tenant=asked.query.scope.tenant,
            state_id=winner.state.state_id,
            generation=winner.state.generation,
            matched_tokens=winner.matched_tokens,
            identity_hash=judged.matches.identity_hash,
            lookup_id=asked.decision_id,
            expires_us=self._clock.now_us() + self._ttl_us,
        )

    def _record(self, asked: _Asked, judged: _Judged | None, end: _End, reason: str | None) -> None:
        decision_id, query, caller, _ = asked
        winner = judged.winner if judged else None
        self._sink.record(
            Decision(
                decision_id=decision_id,
                created_at=self._clock.now(),
                tenant=query.scope.tenant,
                namespace=query.scope.namespace,
                model=query.scope.model,
                kind=DecisionKind.LOOKUP,
                outcome=end.outcome,
                fallback_reason=reason,
                identity_hash=judged.matches.identity_hash if judged else None,
                parent_id=None,
                root_id=decision_id,
                key_id=caller.principal.key_id,
                trace_id=caller.trace_id or decision_id.hex,
                policy_version=self._policy.version,
                entry_id=winner.state.entry_id if winner else None,
                state_id=winner.state.state_id if winner else None,
                match=_match_json(winner, judged.matches) if winner and judged else None,
                compatibility=_COMPATIBLE_JSON if winner else None,
                excluded=_excluded_json(judged.excluded) if judged else _NOTHING_EXCLUDED,
                estimate=None,
                selected_path=None,
                path=end.path,
                index_revision=self._index.revision,
                latency_us=self._clock.monotonic_us() - caller.started_us,
                inputs=self._inputs_json(asked),
            )
        )

    def _inputs_json(self, asked: _Asked) -> str:
        """What the decision was made from. All but three values repeat with the evidence."""
        query = asked.query
        scope, evidence = query.scope, query.evidence
        key = (scope, query.evidence_number)
        constant = self._inputs.get(key)
        if constant is None:
            constant = self._constant_inputs(query)
            if len(self._inputs) >= _INPUTS_CACHE_ENTRIES:
                self._inputs.clear()
            self._inputs[key] = constant
        # The caller's own hash of its prompt is not keyed; only ours leaves the process.
        fingerprint = self._index.hashing.fingerprint(
            scope.tenant, evidence.input_fingerprint.encode()
        )
        return (
            f'{constant},"query_tokens":{len(query.tokens)},"input_fingerprint":"{fingerprint}",'
            f'"freshness":"{asked.freshness.value}"}}'
        )

    def _constant_inputs(self, query: LookupQuery) -> str:
        """An open JSON object."""
        scope = query.scope
        return _json(
            {
                "v": INPUTS_VERSION,
                "engine_family": scope.engine_family,
                "semantic_type": scope.semantic_type,
                "model_identity": query.evidence.model_identity,
                "input_semantic_identity": query.evidence.input_semantic_identity,
                "max_candidates": self._max_candidates,
                "advisory": advisory_mismatches(self._policy, scope.tenant, scope.namespace),
            }
        )[:-1]


_encode = msgspec.json.Encoder().encode


def _json(value: object) -> str:
    return _encode(value).decode()


_NOTHING_EXCLUDED: Final = "[]"
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
