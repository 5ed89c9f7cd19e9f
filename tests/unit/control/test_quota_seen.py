"""What a movement was judged on is enough to judge it again."""

from hypothesis import given
from hypothesis import strategies as st

from app.policy.document import QuotaAdmissionPolicy, QuotaMode
from app.quota.decision import QuotaUsage, decide, exceeded_by, seen_by

COUNT = st.integers(0, 5)
LIMITS = st.builds(
    QuotaAdmissionPolicy,
    mode=st.sampled_from(QuotaMode),
    max_payload_bytes=COUNT,
    max_entries=COUNT,
    max_concurrent_transfers=COUNT,
)
HELD = st.builds(QuotaUsage, payload_bytes=COUNT, entries=COUNT, transfers=COUNT)


@given(quota=LIMITS, held=HELD, payload_bytes=COUNT, repeated=st.booleans())
def test_judged_again_it_is_allowed_as_it_was(
    quota: QuotaAdmissionPolicy, held: QuotaUsage, payload_bytes: int, *, repeated: bool
) -> None:
    """First the transfer, then the payload, as they are charged."""
    verdict = decide(quota, held, QuotaUsage(transfers=1), repeated=repeated)
    if verdict.allowed:
        with_transfer = held if repeated else held.plus(QuotaUsage(transfers=1))
        asked = QuotaUsage(payload_bytes, 1)
        verdict = decide(quota, with_transfer, asked, repeated=repeated)
    seen = seen_by(payload_bytes, verdict)
    if not repeated:
        assert (seen.used_payload_bytes, seen.used_entries, seen.used_transfers) == (
            held.payload_bytes,
            held.entries,
            held.transfers,
        )
    exceeded = exceeded_by(quota, seen)
    assert verdict.allowed == (not exceeded or quota.mode is not QuotaMode.ENFORCED)
