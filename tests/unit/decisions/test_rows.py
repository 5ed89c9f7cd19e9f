"""Rows in the spool are read by the version before and the one after."""

from typing import Any
from uuid import UUID

import msgspec

from app.clock import SystemClock, SystemIds
from app.decisions.record import Outcome, OutcomeStatus
from app.decisions.rows import OutcomeRecord, decode, encode, encode_outcome, row_of

BEFORE = len(Outcome._fields) - 1


class OutcomeRecordBefore(msgspec.Struct, array_like=True, frozen=True, tag=3, gc=False):
    """As the version before read and wrote it."""

    fields: list[Any]


def outcome(transfer_us: int | None) -> Outcome:
    return Outcome(
        UUID(int=SystemIds().uuid7().int), SystemClock().now(), UUID(int=SystemIds().uuid7().int),
        "acme", OutcomeStatus.COMPLETED, None, 1_000, 4_096, True, "{}", gain_us=5,
        transfer_us=transfer_us,
    )  # fmt: skip


def test_an_outcome_is_read_as_it_was_written() -> None:
    for transfer_us in (None, 0, 700):
        made = outcome(transfer_us)
        found = decode(encode_outcome(made))
        assert isinstance(found, OutcomeRecord)
        assert row_of(found) == made


def test_the_version_before_reads_what_it_knows() -> None:
    made = outcome(700)
    found = msgspec.msgpack.decode(encode_outcome(made), type=OutcomeRecordBefore)
    assert len(found.fields) == BEFORE
    assert found.fields[3] == "acme"


def test_what_the_version_before_wrote_is_read() -> None:
    made = outcome(None)
    fields = decode(encode_outcome(made)).fields  # type: ignore[union-attr]
    found = decode(encode(OutcomeRecordBefore(fields)))
    assert isinstance(found, OutcomeRecord)
    assert row_of(found) == made
