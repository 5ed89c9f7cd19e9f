"""Every pair of states against the published lifecycle."""

from itertools import pairwise, product

import pytest

from app.contract.transitions import TRANSITIONS, LifecycleState, path

FORWARD = ["described", "matched", "validated", "planned", "reserved"]
DONE = ["materialized", "recomputed", "skipped"]
KEPT = ["retained", "demoted", "evicted", "invalidated"]
STATES = [*FORWARD, *DONE, "observed", *KEPT]
LEGAL = {
    *pairwise(FORWARD),
    *product(FORWARD, ["recomputed", "skipped"]),
    ("reserved", "materialized"),
    *product(DONE, ["observed"]),
    *product(["observed"], KEPT),
}


def test_the_states_are_those_of_the_lifecycle() -> None:
    assert [state.value for state in LifecycleState] == STATES
    assert set(TRANSITIONS) == set(LifecycleState)


@pytest.mark.parametrize(("before", "after"), list(product(STATES, STATES)))
def test_a_step_is_legal_exactly_where_the_lifecycle_has_it(before: str, after: str) -> None:
    steps = (LifecycleState(before), LifecycleState(after))
    if (before, after) in LEGAL:
        assert path(*steps) == (before, after)
    else:
        with pytest.raises(ValueError, match=f"{before} may not be followed by {after}"):
            path(*steps)


def test_a_path_is_checked_at_every_step() -> None:
    s = LifecycleState
    whole = (s.DESCRIBED, s.MATCHED, s.VALIDATED, s.PLANNED, s.RESERVED, s.MATERIALIZED)
    assert path(*whole, s.OBSERVED, s.RETAINED) == (
        *FORWARD,
        "materialized",
        "observed",
        "retained",
    )
    with pytest.raises(ValueError, match="reserved may not be followed by observed"):
        path(s.PLANNED, s.RESERVED, s.OBSERVED)


def test_one_state_is_a_path_and_none_is_not() -> None:
    assert path(LifecycleState.PLANNED) == ("planned",)
    with pytest.raises(ValueError, match="at least one"):
        path()
