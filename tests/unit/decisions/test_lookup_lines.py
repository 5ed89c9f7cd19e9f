"""A lookup's line of COPY from parts is that of its whole row, and so are its sums."""

from datetime import datetime
from uuid import UUID

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.db import copy_text
from app.decisions.lookup_lines import lookup_line
from app.decisions.record import Action, Decision, DecisionKind, DecisionOutcome, made_at
from app.decisions.rollups import fold
from app.decisions.rows import (
    COMPATIBLE,
    NOTHING,
    NOTHING_EXCLUDED,
    LookupEnd,
    LookupRow,
    LookupScope,
    LookupWinner,
    decode,
    encode,
    end_of,
    match_counts,
    scope_of,
    winner_of,
)

WRITER = UUID(int=7)
# What COPY escapes, and what its fast way uses in between.
TEXT = st.text('ab\\\t\n\r"{},\x01\x02\x03é', max_size=8)
COUNT = st.integers(0, 2**40)
WINNER = st.builds(
    LookupWinner, entry_id=TEXT, state_id=st.binary(min_size=16, max_size=16), tier=TEXT, facts=TEXT
)


def id_at(at_ms: int, number: int) -> bytes:
    return UUID(int=(at_ms << 80) | (0x7 << 76) | (0b10 << 62) | number).bytes


@st.composite
def payloads(draw: st.DrawFn) -> bytes:
    at_ms = draw(st.integers(1_700_000_000_000, 1_900_000_000_000))
    scope = LookupScope(*(draw(TEXT) for _ in range(5)))
    end = LookupEnd(
        draw(st.sampled_from(DecisionOutcome)).value,
        draw(st.sampled_from(Action)).value,
        draw(st.lists(TEXT, max_size=3)),
    )
    winner = draw(st.none() | WINNER)
    return encode(
        LookupRow(
            decision_id=id_at(at_ms, draw(st.integers(0, 2**62 - 1))),
            scope=msgspec.Raw(encode(scope)),
            end=msgspec.Raw(encode(end)),
            query_tokens=draw(COUNT),
            input_fingerprint=draw(TEXT),
            key_id=draw(TEXT),
            trace_id=draw(st.none() | TEXT),
            freshness=draw(TEXT),
            durability=draw(TEXT),
            reason=draw(st.none() | TEXT),
            winner=NOTHING if winner is None else msgspec.Raw(encode(winner)),
            classification=None if winner is None else draw(TEXT),
            matched_tokens=0 if winner is None else draw(COUNT),
            excluded=draw(TEXT),
            excluded_count=draw(COUNT),
            identity_hash=draw(st.none() | st.binary(max_size=16)),
            candidates=draw(st.integers(0, 3)),
            truncated=draw(COUNT),
            index_revision=draw(COUNT),
            latency_us=draw(COUNT),
            runners_up=draw(TEXT),
            unsure=draw(st.booleans()),
        )
    )


def _fields(line: bytes) -> list[object]:
    """Its fields; ids and times in one way of the many that Postgres reads."""
    assert line.endswith(b"\n")
    fields: list[object] = list(line.decode().removesuffix("\n").split("\t"))
    for name in ("decision_id", "root_id", "state_id"):
        at = Decision._fields.index(name)
        fields[at] = UUID(str(fields[at])) if fields[at] != copy_text.NULL else None
    at = Decision._fields.index("created_at")
    fields[at] = datetime.fromisoformat(str(fields[at]))
    return fields


def whole_row(seen: LookupRow) -> Decision:
    """The decision that a lookup's parts stand for."""
    scope, end = scope_of(bytes(seen.scope)), end_of(bytes(seen.end))
    winner = winner_of(bytes(seen.winner))
    decision_id = UUID(bytes=seen.decision_id)
    inputs = (
        f'{scope.inputs},"query_tokens":{seen.query_tokens},'
        f'"input_fingerprint":"{seen.input_fingerprint}","freshness":"{seen.freshness}"}}'
    )
    return Decision(
        decision_id=decision_id,
        created_at=made_at(decision_id),
        tenant=scope.tenant,
        namespace=scope.namespace,
        model=scope.model,
        kind=DecisionKind.LOOKUP,
        outcome=DecisionOutcome(end.outcome),
        fallback_reason=seen.reason,
        identity_hash=seen.identity_hash,
        parent_id=None,
        root_id=decision_id,
        key_id=seen.key_id,
        trace_id=seen.trace_id,
        policy_version=scope.policy_version,
        entry_id=winner.entry_id if winner else None,
        state_id=UUID(bytes=winner.state_id) if winner else None,
        match=_match(seen, winner),
        compatibility=COMPATIBLE if winner else None,
        excluded=seen.excluded or NOTHING_EXCLUDED,
        estimate=None,
        selected_path=None,
        path=end.path,
        index_revision=seen.index_revision,
        latency_us=seen.latency_us,
        inputs=inputs,
        action=end.action,
        tier=winner.tier if winner else None,
        freshness=seen.freshness,
        durability=seen.durability,
        query_tokens=seen.query_tokens,
        matched_tokens=seen.matched_tokens,
    )


def _match(seen: LookupRow, winner: LookupWinner | None) -> str | None:
    """What the index found; how many were looked at and excluded, of which `excluded` lists 256."""
    counts = match_counts(seen)
    if winner is not None:
        others = f'"runners_up":{seen.runners_up},' if seen.runners_up else ""
        return (
            f'{{"classification":"{seen.classification}",'
            f'"matched_tokens":{seen.matched_tokens},{counts},{others}{winner.facts}'
        )
    return f"{{{counts}}}" if seen.candidates else None


@given(payload=payloads(), seq=COUNT)
def test_the_line_is_that_of_the_row(payload: bytes, seq: int) -> None:
    found = decode(payload)
    assert isinstance(found, LookupRow)
    _, line = lookup_line(found, WRITER, seq)
    row = whole_row(found)
    assert _fields(line) == _fields(copy_text.line((*row, WRITER, seq)))
    assert line.count(b"\n") == 1


@given(st.lists(payloads(), max_size=12))
def test_the_sums_are_those_of_the_rows(made: list[bytes]) -> None:
    lookups, rows = [], []
    for payload in made * 2:
        found = decode(payload)
        assert isinstance(found, LookupRow)
        row = whole_row(found)
        lookups.append(lookup_line(found, WRITER, 1)[0])
        rows.append(row)
    assert [one.created_at for one in lookups] == [row.created_at for row in rows]
    assert fold([], [], lookups) == fold(rows, [])


def test_what_is_no_lookup_is_refused() -> None:
    scope = msgspec.Raw(encode(LookupScope("t", "n", "m", "p@1", "{}")))
    end = msgspec.Raw(encode(LookupEnd("hit", "reuse", [])))
    good = LookupRow(
        id_at(1, 1), scope, end, 1, "f", "k", None, "current", "spooled", None, NOTHING, None, 0,
        "", 0, None, 0, 0, 1, 1,
    )  # fmt: skip
    assert lookup_line(good, WRITER, 1)[1]
    changes: list[dict[str, object]] = [
        {"decision_id": id_at(1, 1)[:15]},
        {"decision_id": bytes(16)},
        {"decision_id": id_at(2**48 - 1, 1)},
        {"scope": NOTHING},
        {"end": msgspec.Raw(encode(LookupEnd("nonsense", "reuse", [])))},
        {"winner": msgspec.Raw(encode(LookupWinner("e", b"short", "t", "}")))},
        {"key_id": "\ud800"},
    ]
    for change in changes:
        with pytest.raises(ValueError, match=r".*"):
            lookup_line(msgspec.structs.replace(good, **change), WRITER, 1)
