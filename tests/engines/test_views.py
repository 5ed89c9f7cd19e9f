"""What is known of one publisher: order, gaps, restarts, parents, owners, places."""

import itertools
import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.engines.capture import read_capture
from app.engines.quarantine import Quarantine
from app.engines.replay import Replay
from app.engines.stream import Order
from app.engines.views import ViewState
from tests.engines.rig import BLOCK, NOW_US, Rig, prompt, told
from tests.engines.wires import (
    CLEARED,
    as_array,
    as_envelope,
    as_salted_array,
    packed,
    removed,
    stored,
)

CAPTURES = Path(__file__).resolve().parents[3] / "shared" / "captures"
LONG = prompt(6)


@pytest.fixture
def rig() -> Rig:
    return Rig()


# ---- frames in their order


def test_a_view_is_live_from_frame_zero_on(rig: Rig) -> None:
    view = rig.engine()
    assert (view.state, view.missing(0), view.missing(3)) == (
        ViewState.PENDING, None, range(3),
    )  # fmt: skip
    taken = rig.tell(view, told(LONG))
    assert (taken.order, taken.events, taken.lost) == (Order.NEXT, 1, 0)
    assert (view.state, view.epoch, view.last_sequence) == (ViewState.LIVE, 1, 0)
    assert rig.reach(LONG) == {"a": 24}
    assert (view.missing(1), view.missing(4)) == (None, range(1, 4))


def test_frames_that_were_lost_end_what_is_known_until_all_is_cleared(rig: Rig) -> None:
    view = rig.engine()
    rig.tell(view, told(LONG))
    taken = view.take(3, packed(told(prompt(2, seed=1), 50)), now_us=NOW_US)
    assert (taken.order, taken.lost) == (Order.GAP, 2)
    assert view.state is ViewState.UNKNOWN
    # What it tells from now on is held all the same.
    assert (rig.reach(LONG), rig.reach(prompt(2, seed=1))) == ({}, {"a": 8})
    rig.tell(view, told(LONG, 90))
    assert rig.reach(LONG) == {"a": 24}
    # Of one medium that is not all.
    rig.tell(view, {"event_type": "cleared", "medium": "gpu"})
    assert (view.state, rig.reach(LONG)) == (ViewState.UNKNOWN, {})
    rig.tell(view, CLEARED)
    assert view.state is ViewState.LIVE
    assert (view.status().gaps, view.status().lost_frames) == (1, 2)


def test_lost_frames_that_are_replayed_first_leave_no_gap(rig: Rig) -> None:
    view = rig.engine()
    frames = [packed(told(prompt(1, seed=n), 10 * n + 1), at_s=n + 1.0) for n in range(5)]
    view.take(0, frames[0], now_us=NOW_US)
    lost = view.missing(4)
    assert lost == range(1, 4)
    for number in [*lost, 4]:
        assert view.take(number, frames[number], now_us=NOW_US).order is Order.NEXT
    # The frames that a replay brought come again by the stream.
    assert view.missing(2, frames[2]) is None
    assert view.take(2, frames[2], now_us=NOW_US).order is Order.AGAIN
    assert view.missing(5) is None
    assert view.state is ViewState.LIVE
    assert (view.status().gaps, view.status().repeated_frames) == (0, 1)
    assert all(rig.reach(prompt(1, seed=n)) == {"a": 4} for n in range(5))


@pytest.mark.parametrize(("first", "state"), [(0, ViewState.LIVE), (1, ViewState.UNKNOWN)])
def test_a_publisher_that_began_anew_holds_nothing_of_before(rig: Rig, first, state) -> None:
    view = rig.engine()
    for seed in range(3):
        rig.tell(view, told(prompt(2, seed=seed), 10 * seed + 1))
    again = packed(told(prompt(1, seed=9), 1), at_s=99.0)
    assert view.missing(first, again) == (range(first) if first else None)
    assert view.take(first, again, now_us=NOW_US).order is Order.NEW_EPOCH
    assert (view.state, view.epoch) == (state, 2)
    assert rig.reach(prompt(2, seed=0)) == {}
    assert rig.reach(prompt(1, seed=9)) == {"a": 4}
    assert rig.core.stats()["streams"] == 1


def test_a_frame_that_cannot_be_read_is_as_good_as_lost(rig: Rig) -> None:
    view = rig.engine()
    rig.tell(view, told(LONG))
    taken = view.take(1, b"\xc1", now_us=NOW_US)
    assert (taken.order, taken.events) == (Order.NEXT, 0)
    assert "msgpack" in (taken.refused or "")
    assert (view.state, view.last_sequence, rig.reach(LONG)) == (ViewState.UNKNOWN, 1, {})
    assert view.status().last_refusal == taken.refused


def test_frames_of_another_rank_are_left_alone(rig: Rig) -> None:
    view = rig.engine()
    rig.tell(view, told(LONG))
    taken = view.take(7, packed(CLEARED, rank=3), now_us=NOW_US)
    assert (taken.order, "rank 3" in (taken.refused or "")) == (None, True)
    assert (view.last_sequence, rig.reach(LONG)) == (0, {"a": 24})
    assert (view.status().other_rank_frames, view.status().other_rank) == (1, 3)
    other = rig.engine("b", dp_rank=3)
    other.take(0, packed(told(LONG), rank=3), now_us=NOW_US)
    assert rig.reach(LONG) == {"a": 24, "b": 24}


def test_a_closed_view_leaves_nothing(rig: Rig) -> None:
    view, other = rig.engine(), rig.engine("b")
    for each in (view, other):
        rig.tell(each, told(LONG))
    view.close()
    assert rig.reach(LONG) == {"b": 24}
    assert rig.core.stats()["streams"] == 1


# ---- events


@pytest.mark.parametrize("form", [dict, as_array, as_envelope])
def test_every_wire_format_ends_in_the_same_blocks(rig: Rig, form) -> None:
    view = rig.engine()
    rig.tell(view, form(told(LONG[:8], 1)), form(told(LONG[8:], 3, parent_block_hash=2)))
    assert rig.reach(LONG) == {"a": 24}
    rig.tell(view, form(removed([6])))
    assert rig.reach(LONG) == {"a": 20}
    assert view.status().blocks == {"gpu": {0: 5}}


def test_hashes_may_be_bytes_or_negative(rig: Rig) -> None:
    view = rig.engine()
    names = [bytes([n]) * 32 for n in range(6)]
    rig.tell(view, stored(names[:2], block_size=BLOCK, token_ids=LONG[:8]))
    rig.tell(
        view,
        stored(names[2:], block_size=BLOCK, token_ids=LONG[8:], parent_block_hash=names[1]),
        stored([-5], block_size=BLOCK, token_ids=prompt(1, seed=4)),
    )
    assert rig.reach(LONG) == {"a": 24}
    rig.tell(view, removed([names[5], 2**64 - 5]))
    assert (rig.reach(LONG), rig.reach(prompt(1, seed=4))) == ({"a": 20}, {})
    assert view.status().byte_names == 3


def test_one_engines_removal_is_no_other_ones(rig: Rig) -> None:
    view, other = rig.engine(), rig.engine("b")
    for each in (view, other):
        rig.tell(each, told(LONG))
    rig.tell(view, removed([1, 2, 3, 4, 5, 6]), removed([6]), removed([77]))
    assert rig.reach(LONG) == {"b": 24}
    assert view.status().tallies.removed_unknown == 2


def test_known_blocks_move_to_another_medium_without_their_tokens(rig: Rig) -> None:
    view = rig.engine()
    moved = {"token_ids": [], "block_size": 0, "medium": "CPU"}
    rig.tell(view, told(LONG), stored([1, 2, 99], **moved))
    (found,) = rig.ask(LONG).candidates
    assert {tier: reached.only for tier, reached in found.tiers.items()} == {"gpu": 24, "cpu": 8}
    assert view.status().tallies.unknown_names == 1
    rig.tell(view, removed([1, 2, 3, 4, 5, 6]))
    (found,) = rig.ask(LONG).candidates
    assert (found.matched_tokens, list(found.tiers)) == (8, ["cpu"])
    assert view.status().blocks == {"cpu": {0: 2}}


def test_one_medium_is_cleared_and_the_other_is_not(rig: Rig) -> None:
    view = rig.engine()
    rig.tell(view, told(LONG), told(LONG, medium="CPU"))
    rig.tell(view, {"event_type": "cleared", "medium": "GPU"})
    assert view.status().blocks == {"cpu": {0: 6}}
    assert (view.state, rig.reach(LONG)) == (ViewState.LIVE, {"a": 24})


def test_pairs_of_tokens_are_blocks_of_their_own(rig: Rig) -> None:
    view = rig.engine()
    tokens = prompt(3)
    pairs = [[a, b] for a, b in itertools.pairwise(tokens)]
    event = stored([1, 2], block_size=BLOCK, token_ids=pairs[:8])
    rig.tell(view, event)
    assert rig.reach(tokens) == {"a": 8}
    # The second block's last pair has the ninth token.
    assert rig.reach(tokens[:9]) == {"a": 8}
    assert rig.reach(tokens[:8]) == {"a": 4}


def test_another_block_size_is_counted_and_matches_by_its_own_size(rig: Rig) -> None:
    view = rig.engine()
    rig.tell(view, told(prompt(3, block=8), block=8))
    assert rig.reach(prompt(3, block=8)) == {"a": 24}
    status = view.status()
    assert (status.tallies.wrong_block_size, status.other_block_tokens) == (1, 8)


# ---- parents


def test_blocks_wait_for_their_parent_and_are_never_anywhere_else(rig: Rig) -> None:
    view = rig.engine()
    rig.tell(view, told(LONG[16:], 5, parent_block_hash=4))
    rig.tell(view, told(LONG[8:16], 3, parent_block_hash=2))
    assert rig.reach(LONG) == rig.reach(LONG[8:]) == rig.reach(LONG[16:]) == {}
    assert view.status().quarantined == 4
    rig.tell(view, removed([6]))
    rig.tell(view, told(LONG[:8], 1))
    assert view.status().quarantined == 0
    # Block 6 was removed while it waited.
    assert rig.reach(LONG) == {"a": 20}


def test_a_chain_that_waits_backwards_is_adopted_whole(rig: Rig) -> None:
    view = rig.engine()
    count = 3_000
    tokens = prompt(count)
    waiting = [
        told(tokens[BLOCK * n : BLOCK * (n + 1)], n + 1, parent_block_hash=n or None)
        for n in reversed(range(count))
    ]
    rig.tell(view, *waiting)
    assert rig.reach(tokens) == {"a": BLOCK * count}


def test_the_quarantine_is_bounded_and_counts_what_made_room() -> None:
    rig = Rig()
    quarantine = Quarantine(max_blocks=5, max_bytes=1 << 20)
    view = rig.engine()
    view._shelves.quarantine = quarantine
    for n in range(4):
        rig.tell(view, told(prompt(2, seed=n), 10 * n + 1, parent_block_hash=900 + n))
    assert (quarantine.blocks, quarantine.dropped, len(quarantine)) == (4, 4, 2)
    # The same store again takes no room.
    rig.tell(view, told(prompt(2, seed=3), 31, parent_block_hash=903))
    assert (quarantine.blocks, quarantine.dropped) == (4, 4)
    rig.tell(view, told(prompt(1, seed=50), 900), told(prompt(1, seed=53), 903))
    # The one that made room is lost, the one that waited is there.
    assert rig.reach(prompt(1, seed=50) + prompt(2, seed=0)) == {"a": 4}
    assert rig.reach(prompt(1, seed=53) + prompt(2, seed=3)) == {"a": 12}
    small = Quarantine(max_blocks=100, max_bytes=1)
    view._shelves.quarantine = small
    rig.tell(view, told(prompt(2, seed=7), 71, parent_block_hash=70_000))
    assert (len(small), small.blocks, small.held_bytes, small.dropped) == (0, 0, 0, 2)


def test_a_place_that_is_said_by_a_number_alone_is_no_place(rig: Rig) -> None:
    view = rig.engine()
    later = as_envelope(told(LONG[8:], 3)) | {"parent_hash": None, "base_block_idx": 2}
    rig.tell(view, later)
    assert rig.reach(LONG[8:]) == {}
    assert view.status().tallies.unplaced == 4


# ---- whose they are


def test_two_tenants_blocks_are_told_apart_by_their_salts(rig: Rig) -> None:
    view = rig.engine(tenants=("t", "u"), salts={"s-t": "t", "s-u": "u"})
    rig.tell(
        view,
        told(LONG[:8], 1, extra_keys=[["s-t"], None]),
        as_salted_array(told(prompt(2, seed=1), 11, cache_salt="s-u")),
        told(LONG[8:], 3, parent_block_hash=2),
    )
    assert rig.reach(LONG, salt="s-t") == rig.reach(LONG) == {"a": 24}
    assert rig.reach(LONG, tenant="u") == {}
    assert rig.reach(prompt(2, seed=1), tenant="u") == {"a": 8}
    # Nobody finds another one's blocks by naming its salt.
    assert rig.reach(LONG, tenant="u", salt="s-t") == {}


def test_what_is_nobodys_is_counted_and_not_kept(rig: Rig) -> None:
    view = rig.engine(tenants=("t", "u"), salts={"s-t": "t"})
    rig.tell(
        view,
        told(LONG[:8], 1),
        told(LONG[8:], 3, parent_block_hash=2),
        told(prompt(1, seed=2), 21, cache_salt="whose"),
    )
    status = view.status()
    assert (status.tallies.unattributed, status.tallies.salted_unknown) == (7, 1)
    assert (status.quarantined, status.blocks, rig.core.stats()["blocks"]) == (0, {}, 0)
    rig.tell(view, removed([1, 2, 3]))
    assert view.status().tallies.removed_unknown == 0


def test_a_pool_is_shared_by_its_tenants_and_nobody_else(rig: Rig) -> None:
    view = rig.engine(tenants=("u", "t"), pooled=True, salts={"s-t": "t"})
    rig.engine("b", tenants=("v",))
    rig.tell(view, told(LONG, 1), told(prompt(1, seed=1), 11, cache_salt="s-t"))
    assert rig.reach(LONG) == rig.reach(LONG, tenant="u") == {"a": 24}
    assert rig.reach(LONG, tenant="v") == {}
    assert rig.reach(prompt(1, seed=1), tenant="u") == {}
    # The pool's blocks are unsalted, the tenant's own are not.
    assert rig.reach(prompt(1, seed=1)) == {"a": 4}
    assert rig.reach(LONG, salt="s-t") == {}


def test_a_tenant_with_its_own_engine_may_salt_as_it_likes(rig: Rig) -> None:
    view = rig.engine()
    rig.tell(view, told(LONG, 1, extra_keys=[["x"], *[None] * 5]), told(prompt(1, seed=1), 11))
    assert rig.reach(LONG) == rig.reach(LONG, salt="y") == {}
    assert rig.reach(LONG, salt="x") == {"a": 24}
    assert rig.reach(prompt(1, seed=1)) == {"a": 4}
    assert view.status().tallies.salted_unknown == 6


def test_adapters_and_extra_keys_are_other_blocks(rig: Rig) -> None:
    view = rig.engine()
    image = ("image-1", 0)
    rig.tell(
        view,
        told(LONG, 1, lora_name="poet", extra_keys=[["poet"]] * 6),
        told(LONG, 21, extra_keys=[None, [image], *[None] * 4]),
    )
    assert rig.reach(LONG, lora="poet") == {"a": 24}
    assert rig.reach(LONG, lora="clerk") == {}
    # Without the image's key only the block before it is the same.
    assert rig.reach(LONG) == {"a": 4}
    keys: list[Any] = [None, (image,), None, None, None, None]
    assert rig.reach(LONG, extra_keys=keys) == {"a": 24}
    assert rig.reach(LONG, extra_keys=keys[:5]) == {}


def test_another_secret_makes_other_keys() -> None:
    mine, theirs = Rig(), Rig(secret=bytes(32))
    for rig in (mine, theirs):
        rig.tell(rig.engine(), told(LONG))
    (lane,), (other,) = mine.views[0].lanes, theirs.views[0].lanes
    assert mine.core.key_of(lane.stream, 1) != theirs.core.key_of(other.stream, 1)


# ---- side by side with the counts of names


@pytest.mark.parametrize("name", ["vllm_cpu_0320_redisconn", "vllm_cpu_0320_lmcachemp"])
def test_captures_of_a_real_vllm_end_in_the_index(rig: Rig, name: str) -> None:
    path = CAPTURES / f"{name}.frames.msgpack"
    if not path.exists():
        pytest.skip(f"no capture at {path}")
    view = rig.engine(block_tokens=32)
    with path.open("rb") as file:
        for frame in read_capture(file):
            view.take(frame.sequence, frame.payload, now_us=int(frame.received_s * 1e6))
    status = view.status()
    assert (status.state, status.blocks, status.quarantined) == (
        ViewState.LIVE, {"gpu": {0: 46}}, 0,
    )  # fmt: skip
    assert status.groups[0].spec_kind == "full_attention"
    # A prompt that the engine had with a salt is found with that salt only.
    decoded = CAPTURES / f"{name}.decoded.jsonl"
    events = [
        event
        for line in decoded.read_text(encoding="utf-8").splitlines()
        for event in json.loads(line)["batch"][1]
    ]
    (salted,) = [each for each in events if (each.get("extra_keys") or [None])[0] == ["tenant-a"]]
    tokens = salted["token_ids"]
    assert rig.reach(tokens, salt="tenant-a") == {"a": len(tokens)}
    assert rig.reach(tokens, salt="tenant-b") == {}


NAMES = st.lists(st.integers(1, 6), max_size=4, unique=True)
SHELVES = st.tuples(st.sampled_from(["gpu", "cpu"]), st.integers(0, 1))
TOLD = st.one_of(
    st.tuples(st.just("stored"), NAMES, SHELVES),
    st.tuples(st.just("removed"), NAMES, SHELVES),
    st.tuples(st.just("cleared"), st.just([]), st.just(("gpu", 0))),
)


@given(st.lists(st.tuples(st.sampled_from(["next", "next", "lost", "anew"]), st.lists(TOLD))))
def test_a_view_holds_as_many_blocks_as_plain_names_say(script) -> None:
    rig, plain = Rig(), Replay()
    view = rig.engine(block_tokens=2)
    number = -1
    for at, (how, events) in enumerate(script):
        number = 0 if how == "anew" else number + (2 if how == "lost" else 1)
        frame = []
        for kind, names, (medium, group) in events:
            where = {"medium": medium.upper(), "group_idx": group}
            if kind == "stored":
                # Each a chain of its own, so that none of them has to wait.
                frame += [
                    stored([name], token_ids=[name, name], block_size=2, **where) for name in names
                ]
            elif kind == "removed":
                frame.append(removed(names, **where))
            else:
                frame.append(CLEARED)
        payload = packed(*frame, at_s=at + 1.0)
        plain.take(b"", number, payload)
        view.take(number, payload, now_us=NOW_US)
    assert view.status().blocks == plain.counts()
    assert view.epoch == plain.epochs
    rig.core.check_invariants()
