from datetime import UTC, datetime, timedelta, timezone

import pytest
from pydantic import ValidationError

from app.decisions.models import DecisionOutcomeRow, DecisionRow
from app.decisions.record import DECISION_COLUMNS, OUTCOME_COLUMNS
from app.decisions.repository import DecisionFilter
from app.decisions.schemas import DecisionQuery


def test_the_rows_are_the_columns_of_their_tables() -> None:
    own = set(DecisionRow.__table__.columns.keys()) - {"xid"}
    assert sorted(own) == sorted(DECISION_COLUMNS)
    told = set(DecisionOutcomeRow.__table__.columns.keys()) - {"xid", "reporter", "reported_at"}
    assert sorted(told) == sorted(OUTCOME_COLUMNS)


@pytest.mark.parametrize(
    ("text", "instant"),
    [
        ("2026-08-01T12:00:00Z", datetime(2026, 8, 1, 12, tzinfo=UTC)),
        ("2026-08-01t12:00:00z", datetime(2026, 8, 1, 12, tzinfo=UTC)),
        ("2026-08-01T12:00:00.5+02:00", datetime(2026, 8, 1, 10, 0, 0, 500000, tzinfo=UTC)),
        ("2026-08-01T12:00:00.123456789Z", datetime(2026, 8, 1, 12, 0, 0, 123456, tzinfo=UTC)),
    ],
)
def test_times_are_rfc3339_and_become_utc(text: str, instant: datetime) -> None:
    query = DecisionQuery.model_validate({"from": text, "to": text})
    assert query.created_from == query.created_to == instant
    assert query.created_from is not None
    assert query.created_from.utcoffset() == timedelta(0)


@pytest.mark.parametrize(
    "text",
    [
        "2026-08-01T12:00:00",
        "2026-08-01",
        "1785585600",
        "2026-08-01 12:00:00Z",
        "2026-13-01T12:00:00Z",
        "2026-02-30T12:00:00Z",
        "2026-08-01T12:00:00 00:00",
        "0001-01-01T00:00:00+14:00",
        "9999-12-31T23:59:59-14:00",
        "٢٠٢٦-08-01T12:00:00Z",
        "2026-08-01T12:00:00Z\n",
        "",
    ],
)
def test_other_times_are_refused(text: str) -> None:
    with pytest.raises(ValidationError) as caught:
        DecisionQuery.model_validate({"from": text})
    assert [error["loc"] for error in caught.value.errors()] == [("from",)]


@pytest.mark.parametrize("field", ["tenant", "namespace", "model"])
@pytest.mark.parametrize("value", ["", "a\x00b", "x" * 513])
def test_filter_text_is_bounded_and_holds_no_nul(field: str, value: str) -> None:
    with pytest.raises(ValidationError):
        DecisionQuery.model_validate({field: value})


@pytest.mark.parametrize(
    "query", [{"kind": "guess"}, {"outcome": "won"}, {"created_from": "x"}, {"page": "2"}]
)
def test_values_and_names_outside_the_closed_sets_are_refused(query: dict[str, str]) -> None:
    with pytest.raises(ValidationError):
        DecisionQuery.model_validate(query)


def test_a_cursor_is_bound_to_filters_only() -> None:
    chosen = DecisionFilter(tenants=frozenset({"acme", "other"}), tenant="acme", kind="lookup")
    assert chosen.bound() == {"tenant": "acme", "kind": "lookup"}


def test_the_zone_a_time_was_written_in_does_not_change_what_a_cursor_is_bound_to() -> None:
    instant = datetime(2026, 8, 1, 12, tzinfo=UTC)
    there = instant.astimezone(timezone(timedelta(hours=2)))
    first = DecisionQuery.model_validate({"from": instant.isoformat()})
    second = DecisionQuery.model_validate({"from": there.isoformat()})
    assert first.created_from is not None
    assert first.created_from.isoformat() == second.created_from.isoformat()  # type: ignore[union-attr]
