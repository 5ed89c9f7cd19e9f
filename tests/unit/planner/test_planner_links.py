"""What runs on links, in one table and in its copies."""

import pytest

from app.planner.links import MAX_NODES, NO_LINK, NO_LINKS, Link, Links

KNOWN = {("a", "b"): Link(5.0, 1_000.0, 2, 4), ("b", "b"): Link(1.0, 9.0)}


def test_what_runs_is_known_by_nodes() -> None:
    links = Links(("a", "b"), KNOWN)
    assert links.running == {("a", "b"): 2}
    links.begin("a", "b")
    links.begin("b", "b", 3)
    assert links.running == {("a", "b"): 3, ("b", "b"): 3}
    assert links.get("a", "b") == Link(5.0, 1_000.0, 3, 4)
    links.begin("b", "b", -3)
    assert links.running == {("a", "b"): 3}
    # More ends than began: as where a topology came in between.
    links.begin("b", "b", -1)
    assert links.get("b", "b").in_flight == 0
    assert links.running == {("a", "b"): 3}


def test_a_copy_is_counted_by_itself() -> None:
    links = Links(("a", "b"), KNOWN)
    copy = links.copy()
    copy.begin("a", "b", -2)
    copy.begin("b", "b")
    assert links.running == {("a", "b"): 2}
    assert copy.running == {("b", "b"): 1}
    assert (links.get("a", "b").in_flight, copy.get("a", "b").in_flight) == (2, 0)
    assert copy.get("a", "b") == Link(5.0, 1_000.0, 0, 4)


def test_what_is_no_node_has_no_link() -> None:
    links = Links(("a",))
    links.begin("a", "elsewhere")
    assert links.running == {}
    assert links.get("a", "elsewhere") is NO_LINK
    NO_LINKS.begin("a", "a")
    assert NO_LINKS.running == {}
    with pytest.raises(ValueError, match="not both nodes"):
        Links(("a",), {("a", "b"): Link()})
    with pytest.raises(ValueError, match=str(MAX_NODES)):
        Links([f"n{number}" for number in range(MAX_NODES + 1)])
