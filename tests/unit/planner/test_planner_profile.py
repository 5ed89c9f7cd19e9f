"""Cost profiles: what they refuse, which path they take, and how they are fitted."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.contract.enums import TierKind
from app.errors import NexusError
from app.planner.fit import Point, fit_path, fit_prefill
from app.planner.profile import Path, canonical_bytes, load_profile
from tests.unit.planner.questions import PROFILE


def document(**changes: Any) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(canonical_bytes(PROFILE))
    return found | changes


def test_a_document_is_the_profile_it_was() -> None:
    assert load_profile(document()) == PROFILE
    assert load_profile(document()).version == PROFILE.version
    assert load_profile(document(restore_us=51.0)).version != PROFILE.version


PATH = {"tier": "device", "latency_us": 1.0, "bytes_per_us": 1.0, "uncertainty": 0.1}


@pytest.mark.parametrize(
    ("changes", "pointers"),
    [
        ({"paths": [PATH | {"bytes_per_us": 0}]}, ["/paths/0/bytes_per_us"]),
        ({"paths": [PATH | {"bytes_per_us": float("inf")}]}, ["/paths/0/bytes_per_us"]),
        ({"paths": [PATH | {"latency_us": float("nan")}]}, ["/paths/0/latency_us"]),
        ({"paths": [PATH | {"latency_us": -1}]}, ["/paths/0/latency_us"]),
        ({"paths": [PATH | {"tier": "tape"}]}, ["/paths/0/tier"]),
        ({"paths": [PATH] * 65}, ["/paths"]),
        ({"default_bytes_per_token": 0}, ["/default_bytes_per_token"]),
        ({"restore_us": "1", "sync_us": -1}, ["/restore_us", "/sync_us"]),
        ({"schema_version": "nexuskv.cost_profile.v9"}, ["/schema_version"]),
        ({"colour": "blue"}, ["/colour"]),
    ],
)  # fmt: skip
def test_everything_wrong_is_told_with_its_place(
    changes: dict[str, Any], pointers: list[str]
) -> None:
    with pytest.raises(NexusError) as caught:
        load_profile(document(**changes))
    assert sorted(error.pointer for error in caught.value.errors) == sorted(pointers)


@pytest.mark.parametrize("given_", [None, [], "text", 5])
def test_what_is_no_mapping_is_refused(given_: object) -> None:
    with pytest.raises(NexusError):
        load_profile(given_)


def test_a_path_that_says_remote_comes_before_one_that_does_not() -> None:
    any_, far = Path(TierKind.DEVICE, 1, 1, 0), Path(TierKind.DEVICE, 2, 1, 0, remote=True)
    profile = load_profile(
        document(paths=[json.loads(json.dumps(PATH)), PATH | {"remote": True, "latency_us": 2.0}])
    )
    assert profile.path(TierKind.DEVICE, remote=True).latency_us == far.latency_us
    assert profile.path(TierKind.DEVICE, remote=False).latency_us == any_.latency_us
    assert profile.path(TierKind.LOCAL_SSD, remote=False) is None


POSITIVE = st.floats(0.01, 1e3)


@given(schedule=POSITIVE, per_token=POSITIVE, per_pair=st.floats(1e-6, 1e-2))
def test_exact_points_give_their_own_terms(
    schedule: float, per_token: float, per_pair: float
) -> None:
    sizes = [128.0, 1_024.0, 8_192.0, 65_536.0]
    points = [Point(n, schedule + per_token * n + per_pair * n * n / 2) for n in sizes]
    found = fit_prefill(points)
    for point in points:
        told = found.schedule_us + found.recompute_us(point.size, 0)
        assert told == pytest.approx(point.took_us, rel=1e-4)
    assert found.uncertainty < 1e-4


def test_no_term_is_below_zero() -> None:
    """Points that bend the other way: a line is the best that is no nonsense."""
    found = fit_prefill([Point(1_000, 10_000), Point(2_000, 18_000), Point(4_000, 30_000)])
    assert found.per_pair_us == 0
    assert found.per_token_us > 0
    assert found.schedule_us >= 0


@pytest.mark.parametrize(
    "points",
    [[], [Point(1, 1)], [Point(1, 1), Point(1, 2)], [Point(1, 1), Point(2, float("inf"))]],
)
def test_too_little_to_fit_is_refused(points: list[Point]) -> None:
    with pytest.raises(ValueError, match="points"):
        fit_prefill(points)


def test_transfers_that_do_not_grow_have_no_bandwidth() -> None:
    with pytest.raises(ValueError, match="bandwidth"):
        fit_path([Point(1, 10), Point(100, 10)], Path(TierKind.DEVICE, 0, 1, 0))
