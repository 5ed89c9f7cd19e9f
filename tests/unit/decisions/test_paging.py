import base64
from datetime import UTC, datetime
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.decisions.cursor import Moment, Place, Position, cursor_after, place_of
from app.errors import ErrorCode, NexusError
from app.paging import (
    MAX_CURSOR_CHARS,
    MAX_PAGE_ITEMS,
    coerce_page_size,
    decode_cursor,
    encode_cursor,
)

FILTERS = {"tenant": "acme", "kind": "lookup", "model": None}
POSITION = Position(
    datetime(2026, 8, 1, 12, 30, 15, 123456, tzinfo=UTC),
    UUID("01990000-0000-7000-8000-000000000001"),
)
PLACE = Place(POSITION, Moment.read("100:110:101,105"))
CURSOR = cursor_after(PLACE, FILTERS)


def code_of(
    cursor: str, filters: dict[str, object] | None = None, kind: str = "list"
) -> ErrorCode | None:
    """The code a list refuses the cursor with; None when it takes it."""
    try:
        decode_cursor(kind, FILTERS if filters is None else filters, cursor, tuple[int, str])
    except NexusError as error:
        return error.code
    return None


def refused(cursor: str, filters: dict[str, object] | None = None, kind: str = "list") -> bool:
    return code_of(cursor, filters, kind) is ErrorCode.INVALID_CURSOR


def test_a_position_survives_to_the_microsecond() -> None:
    assert place_of(CURSOR, FILTERS) == PLACE


def test_absent_filters_and_their_order_do_not_matter() -> None:
    assert place_of(CURSOR, {"kind": "lookup", "tenant": "acme"}) == PLACE


@pytest.mark.parametrize(
    "other",
    [
        {},
        {"tenant": "acme"},
        {"tenant": "acme", "kind": "estimate"},
        {"tenant": "lookup", "kind": "acme"},
        {"tenant": "acme", "kind": "lookup", "model": ""},
    ],
)
def test_a_cursor_is_refused_with_other_filters(other: dict[str, object]) -> None:
    assert refused(encode_cursor("list", FILTERS, (1, "a")), other)


def test_a_cursor_is_refused_by_another_list() -> None:
    cursor = encode_cursor("list", FILTERS, (1, "a"))
    assert code_of(cursor) is None
    assert refused(cursor, kind="states")


def test_any_altered_bit_is_refused() -> None:
    cursor = encode_cursor("list", FILTERS, (1, "abcdef"))
    raw = base64.urlsafe_b64decode(cursor + "=" * (-len(cursor) % 4))
    for bit in range(8 * len(raw)):
        altered = bytearray(raw)
        altered[bit // 8] ^= 1 << bit % 8
        assert refused(base64.urlsafe_b64encode(altered).decode().rstrip("=")), bit


@given(st.text(max_size=200))
def test_text_that_is_no_cursor_is_refused(text: str) -> None:
    assert refused(text)


def test_a_cursor_over_the_limit_is_refused() -> None:
    assert refused("A" * (MAX_CURSOR_CHARS + 1))


def test_a_position_of_another_shape_is_refused() -> None:
    assert refused(encode_cursor("list", FILTERS, ("a", 1)))


@pytest.mark.parametrize(
    ("asked", "given_items"),
    [(1, 1), (100, 100), (MAX_PAGE_ITEMS, 1000), (1001, 1000), (10**30, 1000)],
)
def test_a_page_size_over_the_limit_is_coerced(asked: int, given_items: int) -> None:
    assert coerce_page_size(asked) == given_items


@pytest.mark.parametrize("asked", [0, -1, -(10**30)])
def test_a_page_size_below_one_is_refused(asked: int) -> None:
    with pytest.raises(NexusError) as caught:
        coerce_page_size(asked)
    assert caught.value.code is ErrorCode.INVALID_FIELD
    assert [finding.pointer for finding in caught.value.errors] == ["/query/page_size"]
