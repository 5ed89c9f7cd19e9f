"""The reference profile against figures worked out by hand."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from app.contract.enums import TierKind
from app.planner.cost import (
    REFERENCE,
    CostModel,
    Locality,
    Provenance,
    Term,
    TransferEstimate,
    node_of,
)

MODEL: CostModel = REFERENCE
MAX = 2**63 - 1


def estimate(
    tier: TierKind = TierKind.HOST_DRAM,
    locator: str = "node://n1/state/p1",
    payload_bytes: int | None = 1,
    tokens: int = 1,
) -> TransferEstimate:
    return MODEL.estimate(
        tier=tier,
        locator=locator,
        target_residency="n1",
        payload_bytes=payload_bytes,
        tokens=tokens,
    )


@pytest.mark.parametrize(
    ("tier", "one_gigabyte_us"),
    [
        (TierKind.DEVICE, 299),  # 10^9 / 3,350,000 = 298.5
        (TierKind.HOST_DRAM, 5_000),
        (TierKind.LOCAL_SSD, 142_858),  # 142,857.1
        (TierKind.REMOTE_SHARED, 20_000),
        (TierKind.OBJECT_STORE, 1_000_000),
    ],
)
def test_a_gigabyte_from_each_tier(tier: TierKind, one_gigabyte_us: int) -> None:
    found = estimate(tier=tier, payload_bytes=10**9)
    assert found.transfer_us == 50 + one_gigabyte_us
    assert found.terms == (
        Term("restore", 50, Provenance.PROFILE),
        Term("bytes", one_gigabyte_us, Provenance.PROFILE),
    )


def test_every_tier_has_a_figure() -> None:
    assert set(REFERENCE.bytes_per_us) == set(TierKind)


def test_a_part_of_a_microsecond_is_a_whole_one() -> None:
    assert [estimate(payload_bytes=n).transfer_us for n in (0, 1, 200_000, 200_001)] == [
        50,
        51,
        51,
        52,
    ]


def test_unknown_bytes_are_a_default_that_says_so() -> None:
    found = estimate(payload_bytes=None, tokens=1000)
    assert found.payload_bytes is None
    # 1,000 * 131,072 bytes at 200,000 a microsecond: 655.36
    assert found.terms[1] == Term("bytes", 656, Provenance.DEFAULT)
    assert found.transfer_us == 706


@pytest.mark.parametrize(
    ("locator", "local"),
    [
        ("node://n1/state/p1", True),
        ("node://n1/", True),
        ("node://n1", False),
        ("node://n10/state/p1", False),
        ("node://n2/n1/state", False),
        ("NODE://n1/state", False),
        ("n1/state/p1", False),
        ("s3://n1/state/p1", False),
        ("", False),
    ],
)
def test_local_is_a_locator_on_the_targets_node(locator: str, local: bool) -> None:
    found = estimate(locator=locator)
    if local:
        assert (found.locality, found.topology_path) == (Locality.LOCAL, None)
    else:
        assert (found.locality, found.topology_path) == (Locality.REMOTE, "host_dram->device@n1")


def test_a_residency_is_a_node_and_not_a_path() -> None:
    found = MODEL.estimate(
        tier=TierKind.DEVICE,
        locator="node://n1/state/p1",
        target_residency="n1/state",
        payload_bytes=1,
        tokens=1,
    )
    assert found.topology_path == "device->device@n1/state"


def test_node_of_a_locator() -> None:
    assert node_of("node://n1/state/p1") == "n1"
    assert node_of("node:///state") is None


def test_recomputing_is_scheduling_and_prefill() -> None:
    assert [MODEL.recompute_us(tokens) for tokens in (0, 1, 2000)] == [100, 105, 10_100]


@settings(deadline=None)
@given(
    st.sampled_from(TierKind),
    st.none() | st.integers(0, 2**80),
    st.integers(1, 2**80),
)
def test_no_figure_leaves_63_bits(tier: TierKind, payload_bytes: int | None, tokens: int) -> None:
    found = estimate(tier=tier, payload_bytes=payload_bytes, tokens=tokens)
    assert 50 <= found.transfer_us <= MAX
    assert found.transfer_us == min(sum(term.value_us for term in found.terms), MAX)
    assert MODEL.recompute_us(tokens) <= MAX


@settings(deadline=None)
@given(st.sampled_from(TierKind), st.integers(0, 2**62), st.integers(0, 2**62))
def test_more_bytes_never_take_less_time(tier: TierKind, some: int, more: int) -> None:
    few, many = sorted((some, more))
    assert (
        estimate(tier=tier, payload_bytes=few).transfer_us
        <= estimate(tier=tier, payload_bytes=many).transfer_us
    )
