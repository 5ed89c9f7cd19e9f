"""The matcher: which registered states cover a query's tokens.

A facade over `nexuskv_core`: the compiled index knows numbers and tokens, this class knows which
state each number is. Lookups change nothing.
"""

import itertools
from enum import StrEnum
from hashlib import blake2b
from typing import Final, TypeAlias

import msgspec

from app.contract.entry import CacheEntry
from app.contract.enums import MatchClassification, TierKind
from app.contract.evidence import Evidence
from app.contract.standing import standing
from app.index.registered import RegisteredState, ScopeIdentity, StateRow, token_array
from app.index.scopes import TenantHashing
from nexuskv_core import PrefixIndex, TokenText

_CLASSIFICATIONS: Final = (
    MatchClassification.EXACT,
    MatchClassification.PREFIX,
    MatchClassification.PARTIAL,
)
# Among equal extents the faster tier is the better candidate.
_TIER_RANK: Final = {tier: rank for rank, tier in enumerate(TierKind)}
_TOKEN_BYTES: Final = 4
_ORDER_TIER_SHIFT: Final = 56
_INTERNED_ENTRIES: Final = 65_536


# Ids, first to last; the compiled index reads a buffer without an object per token.
Tokens: TypeAlias = "list[int] | TokenText | memoryview[int]"


class Freshness(StrEnum):
    """Whether absence can be trusted: before the first load and after missed polls it cannot."""

    CURRENT = "current"
    LOADING = "loading"
    BEHIND = "behind"


class Candidate(msgspec.Struct, frozen=True, gc=False):
    """A state that covers `matched_tokens` leading tokens of the query."""

    state: RegisteredState
    classification: MatchClassification
    matched_tokens: int


class Matches(msgspec.Struct, frozen=True, gc=False):
    """Candidates best first; `truncated` more were seen and left out (a lower bound).

    `identity_hash` is None where nothing was asked of the index.
    """

    identity_hash: bytes | None
    candidates: list[Candidate]
    truncated: int


class StateIndex:
    """Every live state of the deployment, findable by prefix and by (tenant, entry id)."""

    def __init__(self, hashing: TenantHashing) -> None:
        self.hashing = hashing
        self.revision = 0
        self._core = PrefixIndex()
        self._slots: list[RegisteredState | None] = []
        self._free: list[int] = []
        self._numbers: dict[tuple[str, str], int] = {}
        self._interned: dict[bytes, object] = {}
        self._classes: dict[bytes, int] = {}
        self._class_numbers = itertools.count(1)

    def __len__(self) -> int:
        return len(self._numbers)

    def upsert(self, row: StateRow) -> bool:
        """Adds the state or puts it in the place of its older generation.

        False when this very content is already there, or a newer generation is.
        """
        entry = row.registration.entry
        key = (entry.identity.key.tenant, entry.identity.entry_id)
        number = self._numbers.get(key)
        if number is not None:
            present = self._slots[number]
            if present is None or present.generation > entry.identity.version.generation:
                return False
            if present.content_hash == row.content_hash:
                # Registered again: it is there now, whatever became of its worker meanwhile.
                present.registered_us = max(present.registered_us, row.registered_us)
                return False
        state = RegisteredState(
            self._interned_row(row),
            evidence_class=self._evidence_class(row),
            order=_order(entry),
            tokens=len(row.tokens) // _TOKEN_BYTES,
        )
        # Unpacked before the old one leaves: a bad row must not cost a good one its place.
        tokens = token_array(row.tokens)
        self.remove(*key, state.generation)
        number = self._free[-1] if self._free else len(self._slots)
        # One without tokens is found by what its engine holds, and by its id.
        if tokens:
            self._core.add(
                self.hashing.scope_key(state.scope),
                tokens,
                number,
                rule=state.rule.value,
                unit_tokens=state.unit_tokens,
                partial=state.partial,
                order=state.order,
            )
        if self._free:
            self._slots[self._free.pop()] = state
        else:
            self._slots.append(state)
        self._numbers[key] = number
        self.revision += 1
        return True

    def remove(self, tenant: str, entry_id: str, generation: int) -> bool:
        """Takes out the state of this generation, or of an older one.

        False when none is in the index: a newer one stays, whatever came late about an older.
        """
        number = self._numbers.get((tenant, entry_id))
        present = None if number is None else self._slots[number]
        if number is None or present is None or present.generation > generation:
            return False
        del self._numbers[tenant, entry_id]
        self._core.remove(number)
        self._slots[number] = None
        self._free.append(number)
        self.revision += 1
        return True

    def clear(self) -> None:
        """Takes out every state, as before a new load."""
        self._core = PrefixIndex()
        self._slots, self._free, self._numbers = [], [], {}
        self.revision += 1

    def get(self, tenant: str, entry_id: str) -> RegisteredState | None:
        number = self._numbers.get((tenant, entry_id))
        return None if number is None else self._slots[number]

    def match(self, scope: ScopeIdentity, tokens: Tokens, *, max_candidates: int) -> Matches:
        """Read-only. No match is an empty candidate list. `tokens` are u32, ValueError else."""
        found = self._core.match(
            self.hashing.scope_key(scope), tokens, max_candidates=max_candidates
        )
        slots = self._slots
        return Matches(
            found.identity,
            [
                Candidate(state, _CLASSIFICATIONS[classification], matched_tokens)
                for number, classification, matched_tokens in found.candidates
                if (state := slots[number]) is not None
            ],
            found.truncated,
        )

    def identity(self, scope: ScopeIdentity, tokens: list[int]) -> bytes:
        """16 bytes, keyed per tenant: the name of this token list in this scope."""
        return self._core.identity(self.hashing.scope_key(scope), tokens)

    def stats(self) -> dict[str, int]:
        return self._core.stats()

    def _interned_row(self, row: StateRow) -> StateRow:
        """Descriptors and evidence repeat across a fleet's states; each is kept once."""
        registration = row.registration
        entry = registration.entry
        entry = msgspec.structs.replace(
            entry,
            identity=msgspec.structs.replace(
                entry.identity, key=msgspec.structs.replace(entry.identity.key, tokens=[])
            ),
            descriptor=self._intern(entry.descriptor),
            policy_hint=self._intern(entry.policy_hint),
        )
        evidence = registration.validation
        if evidence is not None:
            evidence = msgspec.structs.replace(
                evidence,
                model_identity=self._intern(evidence.model_identity),
                input_semantic_identity=self._intern(evidence.input_semantic_identity),
            )
        kept = msgspec.structs.replace(registration, entry=entry, validation=evidence)
        return StateRow(row.state_id, kept, b"", row.content_hash, row.registered_us)

    def _intern(self, value: object) -> object:
        if len(self._interned) >= _INTERNED_ENTRIES:
            self._interned.clear()
        return self._interned.setdefault(_frame(type(value).__name__, value), value)

    def _evidence_class(self, row: StateRow) -> int:
        """States of one class give the same verdict to the same query, fingerprints aside."""
        entry, evidence = row.registration.entry, row.registration.validation
        content = _frame("class", _compatibility_content(entry, evidence))
        digest = blake2b(content, digest_size=16).digest()
        found = self._classes.get(digest)
        if found is None:
            # Numbers are never reused: verdicts are kept by them.
            found = next(self._class_numbers)
            if len(self._classes) >= _INTERNED_ENTRIES:
                self._classes.clear()
            self._classes[digest] = found
        return found


def _compatibility_content(entry: CacheEntry, evidence: Evidence | None) -> object:
    """All that a verdict may depend on: not which state it is, nor where it lies."""
    fields = msgspec.structs.asdict(entry)
    del fields["identity"], fields["location"]
    # Of the identity only what makes the state unusable counts, as an unknown lineage does.
    unfit = standing(entry)
    if evidence is None:
        return (fields, unfit, None, None)
    return (fields, unfit, evidence.model_identity, evidence.input_semantic_identity)


def _frame(kind: str, value: object) -> bytes:
    return kind.encode() + b"\0" + msgspec.json.encode(value)


def _order(entry: CacheEntry) -> int:
    """Lower is better: tier first, then a hash of the entry id, alike on every replica."""
    digest = blake2b(entry.identity.entry_id.encode(), digest_size=7).digest()
    rest = int.from_bytes(digest, "big")
    return (_TIER_RANK[entry.location.tier] << _ORDER_TIER_SHIFT) | rest
