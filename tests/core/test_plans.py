"""The planner's compiled loop is the plain one."""

from array import array
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nexuskv_core import best_sources
from nexuskv_core.plan_reference import best_sources as plain_best_sources

RATE = st.floats(1, 1e6)
PART = st.floats(0, 2)
NUMBER = st.floats(0, 1e6)


@st.composite
def loops(draw: st.DrawFn) -> tuple[Any, ...]:
    nodes, profiles = draw(st.integers(0, 3)), draw(st.integers(1, 2))

    def rows(count: int, *fields: st.SearchStrategy[float]) -> "array[float]":
        return array("d", [float(draw(field)) for _ in range(count) for field in fields])

    node = st.integers(-3, nodes - 1)
    flag = st.integers(0, 1)
    targets = rows(
        draw(st.integers(0, 3)), NUMBER, st.just(-1) | NUMBER, NUMBER, st.floats(1, 2), NUMBER,
        st.floats(0, 1), PART, NUMBER, NUMBER, node, st.integers(0, profiles - 1), NUMBER,
    )  # fmt: skip
    sources = rows(
        draw(st.integers(0, 4)), NUMBER, NUMBER, NUMBER, flag, flag, flag, node, st.integers(0, 4)
    )
    paths = rows(profiles * 10, NUMBER, st.just(0) | RATE, PART)
    links = rows(nodes * nodes, NUMBER, st.just(0) | RATE, st.integers(0, 2), st.integers(0, 2))
    rest = draw(
        st.tuples(st.integers(1, 10**6), st.just(-1) | NUMBER, PART, NUMBER, st.just(0) | NUMBER)
    )
    pairs = (len(targets) // 12) * (len(sources) // 8)
    outcome = st.sampled_from([0, 0, 8, 9, 10])
    barred = bytes(draw(st.just([]) | st.lists(outcome, min_size=pairs, max_size=pairs)))
    return (targets, sources, paths, links, nodes, *map(float, rest), barred)


@settings(max_examples=400, deadline=None)
@given(given_=loops())
def test_the_compiled_loop_is_the_plain_one(given_: tuple[Any, ...]) -> None:
    assert best_sources(*given_) == plain_best_sources(*given_)


@pytest.mark.parametrize(
    ("nodes", "node", "profile", "tier"), [(1, 1, 0, 0), (0, 0, 0, 0), (1, 0, 1, 0), (1, 0, 0, 5)]
)
def test_a_place_that_is_none_is_refused(nodes: int, node: int, profile: int, tier: int) -> None:
    targets = array("d", [0, -1, 0, 1, 1, 0, 0, 0, 1, node, profile, 0])
    sources = array("d", [1, 1, 0, 1, 1, 0, node, tier])
    paths, links = array("d", [1.0] * 30), array("d", [0.0] * 4 * nodes * nodes)
    with pytest.raises(ValueError, match="no such"):
        best_sources(targets, sources, paths, links, nodes, 10, -1, 1, 0, 0, b"")


def test_links_that_are_no_table_are_refused() -> None:
    nothing = array("d")
    with pytest.raises(ValueError, match="each node"):
        best_sources(nothing, nothing, nothing, array("d", [1.0]), 1, 10, -1, 1, 0, 0, b"")


@pytest.mark.parametrize(
    ("barred", "fault"), [(b"\x08\x08", "each target"), (b"\x0b", "no such outcome")]
)
@pytest.mark.parametrize("loop", [best_sources, plain_best_sources])
def test_pairs_that_are_none_are_refused(loop: Any, barred: bytes, fault: str) -> None:
    targets = array("d", [0, -1, 0, 1, 1, 0, 0, 0, 1, -1, 0, 0])
    sources = array("d", [1, 1, 0, 1, 1, 0, -1, 0])
    with pytest.raises(ValueError, match=fault):
        loop(targets, sources, array("d", [1.0] * 30), array("d"), 0, 10, -1, 1, 0, 0, barred)
