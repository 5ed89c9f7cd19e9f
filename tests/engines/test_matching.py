"""Queries: who is asked, what is answered, and how far an answer can be trusted."""

import asyncio
from array import array

import pytest

from app.engines.answers import Match
from app.engines.plans import Filter
from app.engines.reach import TierReach
from app.engines.slices import Slices
from app.engines.views import ViewState
from tests.engines.rig import BLOCK, NOW_US, Rig, at_once, prompt, told
from tests.engines.wires import CLEARED, packed, removed, stored

LONG = prompt(6)
S = 1_000_000


@pytest.fixture
def rig() -> Rig:
    return Rig()


def verdict(rig: Rig, tokens=LONG, **wanted) -> tuple[str, str | None]:
    found = rig.ask(tokens, **wanted)
    return found.result, found.reason


def test_a_hit_names_every_location_and_its_freshness(rig: Rig) -> None:
    near, far = rig.engine("near", node="n-1"), rig.engine("far", dp_rank=2)
    rig.tell(near, told(LONG), now_us=3 * S)
    far.take(0, packed(told(LONG[:8]), rank=2, at_s=2.5), now_us=3 * S)
    found = rig.ask([*LONG, 7, 7], now_us=5 * S)
    assert (found.result, found.reason, found.matched_tokens, found.query_tokens) == (
        "hit", None, 24, 26,
    )  # fmt: skip
    first, second = found.candidates
    assert (first.instance_id, first.node, first.matched_tokens, first.source) == (
        "near", "n-1", 24, "engine",
    )  # fmt: skip
    assert (second.instance_id, second.dp_rank, second.matched_tokens) == ("far", 2, 8)
    assert second.tiers == {"gpu": TierReach(8, 8)}
    assert (second.state, second.epoch, second.last_sequence, second.gap) == (
        ViewState.LIVE, 1, 0, False,
    )  # fmt: skip
    assert (second.lag_us, second.age_us) == (S // 2, 2 * S)
    assert (found.engines.asked, found.engines.live) == (2, 2)


def test_a_miss_is_one_only_where_every_engine_is_known(rig: Rig) -> None:
    assert verdict(rig) == ("miss", "no_engine")
    view = rig.engine()
    assert verdict(rig) == ("unknown", "engine_not_live")
    rig.tell(view, told(LONG))
    assert verdict(rig, prompt(2, seed=5)) == ("miss", "not_cached")
    # Less than a block matches nothing.
    assert verdict(rig, LONG[: BLOCK - 1]) == ("miss", "not_cached")
    assert verdict(rig, []) == ("miss", "not_cached")
    # One that is silent for too long, or missed frames, may have it.
    assert verdict(rig, prompt(2, seed=5), now_us=NOW_US + 60 * S) == (
        "unknown", "engine_not_live",
    )  # fmt: skip
    view.take(5, packed(), now_us=NOW_US)
    assert verdict(rig, prompt(2, seed=5)) == ("unknown", "engine_not_live")
    rig.tell(view, CLEARED)
    assert verdict(rig) == ("miss", "not_cached")
    # Engines of other tenants and models make nothing unknown.
    rig.engine("b", tenants=("u",))
    rig.engine("c", model="other")
    assert verdict(rig) == ("miss", "not_cached")


def test_what_is_held_counts_also_while_the_rest_is_unknown(rig: Rig) -> None:
    view = rig.engine()
    view.take(5, packed(told(LONG)), now_us=NOW_US)
    found = rig.ask(LONG, now_us=NOW_US + 60 * S)
    assert (found.result, found.candidates[0].state, found.candidates[0].gap) == (
        "hit", ViewState.UNKNOWN, True,
    )  # fmt: skip
    quiet = rig.engine("b")
    rig.tell(quiet, told(prompt(1, seed=3)))
    late = rig.ask(prompt(1, seed=3), now_us=NOW_US + 60 * S)
    assert (late.result, late.candidates[0].state) == ("hit", ViewState.STALE)
    assert (late.engines.unknown, late.engines.stale) == (1, 1)


def test_revisions_layouts_and_instances_narrow_a_query(rig: Rig) -> None:
    for name, fields in {
        "a": {"revision": "1"}, "b": {"revision": "2"}, "c": {"layout": "tp2"},
    }.items():  # fmt: skip
        rig.tell(rig.engine(name, **fields), told(LONG))
    assert rig.reach(LONG) == {"a": 24, "b": 24, "c": 24}
    assert rig.reach(LONG, revision="2") == {"b": 24}
    assert rig.reach(LONG, revision="") == {"c": 24}
    assert rig.reach(LONG, layout="tp2") == {"c": 24}
    assert rig.reach(LONG, instance_id="a") == {"a": 24}
    keys = {view.lanes[0].scope_key for view in rig.views}
    assert len(keys) == 3


def test_an_engine_that_comes_or_goes_changes_the_next_answer(rig: Rig) -> None:
    view = rig.engine()
    rig.tell(view, told(LONG))
    assert rig.reach(LONG) == {"a": 24}
    other = rig.engine("b")
    rig.tell(other, told(LONG))
    assert rig.reach(LONG) == {"a": 24, "b": 24}
    rig.views.remove(view)
    view.close()
    assert rig.reach(LONG) == {"b": 24}
    # Another registration under the name of one that went.
    rig.tell(rig.engine("a", tenants=("u",)), told(LONG))
    assert rig.reach(LONG) == {"b": 24}
    assert rig.reach(LONG, tenant="u") == {"a": 24}


def test_a_hybrid_engine_with_blocks_of_two_sizes(rig: Rig) -> None:
    view = rig.engine()
    recurrent = {"group_idx": 1, "kv_cache_spec_kind": "mamba"}
    full = {"group_idx": 0, "kv_cache_spec_kind": "full_attention"}
    # Names are those of the last small block: an engine may call both blocks the same.
    rig.tell(
        view,
        told(LONG, 1, **full),
        stored([2, 4], block_size=2 * BLOCK, token_ids=LONG[:16], **recurrent),
    )
    assert rig.reach(LONG) == {"a": 16}
    rig.tell(view, removed([2], group_idx=1))
    assert rig.reach(LONG) == {"a": 16}
    rig.tell(view, removed([4], group_idx=1))
    assert rig.reach(LONG) == {}
    assert verdict(rig) == ("miss", "not_cached")
    assert view.status().blocks == {"gpu": {0: 6}}


def test_a_sliding_window_group_needs_its_last_blocks_only(rig: Rig) -> None:
    view = rig.engine()
    window = {
        "group_idx": 1,
        "kv_cache_spec_kind": "sliding_window",
        "kv_cache_spec_sliding_window": 2 * BLOCK,
    }
    rig.tell(view, told(LONG), told(LONG, **window))
    rig.tell(view, removed([1, 2, 3], group_idx=1))
    assert rig.reach(LONG) == {"a": 24}
    rig.tell(view, removed([6], group_idx=1))
    assert rig.reach(LONG) == {"a": 20}
    rig.tell(view, removed([5], group_idx=1))
    assert rig.reach(LONG) == {}


def test_an_attention_type_that_nobody_knows_is_no_hit(rig: Rig) -> None:
    view = rig.engine()
    rig.tell(view, told(LONG, kv_cache_spec_kind="holographic"))
    assert verdict(rig) == ("miss", "unknown_attention_kind")
    assert rig.matcher.unusable_kinds == 1


def named(rig: Rig, tenant: str, names: list[int], **more: int) -> Match:
    wanted = Filter(tenant, "m")
    return at_once(
        rig.matcher.match_names_in_slices(wanted, names, Slices(), now_us=NOW_US, **more)
    )


def test_a_chain_is_found_by_the_engines_own_names(rig: Rig) -> None:
    view, other = rig.engine(), rig.engine("b", tenants=("u",))
    rig.tell(view, told(LONG), now_us=NOW_US)
    rig.tell(other, told(LONG))

    def by_names(names, tenant="t", **more):
        found = named(rig, tenant, names, **more)
        return {each.instance_id: each.matched_tokens for each in found.candidates}

    assert by_names([1, 2, 3, 99]) == {"a": 12}
    assert by_names([2, 3]) == by_names([99]) == by_names([]) == {}
    assert by_names([1, 2], tenant="u") == {"b": 8}
    assert by_names([1, 2], block_tokens=BLOCK) == {"a": 8}
    assert by_names([1, 2], block_tokens=16) == {}


def test_names_of_another_tenants_blocks_find_nothing(rig: Rig) -> None:
    view = rig.engine(tenants=("t", "u"), salts={"s-t": "t", "s-u": "u"})
    rig.tell(view, told(LONG, cache_salt="s-t"))
    names = [1, 2, 3]
    assert named(rig, "t", names).matched_tokens == 12
    assert named(rig, "u", names).matched_tokens == 0


def test_engines_of_one_tenant_share_the_hash_of_a_prompt(rig: Rig) -> None:
    for n in range(50):
        rig.tell(rig.engine(f"e{n:02}"), told(LONG[: BLOCK * (1 + n % 6)]))
    found = rig.ask(LONG)
    assert len(found.candidates) == 50
    assert [each.matched_tokens for each in found.candidates] == sorted(
        (BLOCK * (1 + n % 6) for n in range(50)), reverse=True
    )


def test_too_many_spaces_are_no_miss(rig: Rig) -> None:
    for n in range(40):
        rig.tell(rig.engine(f"e{n}", revision=f"{n}"), told(LONG))
    assert len(rig.ask(LONG).candidates) == 32
    assert verdict(rig, prompt(2, seed=9)) == ("unknown", "too_many_spaces")
    assert verdict(rig, prompt(2, seed=9), revision="7") == ("miss", "not_cached")


def test_a_view_that_is_about_to_close_is_not_the_one_that_took_its_place(rig: Rig) -> None:
    before = rig.engine()
    rig.tell(before, told(LONG))
    rig.tell(rig.engine("b"), told(LONG[:8]))
    rig.views.remove(before)
    rig.tell(rig.engine("a"), told(LONG[:4]))
    assert rig.reach(LONG) == {"a": 4, "b": 8}


async def turns_of(work: asyncio.Task[Match]) -> int:
    """How often others had a turn until it was done."""
    turns = 0
    while not work.done():
        turns += 1
        await asyncio.sleep(0)
    return turns


async def test_a_long_query_lets_others_have_a_turn_and_is_of_one_moment() -> None:
    rig = Rig()
    long = [token % 50_000 for token in range(100_000)]
    for number in range(32):
        rig.tell(rig.engine(f"e{number}", revision=f"r{number}"), told(long))
    packed_tokens = array("I", long).tobytes()
    names = list(range(1, 25_001))
    expected = rig.ask(long)
    assert len(expected.candidates) == 32
    wanted = Filter("t", "m")
    for changed in (False, True):
        for ask in (
            lambda: rig.matcher.match_in_slices(wanted, packed_tokens, Slices(), now_us=NOW_US),
            lambda: rig.matcher.match_names_in_slices(wanted, names, Slices(), now_us=NOW_US),
        ):
            work = asyncio.create_task(ask())
            await asyncio.sleep(0)
            if changed:
                rig.views[0].doubt()
            turns = await turns_of(work)
            found = await work
            if changed:
                assert (found.result, found.reason) == ("unknown", "index_busy")
            else:
                assert turns > 1
                assert found.candidates == expected.candidates
