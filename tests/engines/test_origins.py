"""Whose events they are: images in blocks, envelopes of others, and numbers of events."""

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.engines.directory import decoded, encoded
from app.engines.registration import EngineKind, EngineSpec
from app.engines.stream import EventNumbers
from app.engines.totals import EngineTotals
from app.engines.views import EngineView, ViewState
from tests.engines.rig import NOW_US, Rig, prompt, told
from tests.engines.wires import CLEARED, as_array, as_envelope, packed, removed

MAX = 2**63 - 1
LONG = prompt(6)
OTHER = prompt(2, seed=1)
IMAGE = {"mm_objects": [{"mm_hash": 7, "offsets": [[0, 4]]}]}


@pytest.fixture
def rig() -> Rig:
    return Rig()


# ---- what blocks have in them besides tokens


@pytest.mark.parametrize("positional", [False, True])
def test_a_block_with_an_image_is_no_block_of_the_same_tokens_without(rig, positional) -> None:
    view = rig.engine()
    infos: list[Any] = [None, IMAGE, *[None] * 4]
    event = told(LONG) | {"block_mm_infos": infos}
    if positional:
        event = [*as_array(told(LONG), places=8), infos, 0, "full_attention"]
    rig.tell(view, event)
    # Up to the block with the image they are the same.
    assert rig.reach(LONG) == {"a": 4}
    keys: list[Any] = [None, ((7, ((0, 4),)),), *[None] * 4]
    assert rig.reach(LONG, extra_keys=keys) == {"a": 24}
    for other in (((8, ((0, 4),)),), (7,), ((7, ((1, 4),)),)):
        assert rig.reach(LONG, extra_keys=[None, other, *[None] * 4]) == {"a": 4}


def test_an_image_in_the_first_block_makes_the_whole_chain_another(rig: Rig) -> None:
    view = rig.engine()
    infos = [{"mm_objects": [{"mm_hash": 7, "offsets": []}]}, *[None] * 5]
    rig.tell(view, told(LONG) | {"block_mm_infos": infos})
    assert rig.reach(LONG) == {}
    assert rig.reach(LONG, extra_keys=[(7,), *[None] * 5]) == {"a": 24}


def test_what_is_not_understood_is_left_out_with_all_that_follows_it(rig: Rig) -> None:
    view = rig.engine()
    rig.tell(
        view,
        told(LONG[:8], 1) | {"block_mm_infos": [None, {"audio": 1}]},
        told(LONG[8:], 3, parent_block_hash=2),
        told(OTHER, 11),
    )
    assert (rig.reach(LONG), rig.reach(OTHER)) == ({}, {"a": 8})
    status = view.status()
    assert (status.tallies.unclear, status.tallies.unattributed) == (2, 4)
    assert (status.quarantined, status.state) == (0, ViewState.LIVE)


# ---- whose events


def envelope(event: dict[str, Any], number: int = 0, **said: Any) -> dict[str, Any]:
    return as_envelope(event, number) | said


@pytest.mark.parametrize(
    ("said", "why"),
    [
        ({"model_name": "other"}, "other_model"),
        ({"tenant_id": "z"}, "other_tenant"),
        ({"additional_salt": "w8a8"}, "other_salt"),
        ({"backend_id": "c"}, "other_backend"),
        ({"dp_rank": 5}, "other_rank"),
    ],
)
def test_what_is_another_ones_is_neither_found_nor_takes_anything(rig, said, why) -> None:
    view = rig.engine()
    taken = rig.tell(
        view,
        envelope(told(LONG, 1)),
        envelope(told(OTHER, 11), **said),
        envelope(removed([1, 2, 3]), **said),
        envelope(CLEARED, **said),
    )
    assert taken.refused is None
    assert (rig.reach(LONG), rig.reach(OTHER)) == ({"a": 24}, {})
    status = view.status()
    assert {reason: count for reason, count in status.left_out.items() if count} == {why: 6}
    assert (status.state, status.other_rank) == (
        ViewState.LIVE, 5 if why == "other_rank" else None,
    )  # fmt: skip
    totals = EngineTotals()
    totals.add(status)
    assert totals.left_out[why] == 6


def test_frames_of_envelopes_are_one_sequence_over_all_ranks(rig: Rig) -> None:
    view, other = rig.engine(), rig.engine("b", dp_rank=5)
    for number, (tokens, name, rank) in enumerate([(LONG, 1, 0), (OTHER, 11, 5), (OTHER, 21, 0)]):
        payload = msgspec.msgpack.encode(envelope(told(tokens, name), 0, dp_rank=rank))
        for each in (view, other):
            each.take(number, payload, now_us=NOW_US)
    assert (rig.reach(LONG), rig.reach(OTHER)) == ({"a": 24}, {"a": 8, "b": 8})
    assert view.state is other.state is ViewState.LIVE
    assert (view.status().left_out["other_rank"], view.status().gaps) == (2, 0)


def test_a_salt_of_the_model_is_its_revision(rig: Rig) -> None:
    view = rig.engine(revision="w8a8")
    rig.tell(view, envelope(told(LONG), additional_salt="w8a8"), envelope(told(OTHER, 11)))
    assert (rig.reach(LONG), rig.reach(OTHER)) == ({"a": 24}, {"a": 8})


def test_a_store_of_several_tenants_keeps_apart_those_that_it_names(rig: Rig) -> None:
    # By the RFC equal tokens have equal names, whosever they are.
    view = rig.engine(kind=EngineKind.MOONCAKE, tenants=("t", "u"))
    rig.tell(
        view,
        envelope(told(LONG[:8], 1), tenant_id="t"),
        envelope(told(LONG[:8], 1), tenant_id="u"),
        envelope(told(LONG[8:], 3, parent_block_hash=2), 1, tenant_id="u"),
        envelope(told(OTHER, 11)),
    )
    assert (rig.reach(LONG), rig.reach(LONG, tenant="u")) == ({"a": 8}, {"a": 24})
    # Nobody's, where none is named.
    assert rig.reach(OTHER) == rig.reach(OTHER, tenant="u") == {}
    assert view.status().tallies.unattributed == 2
    rig.tell(view, envelope(removed([2]), 2, tenant_id="u"))
    assert (rig.reach(LONG), rig.reach(LONG, tenant="u")) == ({"a": 8}, {"a": 4})
    rig.tell(view, envelope(CLEARED, 3, tenant_id="u"))
    assert (rig.reach(LONG), rig.reach(LONG, tenant="u")) == ({"a": 8}, {})


def test_a_named_tenant_and_its_salt_have_to_agree(rig: Rig) -> None:
    view = rig.engine(tenants=("t", "u"), salts={"s-t": "t", "s-u": "u"})
    rig.tell(
        view,
        envelope(told(LONG, 1), tenant_id="t", cache_salt="s-t"),
        envelope(told(OTHER, 11), tenant_id="t", cache_salt="s-u"),
    )
    assert rig.reach(LONG) == {"a": 24}
    assert rig.reach(OTHER, tenant="t") == rig.reach(OTHER, tenant="u") == {}
    assert view.status().tallies.unattributed == 2


# ---- numbers of events


def test_a_hole_in_the_numbers_of_events_is_a_gap(rig: Rig) -> None:
    view = rig.engine()
    rig.tell(view, envelope(told(LONG), 0))
    rig.tell(view, envelope(told(OTHER, 11), 50))
    status = view.status()
    assert (status.state, status.gaps, status.lost_events) == (ViewState.UNKNOWN, 1, 49)
    assert (rig.reach(LONG), rig.reach(OTHER)) == ({}, {"a": 8})
    rig.tell(view, envelope(CLEARED, 51))
    assert view.state is ViewState.LIVE


def test_holes_of_others_and_of_lost_frames_are_no_holes_of_its_own(rig: Rig) -> None:
    view = rig.engine()
    rig.tell(view, envelope(told(LONG), 5), envelope(told(OTHER, 11), 0, tenant_id="z"))
    rig.tell(view, envelope(told(OTHER, 11), 9, tenant_id="z"), envelope(removed([6]), 6))
    assert (view.state, rig.reach(LONG)) == (ViewState.LIVE, {"a": 20})
    view.take(4, packed(envelope(told(OTHER, 11), 30), at_s=9.5), now_us=NOW_US)
    assert (view.status().gaps, view.status().lost_events) == (1, 0)


def test_a_number_that_goes_back_is_of_one_that_began_anew(rig: Rig) -> None:
    view = rig.engine()
    rig.tell(view, envelope(told(LONG), 8))
    rig.tell(view, envelope(told(OTHER, 11), 2))
    assert (view.state, rig.reach(LONG)) == (ViewState.UNKNOWN, {})


@given(st.lists(st.sampled_from("abc"), min_size=1, max_size=40), st.booleans(), st.data())
def test_either_way_of_numbering_has_no_hole_until_something_is_lost(streams, one, data) -> None:
    numbers, counts = EventNumbers(), dict.fromkeys("abc", data.draw(st.integers(0, 1)))
    told_of = []
    for at, stream in enumerate(streams):
        told_of.append((stream, at if one else counts[stream]))
        counts[stream] += 1
    assert not any(numbers.take(*each) for each in told_of)
    # By now it may be told which way it is; the next but one of a stream is a hole either way.
    stream, last = told_of[-1]
    assert numbers.take(stream, last + 9) == 8


# ---- counters


def test_counters_end_at_what_a_message_can_carry(rig: Rig) -> None:
    view = rig.engine()
    for round_ in range(4):
        view.take(2**64 - 2, packed(CLEARED, at_s=2.0 * round_ + 1), now_us=NOW_US)
        view.take(0, packed(CLEARED, at_s=2.0 * round_ + 2), now_us=NOW_US)
    view.take(1, packed(CLEARED, at_s=9e14), now_us=NOW_US)
    status = view.status()
    assert status.lost_frames == MAX
    totals = EngineTotals()
    for _ in range(3):
        totals.add(status)
    assert totals.lost_frames == MAX
    msgspec.msgpack.encode((status, totals))


def test_numbers_of_events_end_there_as_well(rig: Rig) -> None:
    view = rig.engine()
    for number in (0, 2**64 - 1, 0, 2**64 - 1):
        rig.tell(view, envelope(CLEARED, number, medium=None))
    rig.tell(view, envelope(CLEARED, 0), envelope(CLEARED, 2**64 - 1))
    assert view.status().lost_events <= MAX
    msgspec.msgpack.encode(view.status())


# ---- groups that are declared


def grouped(*groups: dict[str, Any], **fields: Any) -> EngineSpec:
    given_ = {"instance_id": "a", "model": "m", "block_tokens": 4, "tenants": ["t"]}
    found = decoded(given_ | {"groups": list(groups)} | fields)
    assert found is not None
    return found


def engine_of(rig: Rig, spec: EngineSpec) -> EngineView:
    view = EngineView(spec, rig.core, rig.spaces)
    rig.views.append(view)
    return view


def test_sparse_attention_waits_for_the_part_that_was_never_told_of(rig: Rig) -> None:
    sparse = {"group_idx": 0, "kind": "sparse_mla"}, {"group_idx": 1, "kind": "sparse_index"}
    view = engine_of(rig, grouped(*sparse))
    rig.tell(view, told(LONG, kv_cache_spec_kind="sparse_mla"))
    assert rig.reach(LONG) == {}
    rig.tell(view, told(LONG[:16], 1, group_idx=1, kv_cache_spec_kind="sparse_index"))
    assert rig.reach(LONG) == {"a": 16}


def test_a_hybrid_model_waits_for_its_first_recurrent_state(rig: Rig) -> None:
    view = engine_of(
        rig, grouped({"group_idx": 0, "kind": "full_attention"}, {"group_idx": 1, "kind": "mamba"})
    )
    rig.tell(view, told(LONG))
    assert rig.reach(LONG) == {}
    # The state after three blocks alone.
    rig.tell(view, told(LONG[8:12], 3, group_idx=1, parent_block_hash=2))
    assert rig.reach(LONG) == {"a": 12}


def test_a_declared_window_holds_where_events_say_nothing(rig: Rig) -> None:
    view = engine_of(
        rig,
        grouped(
            {"group_idx": 0, "kind": "full_attention"},
            {"group_idx": 1, "kind": "sliding_window", "window_tokens": 8},
        ),
    )
    rig.tell(view, told(LONG), told(LONG, 1, group_idx=1), removed([1, 2, 3, 4], group_idx=1))
    assert rig.reach(LONG) == {"a": 24}
    rig.tell(view, removed([5], group_idx=1))
    assert rig.reach(LONG) == {}


def test_without_a_declaration_groups_are_those_that_were_told_of(rig: Rig) -> None:
    view = rig.engine()
    rig.tell(view, told(LONG, kv_cache_spec_kind="sparse_mla"))
    assert rig.reach(LONG) == {"a": 24}


def test_rows_of_before_have_no_groups_and_others_are_another_registration() -> None:
    plain, declared = grouped(), grouped({"group_idx": 0, "kind": "mla_attention"})
    before = encoded(plain)
    del before["groups"]
    assert decoded(before) == plain
    assert plain != declared
    assert decoded(encoded(declared)) == declared
    assert decoded(before | {"groups": [{"group_idx": 0, "kind": "none that is known"}]}) is None
