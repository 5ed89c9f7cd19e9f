"""Rows on their way to Postgres: how they lie in the spool, and what is stored of them.

A lookup is answered in microseconds, so it leaves what it knows as it is, and its row is made by
whoever stores it. In the spool UUIDs are 16 bytes and JSON is text that is encoded already.
"""

from datetime import UTC, datetime, timedelta
from typing import Any, Final, cast
from uuid import UUID

import msgspec
from asyncpg.pgproto.pgproto import UUID as FastUUID  # noqa: N811 - a class, in C

from app.decisions.record import (
    Decision,
    DecisionKind,
    DecisionOutcome,
    Outcome,
    OutcomeStatus,
)

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND: Final = timedelta(microseconds=1)
# In place of a row that could not be encoded: its number becomes a gap.
NO_ROW: Final = b"\xc0"
NOTHING: Final = msgspec.Raw(b"\xc0")
NOTHING_EXCLUDED: Final = "[]"
COMPATIBLE: Final = '{"reusable":true,"reason":"compatible"}'


class LookupScope(msgspec.Struct, array_like=True, frozen=True, gc=False):
    """What repeats from one lookup to the next: encoded once, and embedded as it is.

    `inputs` is the beginning of a JSON object.
    """

    tenant: str
    namespace: str
    model: str
    policy_version: str
    inputs: str


class LookupEnd(msgspec.Struct, array_like=True, frozen=True, gc=False):
    """How a lookup ends: its outcome, what the caller is to do, and the states on the way."""

    outcome: str
    action: str
    path: list[str]


class LookupWinner(msgspec.Struct, array_like=True, frozen=True, gc=False):
    """The state that was chosen, as `app.index.registered` encodes it. `facts` is the end of a JSON
    object.
    """

    entry_id: str
    state_id: bytes
    tier: str
    facts: str


class LookupRow(msgspec.Struct, array_like=True, frozen=True, tag=1, gc=False):
    """One answered lookup, without its tokens. `scope`, `end` and `winner` are a LookupScope,
    LookupEnd and LookupWinner; without a winner it is NOTHING, and what is said of it None.

    `excluded` lists at most 256 of `excluded_count`; `runners_up` those judged behind the winner.
    `unsure`: an engine that may have it could not be asked.
    """

    decision_id: bytes
    scope: msgspec.Raw
    end: msgspec.Raw
    query_tokens: int
    input_fingerprint: str
    key_id: str
    trace_id: str | None
    freshness: str
    durability: str
    reason: str | None
    winner: msgspec.Raw
    classification: str | None
    matched_tokens: int
    excluded: str
    excluded_count: int
    identity_hash: bytes | None
    candidates: int
    truncated: int
    index_revision: int
    latency_us: int
    # Rows of an older version end before these.
    runners_up: str = ""
    unsure: bool = False


class DecisionRecord(msgspec.Struct, array_like=True, frozen=True, tag=2, gc=False):
    """A Decision, field by field."""

    fields: list[Any]


class OutcomeRecord(msgspec.Struct, array_like=True, frozen=True, tag=3, gc=False):
    """An Outcome likewise. What was added to it later is here: code that does not know it, as after
    a roll-back, reads the rest.
    """

    fields: list[Any]
    transfer_us: int | None = None


encode: Final = msgspec.msgpack.Encoder(uuid_format="bytes").encode
_decode: Final = msgspec.msgpack.Decoder(LookupRow | DecisionRecord | OutcomeRecord).decode
_scope_decoder: Final = msgspec.msgpack.Decoder(LookupScope)
_winner_decoder: Final = msgspec.msgpack.Decoder(LookupWinner | None)
_end_decoder: Final = msgspec.msgpack.Decoder(LookupEnd)


def scope_of(encoded: bytes) -> LookupScope:
    return _scope_decoder.decode(encoded)


def end_of(encoded: bytes) -> LookupEnd:
    return _end_decoder.decode(encoded)


def winner_of(encoded: bytes) -> LookupWinner | None:
    found: LookupWinner | None = _winner_decoder.decode(encoded)
    return found


def encode_decision(row: Decision) -> bytes:
    """Raises TypeError for a value that no column takes."""
    return encode(DecisionRecord([_spooled(value) for value in row]))


def encode_outcome(row: Outcome) -> bytes:
    """Likewise."""
    fields = [_spooled(value) for value in row[:_FIRST_FIELDS]]
    return encode(OutcomeRecord(fields, row.transfer_us))


def decode(payload: bytes) -> LookupRow | DecisionRecord | OutcomeRecord:
    """What lies in a payload. Raises ValueError for bytes that are no row."""
    try:
        found: LookupRow | DecisionRecord | OutcomeRecord = _decode(payload)
    except msgspec.MsgspecError as error:
        raise ValueError(f"no row: {error}") from error
    return found


def row_of(found: DecisionRecord | OutcomeRecord) -> Decision | Outcome:
    """Likewise the row of what was decoded."""
    try:
        if isinstance(found, DecisionRecord):
            return _decision(found.fields)
        return _outcome(found.fields)._replace(transfer_us=found.transfer_us)
    except (msgspec.MsgspecError, TypeError, LookupError, OverflowError) as error:
        raise ValueError(f"no row: {error}") from error


def _spooled(value: Any) -> Any:
    if isinstance(value, datetime):
        return (value - _EPOCH) // _MICROSECOND
    if isinstance(value, UUID):
        return value.bytes
    return value


def _time(value_us: int) -> datetime:
    return _EPOCH + timedelta(microseconds=value_us)


def _uuid(value: bytes | None) -> Any:
    return None if value is None else FastUUID(value)


def _decision(fields: list[Any]) -> Decision:
    fields[0], fields[1] = FastUUID(fields[0]), _time(fields[1])
    for at in _DECISION_UUIDS:
        fields[at] = _uuid(fields[at])
    fields[_KIND], fields[_OUTCOME] = _KINDS[fields[_KIND]], _OUTCOMES[fields[_OUTCOME]]
    return Decision(*fields)


def _outcome(fields: list[Any]) -> Outcome:
    fields[0], fields[1] = FastUUID(fields[0]), _time(fields[1])
    fields[2], fields[_STATUS] = FastUUID(fields[2]), _STATUSES[fields[_STATUS]]
    return Outcome(*fields)


# Plain strings, which are what is stored: a member of an enum costs with each use.
_KINDS: Final = {each.value: cast("DecisionKind", each.value) for each in DecisionKind}
_OUTCOMES: Final = {each.value: cast("DecisionOutcome", each.value) for each in DecisionOutcome}
_STATUSES: Final = {each.value: cast("OutcomeStatus", each.value) for each in OutcomeStatus}
_KIND, _OUTCOME = Decision._fields.index("kind"), Decision._fields.index("outcome")
_STATUS: Final = Outcome._fields.index("status")
# Of an outcome, those that every version has.
_FIRST_FIELDS: Final = Outcome._fields.index("transfer_us")
_DECISION_UUIDS: Final = [
    Decision._fields.index(name) for name in ("parent_id", "root_id", "state_id")
]


def match_counts(seen: LookupRow) -> str:
    """The middle of that JSON."""
    unsure = ',"engines_unknown":true' if seen.unsure else ""
    return (
        f'"candidates":{seen.candidates},"truncated":{seen.truncated},'
        f'"excluded":{seen.excluded_count}{unsure}'
    )
