"""What the doctor says of an engine in each of the states that no short test brings about."""

import dataclasses
from datetime import UTC, datetime

import msgspec
import pytest

from app.engines.directory import EngineStatus
from app.engines.doctor import Check, Severity, diagnose
from app.engines.registration import Attach
from app.engines.source import SourceStatus
from app.engines.views import ViewState
from tests.engines.rig import Rig, prompt, told

NOW_US = 1_000_000_000
AT = datetime.fromtimestamp(900, UTC)
SOURCE = SourceStatus(
    peers=1,
    connections=1,
    disconnections=0,
    attempts_failed=0,
    handshakes_failed=0,
    malformed=0,
    replays={},
    last_replay_fault=None,
    other_topic=None,
    fault=None,
)
REPLAY = "tcp://127.0.0.1:5558"


def status(*, state=ViewState.LIVE, source=SOURCE, spec=(), view=()) -> EngineStatus:
    """Of an engine that told of three blocks; `view`, `source` and `spec` say what is different."""
    rig = Rig()
    engine = rig.engine(**({"endpoint": "tcp://127.0.0.1:5557"} | dict(spec)))
    rig.tell(engine, told(prompt(3)), now_us=2_000_000)
    found = msgspec.structs.replace(engine.status(), **dict(view))
    if source is not None and source is not SOURCE:
        source = msgspec.structs.replace(SOURCE, **source)
    return EngineStatus(engine.spec, AT, state, found, source)


def findings(*args, **kwargs):
    return {one.check: one for one in diagnose(status(*args, **kwargs), NOW_US).findings}


def test_one_that_is_well_has_no_finding():
    found = diagnose(status(), NOW_US)
    assert (found.ok, found.findings) == (True, ())
    assert found.passed == tuple(Check)
    assert diagnose(status(source=None), NOW_US).ok


def test_blocks_that_the_index_forgot_are_told():
    found = diagnose(status(), NOW_US, forgotten=7)
    (one,) = found.findings
    assert (found.ok, one.check, one.severity) == (True, Check.CAPACITY, Severity.WARNING)
    assert one.what.startswith("The index forgot 7 blocks")
    assert "NEXUSKV_BLOCK_INDEX_BLOCKS" in one.do


@pytest.mark.parametrize(
    ("spec", "source", "word"),
    [
        ({}, SOURCE, "Register a replay_endpoint"),
        ({"replay_endpoint": REPLAY}, {"last_replay_fault": "nothing for 5 s"}, "nothing for 5 s"),
        ({"replay_endpoint": REPLAY}, SOURCE, "buffer_steps"),
        ({"endpoint": None}, None, "Push the missing frames"),
    ],
)
def test_what_is_missing_can_be_got_in_different_ways(spec, source, word):
    found = findings(state=ViewState.UNKNOWN, spec=spec, source=source, view={"lost_frames": 7})
    assert list(found) == [Check.CONTINUITY]
    assert found[Check.CONTINUITY].severity is Severity.ERROR
    assert found[Check.CONTINUITY].what.startswith("7 frames")
    assert word in found[Check.CONTINUITY].do


def test_a_gap_that_is_over_is_a_note():
    found = diagnose(status(view={"gaps": 2}), NOW_US)
    assert found.ok
    assert [one.severity for one in found.findings] == [Severity.NOTE]


@pytest.mark.parametrize(
    ("attach", "word"), [(Attach.CONNECT, '"attach": "bind"'), (Attach.BIND, '"attach": "connect"')]
)
def test_both_sides_may_do_the_same(attach, word):
    found = findings(spec={"attach": attach}, source={"peers": 0, "connections": 0})
    assert word in found[Check.CONNECTED].do
    # Who was just registered has a moment to connect.
    before = status(source={"peers": 0})
    young = dataclasses.replace(before, registered_at=datetime.fromtimestamp(999, UTC))
    found = diagnose(young, NOW_US)
    assert found.ok
    assert [(one.check, one.severity) for one in found.findings] == [
        (Check.CONNECTED, Severity.NOTE)
    ]


def test_what_only_frames_show_is_not_said_to_be_fine_without_one():
    found = diagnose(status(source={"peers": 0}, view={"frames": 0}), NOW_US)
    assert Check.SOCKET in found.passed
    assert not {Check.EVENTS, Check.BLOCK_SIZE, Check.CLOCK, Check.READABLE} & set(found.passed)


def test_what_is_known_from_a_copy_is_no_lack_of_frames():
    found = findings(source=None, view={"frames": 0, "awaits_proof": True})
    assert list(found) == [Check.CONTINUITY]
    assert "the last one pushed again" in found[Check.CONTINUITY].do


@pytest.mark.parametrize(
    ("fields", "check", "severity"),
    [
        ({"state": ViewState.STALE}, Check.FRESHNESS, Severity.ERROR),
        ({"view": {"quarantined": 5_000}}, Check.PARENTS, Severity.WARNING),
        ({"view": {"quarantine_dropped": 1}}, Check.PARENTS, Severity.WARNING),
        ({"view": {"index_full": 1}}, Check.CAPACITY, Severity.ERROR),
        ({"view": {"lag_us": -90_000_000}}, Check.CLOCK, Severity.WARNING),
        ({"view": {"unknown_fields": {"owner": 1}}}, Check.VERSION, Severity.NOTE),
        ({"view": {"refused_frames": 1, "last_refusal": "odd"}}, Check.READABLE, Severity.ERROR),
        ({"source": {"fault": "Address already in use"}}, Check.SOCKET, Severity.ERROR),
    ],
)
def test_each_has_its_own_finding(fields, check, severity):
    found = findings(**fields)
    assert [(one.check, one.severity) for one in found.values()] == [(check, severity)]
    assert found[check].do
