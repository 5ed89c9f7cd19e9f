"""Registered states beside engines' blocks in an answer of `POST /v1/match`."""

from collections.abc import Callable
from typing import Final, NamedTuple
from uuid import UUID

import msgspec

from app.api.match_wire import Asked
from app.index.matcher import Candidate, Freshness, StateIndex
from nexuskv_core import TokenText

MAX_STATES: Final = 64


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


class StateCandidates(msgspec.Struct, frozen=True, gc=False):
    """See `app.api.match_schemas.StatesView`."""

    freshness: str
    candidates: list[StateCandidate]
    left_off: int


class States(NamedTuple):
    """The registered states of this process, and whether they are all there."""

    registered: StateIndex
    freshness: Callable[[], Freshness]

    def matched(self, asked: Asked) -> StateCandidates | None:
        """None where the query asked for none."""
        if asked.states is None or asked.tokens is None:
            return None
        tokens = asked.tokens
        words = tokens if isinstance(tokens, TokenText) else memoryview(tokens).cast("I")
        found = self.registered.match(asked.states, words, max_candidates=MAX_STATES)
        return StateCandidates(
            self.freshness().value, [_shown(each) for each in found.candidates], found.truncated
        )


def _shown(candidate: Candidate) -> StateCandidate:
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
    )
