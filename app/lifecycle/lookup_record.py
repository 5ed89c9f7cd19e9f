"""Observe, for lookups: what is known of one is encoded as it is, into the spool.

A lookup is answered in microseconds, and building its row would be a third of that. So what repeats
from one lookup to the next is encoded once, and the row is made by whoever stores it.
"""

from collections.abc import Sequence
from typing import Final
from uuid import UUID

import msgspec

from app.contract.evidence import QueryEvidence
from app.contract.transitions import LifecycleState, path
from app.contract.verdict import Mismatch
from app.decisions.record import INPUTS_VERSION, Action, DecisionKind, DecisionOutcome, LostReason
from app.decisions.rows import NOTHING, LookupEnd, LookupRow, LookupScope, encode
from app.index.matcher import Candidate, Freshness, Matches
from app.index.registered import ScopeIdentity
from app.index.scopes import TenantHashing
from app.lifecycle.caller import Caller
from app.lifecycle.keeping import durability_of
from app.lifecycle.queries import LookupQuery
from app.planner.cost import REFERENCE, CostModel
from app.policy.document import advisory_mismatches
from app.policy.provider import ActivePolicy
from nexuskv_core import siphash_128

_SCOPES_CACHE_ENTRIES: Final = 4_096
_MAX_RECORDED_EXCLUSIONS: Final = 256
# Of a tier that the policy denies: where it lies is a worker that is silent or has lost it.
GONE: Final = "and a worker that is silent, or has lost it"


class Exclusion(msgspec.Struct, frozen=True, gc=False):
    """A candidate that covers the query and was not taken, and why it may not be used; behind the
    winner also None: only that it comes behind.
    """

    candidate: Candidate
    mismatch: Mismatch | None


class Judged(msgspec.Struct, frozen=True, gc=False):
    """Candidates looked at: those excluded before the winner, the winner if there is one, and the
    next ones behind it.
    """

    matches: Matches
    winner: Candidate | None
    excluded: list[Exclusion]
    # An engine that may have it could not be asked.
    unknown: bool = False
    runners_up: list[Exclusion] | None = None


class End(msgspec.Struct, frozen=True, gc=False):
    """How a lookup ends, encoded; the same for all that end so."""

    encoded: msgspec.Raw

    @classmethod
    def of(cls, outcome: DecisionOutcome, action: Action, *through: LifecycleState) -> "End":
        return cls(
            msgspec.Raw(encode(LookupEnd(outcome.value, action.value, list(path(*through)))))
        )


class RecordedScope(msgspec.Struct, frozen=True, gc=False):
    """What repeats from one lookup to the next, encoded, and what else of it a row needs."""

    fingerprint_key: bytes
    durability: str
    encoded: msgspec.Raw


class LookupRecorder:
    """Encodes lookups; what repeats from one to the next is encoded once."""

    def __init__(
        self,
        hashing: TenantHashing,
        active: ActivePolicy,
        *,
        max_candidates: int,
        costs: CostModel = REFERENCE,
    ) -> None:
        self._costs = costs
        self._hashing = hashing
        self._active = active
        self._max_candidates = max_candidates
        self._scopes: dict[tuple[ScopeIdentity, int], RecordedScope] = {}

    def encoded(  # noqa: PLR0917 - called once a lookup; keywords would cost it a microsecond
        self,
        decision_id: UUID,
        query: LookupQuery,
        caller: Caller,
        freshness: Freshness,
        active: ActivePolicy,
        judged: Judged,
        end: End,
        reason: str | None,
        index_revision: int,
        latency_us: int,
    ) -> bytes:
        """One answered lookup, as `app.decisions.rows` reads it."""
        evidence, matches, winner = query.evidence, judged.matches, judged.winner
        excluded, others = judged.excluded, judged.runners_up
        scope = self._scope(query, active)
        return encode(
            LookupRow(
                decision_id.bytes,
                scope.encoded,
                end.encoded,
                len(query.tokens),
                # The caller's own hash of its prompt is not keyed; only ours leaves the process.
                siphash_128(scope.fingerprint_key, evidence.input_fingerprint.encode()).hex(),
                caller.principal.key_id,
                caller.trace_id,
                freshness,
                scope.durability,
                reason,
                NOTHING if winner is None else winner.state.facts,
                None if winner is None else winner.classification,
                0 if winner is None else winner.matched_tokens,
                _listed(excluded, 0) if excluded else "",
                len(excluded),
                matches.identity_hash,
                len(matches.candidates),
                matches.truncated,
                index_revision,
                latency_us,
                "" if winner is None or not others else _listed(others, winner.matched_tokens),
                judged.unknown,
            )
        )

    def _scope(self, query: LookupQuery, active: ActivePolicy) -> RecordedScope:
        """The repeating part of lookups of this scope with this evidence, under this policy."""
        if active is not self._active:
            self._scopes.clear()
            self._active = active
        key = (query.scope, query.evidence_number)
        found = self._scopes.get(key)
        if found is None:
            if len(self._scopes) >= _SCOPES_CACHE_ENTRIES:
                self._scopes.clear()
            found = self._encoded_scope(query.scope, query.evidence, active)
            self._scopes[key] = found
        return found

    def _encoded_scope(
        self, scope: ScopeIdentity, evidence: QueryEvidence, active: ActivePolicy
    ) -> RecordedScope:
        inputs = _json(
            {
                "v": INPUTS_VERSION,
                "engine_family": scope.engine_family,
                "semantic_type": scope.semantic_type,
                "model_identity": evidence.model_identity,
                "input_semantic_identity": evidence.input_semantic_identity,
                "max_candidates": self._max_candidates,
                "cost_profile": self._costs.name,
                "advisory": advisory_mismatches(active.policy, scope.tenant, scope.namespace),
            }
        )[:-1]
        return RecordedScope(
            self._hashing.fingerprint_key(scope.tenant),
            durability_of(active.policy, DecisionKind.LOOKUP),
            msgspec.Raw(
                encode(
                    LookupScope(scope.tenant, scope.namespace, scope.model, active.label, inputs)
                )
            ),
        )


def _listed(candidates: Sequence[Exclusion], winner_tokens: int) -> str:
    """What was not taken, as JSON: why not, and what pricing it needs."""
    return _json([_as_listed(one, winner_tokens) for one in candidates[:_MAX_RECORDED_EXCLUSIONS]])


def _as_listed(one: Exclusion, winner_tokens: int) -> dict[str, object]:
    candidate, mismatch = one.candidate, one.mismatch
    state = candidate.state
    listed: dict[str, object] = {
        "entry_id": state.entry_id,
        "classification": candidate.classification,
        "matched_tokens": candidate.matched_tokens,
        "tier": state.tier,
        "token_count": state.token_count,
        "payload_bytes": state.payload_bytes,
    }
    if mismatch is None:
        shorter = candidate.matched_tokens < winner_tokens
        listed["reason"] = LostReason.SHORTER_MATCH if shorter else LostReason.RANKED_LOWER
        return listed
    listed["reason"], listed["field"] = mismatch.reason, mismatch.field
    if mismatch.found is GONE:
        listed["unavailable"] = True
    return listed


def _json(value: object) -> str:
    return msgspec.json.encode(value).decode()
