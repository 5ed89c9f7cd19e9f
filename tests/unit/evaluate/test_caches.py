"""Tiers of caches: what leaves one goes to the next, nothing holds more than it can, and prefixes
are what a plain model says they are.
"""

from hypothesis import given
from hypothesis import strategies as st

from app.contract.enums import TierKind
from app.evaluate.caches import Caches

DEEPER = [(TierKind.LOCAL_SSD, 3), (TierKind.REMOTE_SHARED, 4)]
CAPACITIES = [2, 2, 3, 4]


def test_blocks_go_down_tier_by_tier() -> None:
    caches = Caches(2, 1, 1, engines_per_node=1, deeper=[(TierKind.LOCAL_SSD, 1)])
    for block in (1, 2, 3):
        caches.add(0, [block])
    held = [caches.prefixes([block]) for block in (3, 2, 1)]
    assert held == [
        [[1, 0], [1, 0], [1, 0]],
        [[0, 0], [1, 0], [1, 0]],
        [[0, 0], [0, 0], [1, 0]],
    ]
    caches.add(0, [4])
    assert caches.prefixes([1]) == [[0, 0]] * 3


def test_a_nodes_memory_is_its_engines() -> None:
    caches = Caches(4, 1, 2, engines_per_node=2)
    caches.add(0, [1])
    caches.add(0, [2])
    assert caches.prefixes([1]) == [[0, 0, 0, 0], [1, 1, 0, 0]]


def test_a_shared_store_is_everyones_and_no_memory_is_passed_over() -> None:
    caches = Caches(3, 1, 0, deeper=[(TierKind.REMOTE_SHARED, 2)])
    caches.add(0, [1])
    caches.add(0, [2])
    assert caches.prefixes([1]) == [[0, 0, 0], [0, 0, 0], [1, 1, 1]]


def test_what_is_demoted_leaves_the_device_alone() -> None:
    caches = Caches(1, 4, 4)
    assert caches.add(0, [1, 2]) == [2, 1]
    assert caches.add(0, [2, 3]) == [3]
    caches.demote(0, [2, 9])
    assert caches.prefixes([1, 2, 3]) == [[1], [3]]
    assert caches.room(0) == 2


@given(
    st.lists(
        st.tuples(st.integers(0, 3), st.lists(st.integers(0, 12), max_size=5, unique=True)),
        max_size=30,
    ),
    st.lists(st.integers(0, 12), max_size=6, unique=True),
)
def test_no_store_overflows_and_prefixes_are_of_what_is_held(
    added: list[tuple[int, list[int]]], asked: list[int]
) -> None:
    caches = Caches(4, CAPACITIES[0], CAPACITIES[1], engines_per_node=2, deeper=DEEPER)
    for engine, blocks in added:
        caches.add(engine, blocks)
        for most, held in zip(CAPACITIES, caches.held_blocks(), strict=True):
            assert max(held) <= most
    for engine in range(4):
        places = (engine, engine // 2, engine // 2, 0)
        for level in range(len(CAPACITIES)):
            there = {
                block
                for above in range(level + 1)
                for block in caches._stores[above][places[above]]
            }
            missing = [place for place, block in enumerate(asked) if block not in there]
            expected = missing[0] if missing else len(asked)
            assert caches.prefixes(asked)[level][engine] == expected
