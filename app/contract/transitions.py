"""The life of one decision about one state, and which steps may follow which."""

from collections.abc import Mapping
from enum import StrEnum
from itertools import pairwise
from types import MappingProxyType


class LifecycleState(StrEnum):
    DESCRIBED = "described"
    MATCHED = "matched"
    VALIDATED = "validated"
    PLANNED = "planned"
    RESERVED = "reserved"
    MATERIALIZED = "materialized"
    RECOMPUTED = "recomputed"
    SKIPPED = "skipped"
    OBSERVED = "observed"
    RETAINED = "retained"
    DEMOTED = "demoted"
    EVICTED = "evicted"
    INVALIDATED = "invalidated"


_S = LifecycleState
_FALL_BACK = frozenset({_S.RECOMPUTED, _S.SKIPPED})
_KEPT_OR_NOT = frozenset({_S.RETAINED, _S.DEMOTED, _S.EVICTED, _S.INVALIDATED})

# Falling back is legal at every step before the bytes are in place, and from none after it.
TRANSITIONS: Mapping[LifecycleState, frozenset[LifecycleState]] = MappingProxyType(
    {
        _S.DESCRIBED: frozenset({_S.MATCHED}) | _FALL_BACK,
        _S.MATCHED: frozenset({_S.VALIDATED}) | _FALL_BACK,
        _S.VALIDATED: frozenset({_S.PLANNED}) | _FALL_BACK,
        _S.PLANNED: frozenset({_S.RESERVED}) | _FALL_BACK,
        _S.RESERVED: frozenset({_S.MATERIALIZED}) | _FALL_BACK,
        _S.MATERIALIZED: frozenset({_S.OBSERVED}),
        _S.RECOMPUTED: frozenset({_S.OBSERVED}),
        _S.SKIPPED: frozenset({_S.OBSERVED}),
        _S.OBSERVED: _KEPT_OR_NOT,
        _S.RETAINED: frozenset(),
        _S.DEMOTED: frozenset(),
        _S.EVICTED: frozenset(),
        _S.INVALIDATED: frozenset(),
    }
)


def path(*states: LifecycleState) -> tuple[str, ...]:
    """The wire form of a path; it may start and end anywhere, since one call is one slice.

    Raises ValueError when it is empty or takes a step that the table does not have.
    """
    if not states:
        raise ValueError("a path has at least one state")
    for before, after in pairwise(states):
        if after not in TRANSITIONS[before]:
            raise ValueError(f"{before} may not be followed by {after}")
    return tuple(state.value for state in states)
