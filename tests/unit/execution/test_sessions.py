"""Every pair of statuses of a transfer session."""

from itertools import product

import pytest

from app.contract.enums import TransferStatus
from app.execution.sessions import RUNNING, TRANSFER_TRANSITIONS, before

BADLY = ["missing", "fallback", "rejected", "cancelled", "failed"]
FINAL = ["completed", "registered"]
STATUSES = ["initiated", "in_flight", *FINAL, *BADLY]
LEGAL = {
    ("initiated", "in_flight"),
    *product(["initiated"], FINAL),
    ("in_flight", "completed"),
    *product(["initiated", "in_flight"], BADLY),
    # Whatever did not succeed may be tried again under its id, and whatever lost its copy.
    *product(BADLY, ["initiated"]),
    ("completed", "initiated"),
}


def test_the_table_has_every_status() -> None:
    assert set(STATUSES) == {status.value for status in TransferStatus}
    assert set(TRANSFER_TRANSITIONS) == set(TransferStatus)
    assert {status.value for status in RUNNING} == {"initiated", "in_flight"}


@pytest.mark.parametrize(("one", "after"), list(product(STATUSES, STATUSES)))
def test_a_step_is_legal_exactly_where_the_life_of_a_session_has_it(one: str, after: str) -> None:
    legal = TransferStatus(after) in TRANSFER_TRANSITIONS[TransferStatus(one)]
    assert legal == ((one, after) in LEGAL)
    assert legal == (TransferStatus(one) in before(TransferStatus(after)))


def test_what_moved_nothing_never_changes() -> None:
    assert not TRANSFER_TRANSITIONS[TransferStatus.REGISTERED]
