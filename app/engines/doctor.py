"""Why an engine's prefixes are not found: the preconditions that fail, and what to do. Pure."""

from collections.abc import Callable, Iterator
from enum import StrEnum
from typing import Final

import msgspec

from app.engines.directory import EngineStatus
from app.engines.registration import Attach
from app.engines.views import ViewState, ViewStatus

_US_PER_S: Final = 1_000_000
# Clocks of two machines that are kept in step differ by far less.
_CLOCK_US: Final = 60 * _US_PER_S
# The socket has had time to connect, and to say why not.
_CONNECT_US: Final = 3 * _US_PER_S
# Of a quarantine that holds 65,536 blocks.
_FILLING: Final = 1_024


class Severity(StrEnum):
    """`error`: nothing, or too little, is found. `warning`: some is not. `note`: to be known."""

    ERROR = "error"
    WARNING = "warning"
    NOTE = "note"


class Check(StrEnum):
    """What can be wrong, in the order in which it has to be put right."""

    REGISTERED = "registered"
    SOCKET = "socket"
    CONNECTED = "connected"
    PROTOCOL = "protocol"
    EVENTS = "events"
    TOPIC = "topic"
    READABLE = "readable"
    RANK = "rank"
    IDENTITY = "identity"
    BLOCK_SIZE = "block_size"
    SALTS = "salts"
    TENANTS = "tenants"
    CONTINUITY = "continuity"
    FRESHNESS = "freshness"
    PARENTS = "parents"
    CAPACITY = "capacity"
    CLOCK = "clock"
    HASHES = "hashes"
    VERSION = "version"


# Without a frame nobody knows.
_SHOWN_BY_FRAMES: Final = frozenset(
    {
        Check.EVENTS, Check.TOPIC, Check.READABLE, Check.RANK, Check.IDENTITY, Check.BLOCK_SIZE,
        Check.SALTS, Check.TENANTS, Check.CONTINUITY, Check.FRESHNESS, Check.PARENTS, Check.CLOCK,
        Check.HASHES, Check.VERSION,
    }
)  # fmt: skip


class Finding(msgspec.Struct, frozen=True):
    """One precondition that fails: what is so, and what to do about it."""

    check: Check
    severity: Severity
    what: str
    do: str


class Diagnosis(msgspec.Struct, frozen=True):
    """`ok` unless a finding is an error. `passed`: what could be checked, and has no finding."""

    ok: bool
    findings: tuple[Finding, ...]
    passed: tuple[Check, ...]


def diagnose(status: EngineStatus | None, now_us: int, forgotten: int = 0) -> Diagnosis:
    """Of one engine, None for one that is not registered. `forgotten`: blocks, by the index."""
    if status is None:
        found = [
            Finding(
                Check.REGISTERED,
                Severity.ERROR,
                "No engine is registered under this name and rank.",
                "Register it with POST /v1/engines; GET /v1/engines lists those there are.",
            )
        ]
        return Diagnosis(ok=False, findings=tuple(found), passed=())
    found = [finding for rule in _RULES for finding in rule(status, now_us)]
    found += _forgotten(forgotten)
    order = list(Check)
    found.sort(key=lambda finding: order.index(finding.check))
    failed = {finding.check for finding in found}
    return Diagnosis(
        ok=all(finding.severity is not Severity.ERROR for finding in found),
        findings=tuple(found),
        passed=tuple(
            check
            for check in Check
            if check not in failed and (status.view.frames or check not in _SHOWN_BY_FRAMES)
        ),
    )


def _connection(status: EngineStatus, now_us: int) -> Iterator[Finding]:
    source, spec = status.source, status.spec
    if source is None:
        return
    if source.fault is not None:
        yield Finding(
            Check.SOCKET,
            Severity.ERROR,
            f"The event socket cannot be opened: {source.fault}.",
            "Free the address, or register the engine with another endpoint.",
        )
        return
    registered_us = round(status.registered_at.timestamp() * _US_PER_S)
    if source.handshakes_failed and not source.connections:
        yield Finding(
            Check.PROTOCOL,
            Severity.ERROR,
            f"At {spec.endpoint} something answers that does not speak ZMTP.",
            "Check the port: it is to be that of the engine's event publisher, not its HTTP port.",
        )
    elif not source.peers and now_us - registered_us > _CONNECT_US:
        yield Finding(
            Check.CONNECTED, Severity.ERROR, *_unconnected(spec.attach, source.attempts_failed)
        )
    elif not source.peers:
        yield Finding(
            Check.CONNECTED,
            Severity.NOTE,
            "It was registered just now, and nothing is connected yet.",
            "Ask again in a few seconds.",
        )


def _unconnected(attach: Attach, attempts: int) -> tuple[str, str]:
    if attach is Attach.BIND:
        return (
            "NexusKV listens, and no engine has connected.",
            (
                "One side binds, the other connects. If the engine's endpoint has a * it binds,"
                ' too: register it with "attach": "connect"; else let the engine connect here.'
            ),
        )
    return (
        f"Nobody listens at the endpoint; {attempts} attempts to connect failed.",
        (
            "Start the engine with events on, and check host and port (rank r of an engine with"
            " data parallelism uses port + r). If the engine connects as well, register it with"
            ' "attach": "bind".'
        ),
    )


def _silence(status: EngineStatus, _: int) -> Iterator[Finding]:
    source, view = status.source, status.view
    if source is not None and source.other_topic is not None:
        yield Finding(
            Check.TOPIC,
            Severity.ERROR,
            f"The engine publishes on the topic {source.other_topic!r}, the registration takes"
            f" those that begin with {status.spec.topic!r}.",
            "Register it with the engine's topic, or an empty one for all.",
        )
    if view.frames or view.other_rank_frames or view.awaits_proof:
        return
    if source is None:
        what = "No frame was pushed yet."
        do = "Push frames to POST /v1/engines/INSTANCE/events, or register an endpoint."
    elif source.peers:
        what = "The connection stands, and no frame has come."
        do = (
            "Turn the publisher on (vLLM: --kv-events-config with enable_kv_cache_events and"
            " publisher zmq; SGLang: --kv-events-config), send a prompt longer than a block, and"
            " check that prefix caching is on and the topic is the registration's."
        )
    else:
        return
    yield Finding(Check.EVENTS, Severity.ERROR, what, do)


def _frames(status: EngineStatus, _: int) -> Iterator[Finding]:
    view, source = status.view, status.source
    malformed = 0 if source is None else source.malformed
    if view.refused_frames or malformed:
        reason = view.last_refusal or "a message has three parts: topic, sequence, payload"
        yield Finding(
            Check.READABLE,
            Severity.ERROR,
            f"{view.refused_frames + malformed} frames cannot be read: {reason}.",
            "Upgrade NexusKV if the engine is newer; `nexuskv index replay` shows what is in a"
            " capture of its frames.",
        )
    if view.other_rank_frames:
        yield Finding(
            Check.RANK,
            Severity.WARNING if view.frames else Severity.ERROR,
            f"{view.other_rank_frames} frames are of data parallel rank {view.other_rank}, not of"
            f" {status.spec.dp_rank}; they are left alone.",
            "Register each rank with its own dp_rank and endpoint (port + rank).",
        )
    strange = sorted(reason for reason, count in view.left_out.items() if count)
    if strange:
        yield Finding(
            Check.IDENTITY,
            Severity.WARNING,
            f"{sum(view.left_out.values())} blocks are named as another one's, and left out:"
            f" {', '.join(strange)}.",
            "Register what they are of (model, tenants, revision as additional_salt, each rank and"
            " backend by itself), or let the producer name what is registered.",
        )
    if view.skipped_types:
        yield Finding(
            Check.VERSION,
            Severity.WARNING,
            f"Events of unknown types are passed over: {', '.join(sorted(view.skipped_types))}.",
            "Upgrade NexusKV if what they tell matters; all else of the frames is taken.",
        )
    elif view.unknown_fields:
        yield Finding(
            Check.VERSION,
            Severity.NOTE,
            f"Fields that nobody here knows: {', '.join(sorted(view.unknown_fields))}.",
            "Nothing, unless they make blocks of equal tokens differ.",
        )


def _blocks(status: EngineStatus, _: int) -> Iterator[Finding]:
    view, spec, tallies = status.view, status.spec, status.view.tallies
    if view.other_block_tokens is not None:
        yield Finding(
            Check.BLOCK_SIZE,
            Severity.WARNING,
            f"{tallies.wrong_block_size} stores have another block size than the registered"
            f" {spec.block_tokens}, the last one {view.other_block_tokens}.",
            f"Register it with block_tokens {view.other_block_tokens}, unless the engine has"
            " several KV cache groups: then that of its full attention.",
        )
    several = len(spec.tenants) > 1
    if tallies.salted_unknown:
        yield Finding(
            Check.SALTS,
            Severity.WARNING if several else Severity.NOTE,
            f"{tallies.salted_unknown} blocks begin with a salt that is not registered.",
            "Salted prompts match only queries that name the salt (cache_salt)."
            + (" Add the salt to `salts`, or its blocks are nobody's." if several else ""),
        )
    if tallies.unattributed > tallies.salted_unknown:
        yield Finding(
            Check.TENANTS,
            Severity.WARNING,
            f"{tallies.unattributed - tallies.salted_unknown} blocks have no salt, and it is not"
            " said whose they are; they are not in the index.",
            "Let requests bring a registered cache_salt, or register the engine with"
            ' "pooled": true if all its tenants may share unsalted blocks.',
        )


def _lost(view: ViewStatus) -> str:
    events = f" and {view.lost_events} events" if view.lost_events else ""
    return f"{view.lost_frames} frames{events}"


def _continuity(status: EngineStatus, _: int) -> Iterator[Finding]:
    view, spec, source = status.view, status.spec, status.source
    if view.awaits_proof:
        yield Finding(
            Check.CONTINUITY,
            Severity.WARNING,
            "NexusKV was started again and has what it knew of the engine from a copy; no frame has"
            " shown yet that none was missed.",
            "Nothing, if the engine is about to tell something: its next frame settles it, the last"
            " one pushed again, or a replay, where a replay_endpoint is registered and answers.",
        )
    elif status.state is ViewState.UNKNOWN:
        replay = spec.replay_endpoint
        if source is not None and replay is None:
            do = (
                "Register a replay_endpoint (vLLM: replay_endpoint in --kv-events-config), so that"
                " lost frames can be asked for. Now: reset the prefix cache, or restart the engine."
            )
        elif source is not None and source.last_replay_fault is not None:
            do = f"The replay failed: {source.last_replay_fault}. Check {replay}."
        elif source is not None:
            do = (
                "The engine's replay buffer did not reach back far enough: raise its buffer_steps."
                " Now: reset the engine's prefix cache, or restart it."
            )
        else:
            do = "Push the missing frames in their order, or reset the engine's prefix cache."
        yield Finding(
            Check.CONTINUITY,
            Severity.ERROR,
            f"{_lost(view)} are missing: the engine may hold more than is"
            " known, and queries that find nothing there are answered unknown.",
            do,
        )
    elif view.gaps and spec.replay_endpoint is None and source is not None:
        yield Finding(
            Check.CONTINUITY,
            Severity.NOTE,
            f"{view.gaps} gaps so far, and no replay endpoint to fill them from.",
            "Register a replay_endpoint.",
        )
    if status.state is ViewState.STALE:
        yield Finding(
            Check.FRESHNESS,
            Severity.ERROR,
            "Nothing was heard for too long: what it holds now is not known.",
            "Push an empty frame, or the last one again, as a sign of life."
            if source is None
            else "See that the engine runs; without a replay endpoint the first frame after a lost"
            " connection has to show that none is missing.",
        )
    if view.quarantined >= _FILLING or view.quarantine_dropped:
        yield Finding(
            Check.PARENTS,
            Severity.WARNING,
            f"{view.quarantined} blocks wait for parents that were never told of, and"
            f" {view.quarantine_dropped} were given up.",
            "The engine was running before NexusKV heard of it: register a replay_endpoint, or"
            " reset its prefix cache once.",
        )


def _surroundings(status: EngineStatus, _: int) -> Iterator[Finding]:
    view = status.view
    if view.index_full:
        yield Finding(
            Check.CAPACITY,
            Severity.ERROR,
            f"The index had no room for {view.index_full} frames.",
            "Give the index more memory, or register fewer engines with one process.",
        )
    if view.lag_us is not None and abs(view.lag_us) > _CLOCK_US:
        yield Finding(
            Check.CLOCK,
            Severity.WARNING,
            f"The engine's last frame is {view.lag_us / _US_PER_S:+.0f} s off our clock.",
            "Synchronise the clocks (NTP); a large positive lag may also be a replayed frame.",
        )
    if view.byte_names:
        yield Finding(
            Check.HASHES,
            Severity.NOTE,
            "The engine names blocks by bytes, not by 64-bit integers.",
            "Query it by tokens; by hash only with the same bytes.",
        )


def _forgotten(blocks: int) -> Iterator[Finding]:
    if blocks:
        yield Finding(
            Check.CAPACITY,
            Severity.WARNING,
            f"The index forgot {blocks} blocks, of this engine or of others: those that were stored"
            " longest ago made room, and are not found though engines may hold them.",
            "Raise NEXUSKV_BLOCK_INDEX_BLOCKS, and NEXUSKV_BLOCK_INDEX_BYTES with it where that is"
            " what is full.",
        )


_RULES: Final[tuple[Callable[[EngineStatus, int], Iterator[Finding]], ...]] = (
    _connection,
    _silence,
    _frames,
    _blocks,
    _continuity,
    _surroundings,
)
