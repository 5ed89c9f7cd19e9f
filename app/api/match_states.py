"""Registered states beside engines' blocks in an answer of `POST /v1/match`."""

from collections.abc import Callable
from datetime import UTC, datetime
from typing import Final, NamedTuple
from uuid import UUID

import msgspec

from app.api.match_wire import Asked
from app.engines.answers import HIT, MISS, UNKNOWN, Match
from app.index.matcher import Candidate, Freshness, StateIndex
from nexuskv_core import TokenText

MAX_STATES: Final = 64
_US_PER_S: Final = 1_000_000


class StateCandidate(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """See `app.api.match_schemas.StateView`."""

    source: str = "state"
    state_id: UUID
    entry_id: str
    generation: int
    tier: str
    locator: str
    worker: str | None
    matched_tokens: int
    classification: str
    learnt: str = "registration"
    registered_at: datetime
    age_us: int
    freshness: str


class StateCandidates(msgspec.Struct, frozen=True, gc=False):
    """See `app.api.match_schemas.StatesView`."""

    freshness: str
    candidates: list[StateCandidate]
    left_off: int


class States(NamedTuple):
    """The registered states of this process, and whether they are all there."""

    registered: StateIndex
    freshness: Callable[[], Freshness]

    def matched(self, asked: Asked, now_us: int) -> StateCandidates | None:
        """None where the query asked for none."""
        if asked.states is None or asked.tokens is None:
            return None
        tokens = asked.tokens
        words = tokens if isinstance(tokens, TokenText) else memoryview(tokens).cast("I")
        found = self.registered.match(asked.states, words, max_candidates=MAX_STATES)
        fresh = self.freshness().value
        shown = [_shown(each, fresh, now_us) for each in found.candidates]
        return StateCandidates(fresh, shown, found.truncated)


def together(engines: Match, states: StateCandidates) -> Match:
    """The answer of both: a hit where one of them is; no miss while there may be other states."""
    if states.candidates:
        most = max(each.matched_tokens for each in states.candidates)
        return msgspec.structs.replace(
            engines,
            result=HIT,
            reason=None,
            matched_tokens=max(engines.matched_tokens, most),
        )
    if engines.result == MISS and states.freshness != Freshness.CURRENT.value:
        return msgspec.structs.replace(engines, result=UNKNOWN, reason="states_not_current")
    return engines


def _shown(candidate: Candidate, freshness: str, now_us: int) -> StateCandidate:
    state = candidate.state
    return StateCandidate(
        state_id=state.state_id,
        entry_id=state.entry_id,
        generation=state.generation,
        tier=state.tier,
        locator=state.entry.location.locator,
        worker=None if state.payload is None else state.payload[0],
        matched_tokens=candidate.matched_tokens,
        classification=candidate.classification.value,
        registered_at=datetime.fromtimestamp(state.registered_us / _US_PER_S, UTC),
        age_us=max(0, now_us - state.registered_us),
        freshness=freshness,
    )
