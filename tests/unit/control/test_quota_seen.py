"""What a movement was judged on is enough to judge it again, also under another policy."""

from hypothesis import given
from hypothesis import strategies as st

from app.policy.document import QuotaAdmissionPolicy, QuotaMode
from app.quota.decision import QuotaUsage, QuotaVerdict, decide, exceeded_by, seen_by

COUNT = st.integers(0, 5)
LIMITS = st.builds(
    QuotaAdmissionPolicy,
    mode=st.sampled_from(QuotaMode),
    max_payload_bytes=COUNT,
    max_entries=COUNT,
    max_concurrent_transfers=COUNT,
)
HELD = st.builds(QuotaUsage, payload_bytes=COUNT, entries=COUNT, transfers=COUNT)


def charged(
    quota: QuotaAdmissionPolicy,
    held: QuotaUsage,
    payload_bytes: int,
    charged_bytes: int | None,
    *,
    transfer_charged: bool,
) -> tuple[QuotaVerdict, bool]:
    """The verdict on the transfer, and whether both are allowed: as `app.quota.charges` does it."""
    asked = QuotaUsage() if transfer_charged else QuotaUsage(transfers=1)
    moving = decide(quota, held, asked, repeated=False)
    if not moving.allowed:
        return moving, False
    with_transfer = held.plus(asked)
    payload = QuotaUsage(payload_bytes, 1)
    if charged_bytes is not None:
        payload = QuotaUsage(max(0, payload_bytes - charged_bytes))
    return moving, decide(quota, with_transfer, payload, repeated=False).allowed


@given(
    then=LIMITS,
    other=LIMITS,
    held=HELD,
    payload_bytes=COUNT,
    charged_bytes=st.none() | COUNT,
    transfer_charged=st.booleans(),
)
def test_judged_again_it_is_what_the_policy_would_have_said(
    *,
    then: QuotaAdmissionPolicy,
    other: QuotaAdmissionPolicy,
    held: QuotaUsage,
    payload_bytes: int,
    charged_bytes: int | None,
    transfer_charged: bool,
) -> None:
    moving, _ = charged(then, held, payload_bytes, charged_bytes, transfer_charged=transfer_charged)
    if transfer_charged:
        moving = QuotaVerdict(**{**_fields(moving), "repeated": True})
    seen = seen_by(payload_bytes, moving, charged_bytes)
    for quota in (then, other):
        _, allowed = charged(
            quota, held, payload_bytes, charged_bytes, transfer_charged=transfer_charged
        )
        refused = bool(exceeded_by(quota, seen)) and quota.mode is QuotaMode.ENFORCED
        assert allowed is not refused


def _fields(verdict: QuotaVerdict) -> dict[str, object]:
    return {name: getattr(verdict, name) for name in verdict.__slots__}
