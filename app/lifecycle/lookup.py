"""The first slice: describe, match, validate, observe.

Reads the index and nothing else: no database, no write but the decision. A hit is safe to answer
from a replica's memory because estimate and materialize check Postgres again.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Final, Protocol
from uuid import UUID

import msgspec

from app.clock import Clock, IdSource
from app.contract.compatibility import Compatible, Mismatch, compare
from app.contract.enums import (
    ExclusionReason,
    FallbackReason,
    MatchClassification,
    StateSemanticType,
    TierKind,
    TransferBackend,
)
from app.contract.transitions import LifecycleState
from app.decisions.record import Action, DecisionOutcome
from app.engines.backed import Backed
from app.errors import ErrorCode, NexusError
from app.execution.grants import SourceGrant
from app.index.matcher import Candidate, Freshness, Matches, StateIndex
from app.index.registered import ScopeIdentity
from app.lifecycle.caller import Caller, Refused
from app.lifecycle.keeping import DecisionSink
from app.lifecycle.lookup_record import GONE, End, Exclusion, Judged, LookupRecorder
from app.lifecycle.observe import Policies
from app.lifecycle.placing import Directory
from app.lifecycle.queries import LookupQuery
from app.policy.document import ExecutionPolicy
from app.policy.evaluate import denial
from app.policy.provider import ActivePolicy
from nexuskv_core import TokenText

_SEMANTIC_TYPES: Final = frozenset(StateSemanticType)
_VERDICT_CACHE_ENTRIES: Final = 65_536
# So many of those behind the winner are judged as well, for the record.
_MAX_RUNNERS_UP: Final = 8
# When every candidate of a page is excluded the search widens, up to this many.
_MAX_CANDIDATES: Final = 4_096
_US_PER_S: Final = 1_000_000
_CACHE_MISS: Final = FallbackReason.CACHE_MISS.value
_ENGINES_UNKNOWN: Final = "engines_unknown"
_EVIDENCE_REASONS: Final = frozenset(
    {
        ExclusionReason.EVIDENCE_MISSING,
        ExclusionReason.EVIDENCE_MISMATCH,
        ExclusionReason.FINGERPRINT_MISMATCH,
    }
)

_TIER_DENIED: Final = Mismatch(
    "location.tier", ExclusionReason.POLICY_DENIED, "a tier that the policy reads", None
)
# The same, and another policy would not help: see `rerun`.
_TIER_DENIED_AND_GONE: Final = Mismatch(
    "location.tier", ExclusionReason.POLICY_DENIED, "a tier that the policy reads", GONE
)
_OUT_OF_REACH: Final = Mismatch(
    "location.locator", ExclusionReason.UNAVAILABLE, "a worker that is heard and holds it", None
)

_S = LifecycleState
_RECOMPUTED: Final = (_S.RECOMPUTED, _S.OBSERVED)
_HIT: Final = End.of(DecisionOutcome.HIT, Action.REUSE, _S.DESCRIBED, _S.MATCHED, _S.VALIDATED)
_MISS: Final = End.of(DecisionOutcome.MISS, Action.RECOMPUTE, _S.DESCRIBED, *_RECOMPUTED)
_UNKNOWN: Final = End.of(DecisionOutcome.UNKNOWN, Action.RECOMPUTE, _S.DESCRIBED, *_RECOMPUTED)
_EXCLUDED: Final = End.of(
    DecisionOutcome.EXCLUDED, Action.RECOMPUTE, _S.DESCRIBED, _S.MATCHED, *_RECOMPUTED
)
_UNAVAILABLE: Final = End.of(
    DecisionOutcome.UNAVAILABLE, Action.RECOMPUTE, _S.DESCRIBED, _S.MATCHED, *_RECOMPUTED
)
_REJECTED: Final = End.of(
    DecisionOutcome.REJECTED, Action.SKIP, _S.DESCRIBED, _S.SKIPPED, _S.OBSERVED
)


class Hit(msgspec.Struct, frozen=True, gc=False):
    """The best compatible candidate, and the grant to ask for its estimate."""

    candidate: Candidate
    grant: SourceGrant
    decision_id: UUID


class MissKind(StrEnum):
    """Why there is no hit. Only the first says that the state is nowhere."""

    MISS = "miss"
    UNKNOWN = "unknown"  # the index could not tell
    UNAVAILABLE = "unavailable"  # it is on a worker that is silent or has lost it


@dataclass(frozen=True, slots=True)
class Miss:
    """Nothing reusable was found."""

    kind: MissKind
    decision_id: UUID


class EngineStates(Protocol):
    """States that engines' blocks back."""

    def find(self, scope: ScopeIdentity, tokens: TokenText) -> Backed:
        """Candidates in no order."""


_NOT_JUDGED: Final = Judged(Matches(None, [], 0), None, [])


class Lookup:
    """Answers lookups from the index of this process."""

    def __init__(
        self,
        index: StateIndex,
        sink: DecisionSink,
        policies: Policies,
        directory: Directory,
        engines: EngineStates,
        *,
        clock: Clock,
        ids: IdSource,
        max_candidates: int,
        source_handle_ttl_s: float,
    ) -> None:
        self._index = index
        self._sink = sink
        self._policies = policies
        self._directory = directory
        self._engines = engines
        self._read_under: ActivePolicy | None = None
        self._readable: frozenset[str] = frozenset()
        self._clock = clock
        self._ids = ids
        self._max_candidates = max_candidates
        self._ttl_us = round(source_handle_ttl_s * _US_PER_S)
        self._recorder = LookupRecorder(
            index.hashing, policies.current, max_candidates=max_candidates
        )
        self._verdicts: dict[tuple[int, int], Compatible | Mismatch] = {}

    def run(self, query: LookupQuery, caller: Caller, freshness: Freshness) -> Hit | Miss | Refused:
        """Exactly one decision is recorded, unless the key lacks the tenant: then none."""
        if not caller.principal.may_use(query.scope.tenant):
            # Nothing may be written into the history of a tenant that the caller only named.
            return Refused(
                NexusError(ErrorCode.TENANT_FORBIDDEN, "this key may not act for that tenant"), None
            )
        decision_id = self._ids.uuid7()
        # Taken once: a lookup ends under the policy that it began with.
        active = self._policies.current
        if query.scope.semantic_type not in _SEMANTIC_TYPES:
            error = NexusError(
                ErrorCode.UNSUPPORTED_IDENTITY,
                "identity.semantic_type is not a state type of nexuskv.contract.v1",
            )
            reason = error.code.value
            self._observe(
                decision_id, query, caller, freshness, active, _NOT_JUDGED, _REJECTED, reason
            )
            return Refused(error, decision_id)
        judged = self._judge(query, active)
        if judged.winner is not None:
            self._observe(decision_id, query, caller, freshness, active, judged, _HIT, None)
            return Hit(judged.winner, self._grant(decision_id, query, judged), decision_id)
        end, reason, answer = _without_winner(decision_id, judged, freshness)
        self._observe(decision_id, query, caller, freshness, active, judged, end, reason)
        return answer

    def _judge(self, query: LookupQuery, active: ActivePolicy) -> Judged:
        if active is not self._read_under:
            self._read_under, self._readable = active, readable_tiers(active.policy)
        limit = self._max_candidates
        backed = self._engines.find(query.scope, query.tokens)
        while True:
            matches = self._index.match(query.scope, query.tokens, max_candidates=limit)
            if backed.candidates:
                matches = _merged(matches, backed.candidates)
            excluded: list[Exclusion] = []
            for candidate in matches.candidates:
                obstacle = self._obstacle(query, candidate)
                if obstacle is None:
                    behind = matches.candidates[len(excluded) + 1 :]
                    others = self._runners_up(query, behind) if behind else None
                    return Judged(matches, candidate, excluded, backed.unknown, others)
                excluded.append(Exclusion(candidate, obstacle))
            if not matches.truncated or limit >= _MAX_CANDIDATES:
                return Judged(matches, None, excluded, backed.unknown)
            limit *= 8

    def _runners_up(self, query: LookupQuery, behind: list[Candidate]) -> list[Exclusion]:
        return [
            Exclusion(candidate, self._obstacle(query, candidate))
            for candidate in behind[:_MAX_RUNNERS_UP]
        ]

    def _obstacle(self, query: LookupQuery, candidate: Candidate) -> Mismatch | None:
        """Why the candidate may not be used; None when it may."""
        verdict = self._verdict(query, candidate)
        return verdict if isinstance(verdict, Mismatch) else self._reach(candidate)

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

    def _reach(self, candidate: Candidate) -> Mismatch | None:
        """What keeps a compatible state from being brought; None when nothing is known to."""
        state = candidate.state
        gone = False
        if state.payload is not None:
            worker, payload_id = state.payload
            # A name that nobody registered is no worker of ours: the engine knows the way.
            status = self._directory.status(worker, state.registered_us, state.tenant, payload_id)
            gone = status == "unavailable"
        if state.tier not in self._readable:
            return _TIER_DENIED_AND_GONE if gone else _TIER_DENIED
        return _OUT_OF_REACH if gone else None

    def _grant(self, decision_id: UUID, query: LookupQuery, judged: Judged) -> SourceGrant:
        winner, identity_hash = judged.winner, judged.matches.identity_hash
        assert winner is not None
        assert identity_hash is not None
        return SourceGrant(
            query.scope.tenant,
            winner.state.state_id,
            winner.state.generation,
            winner.matched_tokens,
            identity_hash,
            decision_id,
            self._clock.now_us() + self._ttl_us,
        )

    def _observe(  # noqa: PLR0917 - called once a lookup; keywords would cost it a microsecond
        self,
        decision_id: UUID,
        query: LookupQuery,
        caller: Caller,
        freshness: Freshness,
        active: ActivePolicy,
        judged: Judged,
        end: End,
        reason: str | None,
    ) -> None:
        self._sink.append(
            self._recorder.encoded(
                decision_id,
                query,
                caller,
                freshness,
                active,
                judged,
                end,
                reason,
                self._index.revision,
                self._clock.monotonic_us() - caller.started_us,
            )
        )


def readable_tiers(policy: ExecutionPolicy) -> frozenset[str]:
    """The tiers, as plain text, from which the policy lets some backend read."""
    return frozenset(
        tier.value
        for tier in TierKind
        if any(denial(policy, backend, source_tier=tier) is None for backend in TransferBackend)
    )


def _merged(matches: Matches, backed: list[Candidate]) -> Matches:
    """The longest first; among equals those that are registered to the token."""
    both = sorted([*matches.candidates, *backed], key=lambda one: -one.matched_tokens)
    return Matches(matches.identity_hash, both, matches.truncated)


def _without_winner(
    decision_id: UUID, judged: Judged, freshness: Freshness
) -> tuple[End, str, Miss | Refused]:
    """How the lookup ends, why, and what is answered."""
    excluded = judged.excluded
    if freshness is not Freshness.CURRENT:
        # A compatible state may be registered that is not here yet: nothing is said for sure.
        return _UNKNOWN, f"index_{freshness.value}", Miss(MissKind.UNKNOWN, decision_id)
    if judged.unknown:
        return _UNKNOWN, _ENGINES_UNKNOWN, Miss(MissKind.UNKNOWN, decision_id)
    if not excluded:
        return _MISS, _CACHE_MISS, Miss(MissKind.MISS, decision_id)
    found = [exclusion.mismatch for exclusion in excluded if exclusion.mismatch is not None]
    if any(mismatch is _OUT_OF_REACH for mismatch in found):
        # Compatible state exists: to say that there is none would be wrong.
        reason = ExclusionReason.UNAVAILABLE.value
        return _UNAVAILABLE, reason, Miss(MissKind.UNAVAILABLE, decision_id)
    error = _evidence_error(found)
    answer = Refused(error, decision_id) if error else Miss(MissKind.MISS, decision_id)
    return _EXCLUDED, found[0].reason.value, answer


def _evidence_error(found: Sequence[Mismatch]) -> NexusError | None:
    """A conflict only when every candidate failed for its evidence; else it is an ordinary miss."""
    reasons = {mismatch.reason for mismatch in found}
    if not reasons <= _EVIDENCE_REASONS:
        return None
    if reasons == {ExclusionReason.EVIDENCE_MISSING}:
        return NexusError(
            ErrorCode.VALIDATION_EVIDENCE_MISSING,
            "every matching state was registered without evidence; register it with a validation",
        )
    fields = sorted({mismatch.field for mismatch in found})
    return NexusError(
        ErrorCode.VALIDATION_EVIDENCE_MISMATCH,
        "every matching state was computed under another identity; differing: " + ", ".join(fields),
    )
