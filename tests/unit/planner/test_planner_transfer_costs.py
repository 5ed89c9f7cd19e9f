"""One transfer by a stored profile, against the reference figures and by hand."""

from math import ceil

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import structs

from app.contract.enums import TierKind
from app.contract.limits import MAX_I63
from app.planner.cost import REFERENCE, Locality, Provenance, Term
from app.planner.links import Link, Links
from app.planner.profile import Path
from app.planner.transfer_costs import ProfileCosts, costs_from, recorded_link
from app.profiles.document import read_profile
from app.settings import REFERENCE_PROFILE_FILE
from tests.unit.planner.questions import PROFILE

STORED = ProfileCosts(read_profile(REFERENCE_PROFILE_FILE.read_bytes()))
LOCATOR = "node://n1/state/s"
# Below these every product is exact in a float, so that both round alike.
BYTES = st.integers(0, 2**50)
TOKENS = st.integers(0, 2**30)


@settings(max_examples=500, deadline=None)
@given(
    tier=st.sampled_from(TierKind),
    payload_bytes=st.none() | BYTES,
    tokens=TOKENS,
    locator=st.sampled_from([LOCATOR, "node://n2/state/s", "pool://x"]),
)
def test_the_shipped_profile_prices_as_the_reference_to_the_microsecond(
    tier: TierKind, payload_bytes: int | None, tokens: int, locator: str
) -> None:
    asked = {
        "tier": tier, "locator": locator, "target_residency": "n1",
        "payload_bytes": payload_bytes, "tokens": tokens,
    }  # fmt: skip
    assert STORED.estimate(**asked) == REFERENCE.estimate(**asked)  # type: ignore[arg-type]
    assert STORED.computing(tokens) == REFERENCE.computing(tokens)
    assert STORED.recompute_us(tokens) == REFERENCE.recompute_us(tokens)


@given(
    tier=st.sampled_from(TierKind),
    payload_bytes=st.integers(2**50, MAX_I63),
    tokens=st.integers(2**30, MAX_I63),
)
def test_beyond_what_a_float_holds_both_come_near(
    tier: TierKind, payload_bytes: int, tokens: int
) -> None:
    found, known = (
        costs.estimate(
            tier=tier, locator=LOCATOR, target_residency="n1",
            payload_bytes=payload_bytes, tokens=tokens,
        ).transfer_us
        for costs in (STORED, REFERENCE)
    )  # fmt: skip
    assert found == pytest.approx(known, rel=1e-12, abs=1)
    assert STORED.recompute_us(tokens) == pytest.approx(REFERENCE.recompute_us(tokens), rel=1e-12)
    assert max(found, STORED.recompute_us(tokens)) <= MAX_I63


def bytes_term(costs: ProfileCosts, tier: TierKind, payload_bytes: int | None = 10**9) -> Term:
    estimate = costs.estimate(
        tier=tier, locator=LOCATOR, target_residency="n2",
        payload_bytes=payload_bytes, tokens=1_000,
    )  # fmt: skip
    assert estimate.locality is Locality.REMOTE
    assert estimate.transfer_us == min(MAX_I63, sum(one.value_us for one in estimate.terms))
    return next(term for term in estimate.terms if term.name == "bytes")


def test_a_link_goes_before_the_profile_and_is_shared_with_what_runs() -> None:
    linked = Links(("n1", "n2"), {("n1", "n2"): Link(7.0, 1_000.0)})
    costs = ProfileCosts(PROFILE, linked)
    assert bytes_term(costs, TierKind.HOST_DRAM) == Term("bytes", 1_000_007, Provenance.MEASURED)
    linked.begin("n1", "n2", 2)
    assert bytes_term(costs, TierKind.HOST_DRAM).value_us == 3_000_007
    # There is no way back: the profile's path to another node holds.
    back = costs.estimate(
        tier=TierKind.HOST_DRAM, locator="node://n2/s", target_residency="n1",
        payload_bytes=10**9, tokens=1,
    )  # fmt: skip
    assert Term("bytes", 200_500, Provenance.PROFILE) in back.terms


def test_terms_are_those_of_the_profile() -> None:
    found = ProfileCosts(PROFILE).estimate(
        tier=TierKind.HOST_DRAM, locator=LOCATOR, target_residency="n1",
        payload_bytes=None, tokens=1_000,
    )  # fmt: skip
    assert found.terms == (
        Term("lookup", 30, Provenance.PROFILE),
        Term("sync", 10, Provenance.PROFILE),
        Term("restore", 50, Provenance.PROFILE),
        Term("bytes", 50 + 100_000_000 // 20_000, Provenance.DEFAULT),
    )
    assert (found.payload_bytes, found.topology_path) == (None, None)


def test_a_tier_without_a_path_is_read_at_a_gigabyte_a_second_and_says_so() -> None:
    found = bytes_term(ProfileCosts(PROFILE), TierKind.OBJECT_STORE)
    assert found == Term("bytes", 1_000_000, Provenance.UNKNOWN)
    guessed = bytes_term(ProfileCosts(PROFILE), TierKind.OBJECT_STORE, None)
    assert guessed.provenance is Provenance.DEFAULT


@pytest.mark.parametrize("rate", [5e-324, 1e-300, 1e-9])
@pytest.mark.parametrize("payload_bytes", [1, 2**62, MAX_I63, None])
def test_no_bandwidth_makes_a_transfer_endless(rate: float, payload_bytes: int | None) -> None:
    """The least that a profile or a topology may say."""
    slow = structs.replace(PROFILE, paths=(Path(TierKind.HOST_DRAM, 0.0, rate, 0.1),))
    linked = Links(("n1", "n2"), {("n1", "n2"): Link(0.0, rate, 65_536)})
    for costs in (ProfileCosts(slow), ProfileCosts(PROFILE, linked)):
        assert 1 <= bytes_term(costs, TierKind.HOST_DRAM, payload_bytes).value_us <= MAX_I63


def test_no_prefill_is_longer_than_an_integer_holds() -> None:
    prefill = structs.replace(PROFILE.prefill, per_pair_us=1e15, per_token_us=1e15)
    costs = ProfileCosts(structs.replace(PROFILE, prefill=prefill))
    assert costs.recompute_us(MAX_I63) == MAX_I63
    assert costs.recompute_us(0) == ceil(prefill.schedule_us)


def test_a_link_is_known_again_from_a_record() -> None:
    linked = Links(("n1", "n2"), {("n1", "n2"): Link(7.0, 1_000.0, 1, 4)})
    costs = ProfileCosts(PROFILE, linked)
    recorded = recorded_link(costs, LOCATOR, "n2")
    assert recorded == [7.0, 1_000.0, 1, 4]
    again = costs_from(PROFILE, recorded, LOCATOR, "n2")
    assert bytes_term(again, TierKind.HOST_DRAM) == bytes_term(costs, TierKind.HOST_DRAM)
    assert recorded_link(costs, "node://n2/s", "n1") is None
    assert costs_from(PROFILE, None, LOCATOR, "n2") == ProfileCosts(PROFILE)
    for broken in ([1.0], ["a", 1, 1, 1], 5):
        with pytest.raises((ValueError, TypeError)):
            costs_from(PROFILE, broken, LOCATOR, "n2")
