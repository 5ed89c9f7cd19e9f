"""What an engine holds after its frames: sequences, gaps, restarts, media and groups."""

import json
from pathlib import Path

import msgpack
import pytest
from hypothesis import given
from hypothesis import strategies as st
from typer.testing import CliRunner

from app.cli import cli
from app.engines.replay import Replay
from tests.engines.wires import CLEARED, as_array, packed, removed, stored

TOPIC = b"kv-events"
# Raw captures of real engines, where they are at hand.
CAPTURES = Path(__file__).resolve().parents[3] / "shared" / "captures"


def replayed(*frames: tuple[int, bytes], topic: bytes = TOPIC) -> Replay:
    replay = Replay()
    for number, payload in frames:
        replay.take(topic, number, payload)
    return replay


def outcome(replay: Replay) -> tuple[dict[str, dict[int, int]], int, int, int]:
    return replay.counts(), replay.events, replay.gaps, replay.epochs


def test_blocks_are_held_by_medium_and_group() -> None:
    replay = replayed(
        (0, packed(stored([1, 2, 3]), stored([1, 2], medium="CPU"), stored([1], group_idx=3))),
        (1, packed(removed([2]), removed([1], medium="cpu"), as_array(stored([4])))),
        (2, packed(stored([3, 4]))),
    )
    assert outcome(replay) == ({"cpu": {0: 1}, "gpu": {0: 3, 3: 1}}, 7, 0, 1)


def test_removals_of_one_medium_or_group_leave_the_others_and_never_go_below_zero() -> None:
    replay = replayed(
        (0, packed(stored([1]), stored([1], group_idx=1), removed([1]), removed([1]), removed([9])))
    )
    assert outcome(replay) == ({"gpu": {1: 1}}, 5, 0, 1)
    assert replay.removed_unknown == 2


def test_clearing_leaves_nothing() -> None:
    replay = replayed((0, packed(stored([1]), stored([1], medium="CPU"), CLEARED)))
    assert outcome(replay) == ({}, 3, 0, 1)


def test_after_a_gap_only_what_is_stored_again_is_held() -> None:
    frames = [(0, packed(stored([1, 2, 3, 4]))), (3, packed(stored([2, 5]), removed([4])))]
    replay = replayed(*frames)
    assert outcome(replay) == ({"gpu": {0: 2}}, 3, 1, 1)
    assert replay.counts(doubtful=True) == {"gpu": {0: 2}}
    cleared = replayed(*frames, (4, packed(CLEARED)))
    assert (cleared.counts(), cleared.counts(doubtful=True)) == ({}, {})


def test_whoever_listens_late_has_missed_something() -> None:
    assert outcome(replayed((7, packed(stored([1]))))) == ({"gpu": {0: 1}}, 1, 1, 1)


@pytest.mark.parametrize("first", [0, 2])
def test_a_sequence_that_goes_back_is_another_process(first: int) -> None:
    replay = replayed(
        (0, packed(stored([1]))), (1, packed(stored([2]))), (2, packed(stored([3]))),
        (first, packed(stored([8, 9]))),
    )  # fmt: skip
    assert outcome(replay) == ({"gpu": {0: 2}}, 4, int(first > 0), 2)
    assert replay.counts(doubtful=True) == {}


def test_the_same_frame_twice_says_nothing_new() -> None:
    replay = replayed(
        (0, packed(stored([1]))), (1, packed(removed([1]))), (1, packed(removed([1])))
    )
    assert outcome(replay) == ({}, 2, 0, 1)
    assert (replay.repeated, replay.removed_unknown) == (1, 0)


def test_each_rank_and_topic_has_its_own_sequence() -> None:
    replay = replayed((0, packed(stored([1]))), (0, packed(stored([1]), rank=1)))
    replay.take(b"other", 0, packed(stored([2])))
    replay.take(b"other", 1, packed(CLEARED))
    assert outcome(replay) == ({"gpu": {0: 2}}, 4, 0, 3)


def test_a_frame_that_cannot_be_read_is_as_good_as_lost() -> None:
    replay = replayed((0, packed(stored([1]))), (1, b"\xc1"), (2, packed(stored([2]))))
    assert outcome(replay) == ({"gpu": {0: 1}}, 2, 1, 1)
    assert replay.counts(doubtful=True) == {"gpu": {0: 1}}
    assert sum(replay.refused.values()) == 1
    assert outcome(replayed((0, b"\xc1"), (1, packed(stored([2])))))[2:] == (1, 1)


NAMES = st.lists(st.integers(0, 5), max_size=4)
SHELVES = st.tuples(st.sampled_from(["gpu", "cpu"]), st.integers(0, 1))
TOLD = st.one_of(
    st.tuples(st.just("stored"), NAMES, SHELVES),
    st.tuples(st.just("removed"), NAMES, SHELVES),
    st.tuples(st.just("cleared"), st.just([]), st.just(("gpu", 0))),
)


@given(st.lists(st.tuples(st.sampled_from(["next", "next", "lost", "anew"]), st.lists(TOLD))))
def test_the_counts_are_those_of_plain_sets(script) -> None:
    replay, held = Replay(), set()
    number, gaps, epochs = -1, 0, 0
    for how, events in script:
        if how == "anew" and number >= 0:
            number, held, epochs = -1, set(), epochs + 1
        number += 2 if how == "lost" else 1
        if how == "lost":
            gaps, held = gaps + 1, set()
        frame = []
        for kind, names, (medium, group) in events:
            blocks = {(medium, group, name) for name in names}
            where = {"medium": medium.upper(), "group_idx": group}
            if kind == "stored":
                held |= blocks
                frame.append(stored(names, **where))
            elif kind == "removed":
                held -= blocks
                frame.append(removed(names, **where))
            else:
                held = set()
                frame.append(CLEARED)
        # No two frames are alike.
        replay.take(TOPIC, number, packed(*frame, at_s=float(replay.frames)))
    expected: dict[str, dict[int, int]] = {}
    for medium, group, _ in held:
        groups = expected.setdefault(medium, {})
        groups[group] = groups.get(group, 0) + 1
    told = sum(len(events) for _, events in script)
    assert outcome(replay) == (expected, told, gaps, epochs + bool(script))


def capture_of(path: Path, *frames: tuple[int, bytes]) -> Path:
    path.write_bytes(
        b"".join(
            msgpack.packb([1.25, [TOPIC, number.to_bytes(8, "big"), payload]])
            for number, payload in frames
        )
    )
    return path


def run(path: Path, *options: str):
    return CliRunner().invoke(cli, ["index", "replay", str(path), *options])


def test_the_command_prints_what_is_held(tmp_path: Path) -> None:
    path = capture_of(
        tmp_path / "frames",
        (0, packed(stored([1, 2]), stored([3], medium="CPU", group_idx=1))),
        (4, packed(removed([1], hue=2), stored([2]), {"type": "New"})),
    )
    printed = run(path, "--json")
    assert printed.exit_code == 0
    assert json.loads(printed.stdout) == {
        "blocks": {"gpu": {"0": 1}}, "events": 4, "gaps": 1, "epochs": 1,
    }  # fmt: skip
    table = run(path).stdout
    for text in ("gpu", "cpu", "gaps: 1", "epochs: 1", "New (1)", "hue (1)"):
        assert text in table
    assert "holds nothing" in run(capture_of(tmp_path / "none")).stdout


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (b"\x92\xcb?\xf4", "record 0 (byte 0) cannot be read: the file ends within it"),
        (b"a text\n", "record 0 (byte 0) cannot be read: expected"),
        (msgpack.packb([1.0, [b"t", b"123", b""]]), "sequence of 8 bytes"),
        (b"\xc1", "record 0 (byte 0) cannot be read"),
        (b"\xdd\xff\xff\xff\xff", "cannot be read"),
        (b"\x92\x01\x93\xa1t\xc6\xff\xff\xff\xff", "cannot be read"),
    ],
)
def test_what_is_no_capture_is_said(tmp_path: Path, content: bytes, says: str) -> None:
    path = tmp_path / "frames"
    path.write_bytes(content)
    refused = run(path, "--json")
    assert (refused.exit_code, refused.stdout) == (2, "")
    assert says in refused.stderr
    # After whole records, too.
    capture_of(path, (0, packed(CLEARED)))
    with path.open("ab") as file:
        file.write(content)
    assert "record 1" in run(path).stderr


@pytest.mark.parametrize("name", ["vllm_cpu_0320_redisconn", "vllm_cpu_0320_lmcachemp"])
def test_captures_of_a_real_vllm(name: str) -> None:
    path = CAPTURES / f"{name}.frames.msgpack"
    if not path.exists():
        pytest.skip(f"no capture at {path}")
    assert json.loads(run(path, "--json").stdout) == {
        "blocks": {"gpu": {"0": 46}}, "events": 127, "gaps": 0, "epochs": 1,
    }  # fmt: skip
