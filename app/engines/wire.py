"""Decoders of KV events: whatever engines and stores of any age publish, as `Batch`.

A frame is msgpack. Engines send `[seconds, events, dp rank]`; an event is a map with its `type`,
or, in older ones, an array whose later fields may be missing. Stores send envelopes of the KV
events RFC (a map, or several in an array): their `event_type` is `stored`, `removed` or `cleared`.

What is unknown is counted and passed over; what is known and does not fit refuses the whole frame,
since nobody can tell what of the engine's cache was told in it.
"""

from collections.abc import Callable, Sequence
from typing import Any, Final

import msgspec

from app.engines.events import NOWHERE, Batch, Event, Origin
from app.engines.fields import Fields, WireError, plain, whole_number
from app.engines.usual import usual
from app.engines.variants import MAX_DP_RANK, cleared, origin, removed, stored
from nexuskv_core import msgpack_batch

# A prompt of a million tokens is 5 MiB.
MAX_FRAME_BYTES: Final = 16 * 1024 * 1024
MAX_EVENTS: Final = 65_536
# Of distinct unknown names that are told apart.
MAX_NAMES: Final = 64
OTHER_NAMES: Final = "(others)"
_MAX_NAME_CHARS: Final = 64
_END_OF_TIME: Final = 1e15
# Types that say nothing of the cache.
_SILENT: Final = frozenset({"Ignored"})


_READERS: Final[dict[str, Callable[[Fields], Event]]] = {
    "BlockStored": stored, "stored": stored,
    "BlockRemoved": removed, "removed": removed,
    "AllBlocksCleared": cleared, "cleared": cleared,
}  # fmt: skip
# Fields of an array in their order, after the type. SGLang put a map at the seventh place for a
# while; `Fields` takes what it says.
_POSITIONS: Final = {
    "BlockStored": (
        "block_hashes", "parent_block_hash", "token_ids", "block_size", "lora_id", "medium",
        "lora_name", "extra_keys",
    ),
    "BlockRemoved": ("block_hashes", "medium"),
    "AllBlocksCleared": ("source_kind",),
}  # fmt: skip
# What follows, by its kind: a group's number, the kind of its attention, its window. Producers of
# multimodal prompts put the objects of the blocks before it.
_TAILED: Final = frozenset({"BlockStored", "BlockRemoved"})
_TAIL: Final = (
    ("group_idx", int), ("kv_cache_spec_kind", str), ("kv_cache_spec_sliding_window", int),
    ("locality", str), ("source_kind", str),
)  # fmt: skip


def decode_batch(payload: bytes) -> Batch:
    """The events of one frame. Raises WireError for a frame of which something was not read."""
    if len(payload) > MAX_FRAME_BYTES:
        raise WireError(f"a frame of {len(payload)} bytes, at most {MAX_FRAME_BYTES}")
    at_s, found, dp_rank = _left_packed(payload) or _opened(plain(msgspec.Raw(payload)))
    if len(found) > MAX_EVENTS:
        raise WireError(f"{len(found)} events in a frame, at most {MAX_EVENTS}")
    skipped: dict[str, int] = {}
    unknown: dict[str, int] = {}
    events: list[Event] = []
    origins: dict[int, Origin] = {}
    for each in found:
        named = _named(each)
        event: Event | None = usual(named)
        if event is None:
            fields = Fields(named)
            event = _event(fields, skipped)
            if event is None:
                continue
            said = origin(fields)
            if said is not None:
                origins[len(events)] = said
            _count(unknown, fields.unread())
        events.append(event)
    if dp_rank is None:
        dp_rank = _rank_of_all(found)
    return Batch(
        at_s=at_s,
        events=tuple(events),
        dp_rank=None if dp_rank is None else whole_number(dp_rank, "dp_rank", 0, MAX_DP_RANK),
        skipped_types=skipped,
        unknown_fields=unknown,
        origins=tuple(origins.get(at, NOWHERE) for at in range(len(events))) if origins else (),
    )


def _rank_of_all(found: Sequence[Any]) -> Any:
    """The data parallel rank that every event names, None where they differ or do not."""
    rank = None
    for at, each in enumerate(found):
        if not isinstance(each, dict):
            return None
        its = plain(each.get("dp_rank"))
        if its is None or (at and its != rank):
            return None
        rank = its
    return rank


def _left_packed(payload: bytes) -> tuple[float, Sequence[Any], Any] | None:
    """When, which events, and of which rank; None for a frame that is of another form, or bad.

    Of what engines of today send nothing is an object that need not be.
    """
    found = msgpack_batch(payload, MAX_EVENTS)
    at_s = None if found is None else _number(found[0])
    return None if found is None or at_s is None else (at_s, found[1], found[2])


def _opened(outer: Any) -> tuple[float, Sequence[Any], Any]:
    """When, which events, and of which rank."""
    if isinstance(outer, dict):
        # One envelope, in milliseconds.
        at_ms = outer.get("timestamp")
        return (_number(at_ms) or 0.0) / 1000, [outer], None
    if not isinstance(outer, list):
        raise WireError(f"a batch is an array or a map, not {type(outer).__name__}")
    if all(isinstance(each, dict) for each in outer):
        return 0.0, outer, None
    at_s = _number(outer[0])
    if at_s is None or len(outer) < 2 or not isinstance(outer[1], list):
        raise WireError("a batch is [seconds, events, data parallel rank]")
    return at_s, outer[1], outer[2] if len(outer) > 2 else None


def _named(event: Any) -> dict[Any, Any]:
    if isinstance(event, dict):
        return event
    kind = plain(event[0]) if isinstance(event, list) and event else None
    if not isinstance(kind, str):
        raise WireError("an event is a map with its type, or an array that begins with it")
    names = _POSITIONS.get(kind, ())
    named: dict[Any, Any] = {"type": kind}
    places = event[1:]
    if kind in _TAILED and len(places) > len(names):
        _tail(places[len(names) :], len(names) + 1, named)
        places = places[: len(names)]
    for number, value in enumerate(places):
        # Beyond the names that there are, a place is the name.
        name = names[number] if number < len(names) else f"[{number + 1}]"
        if name == "lora_name" and isinstance(plain(value), dict):
            named |= plain(value)
        else:
            named[name] = value
    return named


def _tail(tail: Sequence[Any], first: int, named: dict[Any, Any]) -> None:
    """Name what is behind the places that every producer fills alike; `first` is its place.

    The objects of blocks, a list, are before the rest, or wherever there is a list; a null in their
    place is known by what follows it.
    """
    values = [(place, plain(value)) for place, value in enumerate(tail, first)]
    at = next((n for n, (_, value) in enumerate(values) if isinstance(value, list)), None)
    if at is not None:
        named["block_mm_infos"] = values.pop(at)[1]
    elif values[0][1] is None and not _fits(values) and _fits(values[1:]):
        del values[0]
    if _fits(values):
        for (_, value), (name, _) in zip(values, _TAIL, strict=False):
            named[name] = value
        for place, value in values[len(_TAIL) :]:
            named[f"[{place}]"] = value
        return
    # Older producers leave out what they do not say: what a value is, its type tells.
    for place, value in values:
        if value is None:
            continue
        if not _is(value, int) and not _is(value, str):
            raise WireError(f"place {place} of an event is a number or a text")
        names = [name for name, type_ in _TAIL if _is(value, type_) and name not in named]
        named[names[0] if names else f"[{place}]"] = value


def _fits(values: Sequence[tuple[int, Any]]) -> bool:
    """Whether each is null or what has its place in the full tail."""
    return all(
        value is None or _is(value, type_)
        for (_, value), (_, type_) in zip(values, _TAIL, strict=False)
    )


def _is(value: Any, type_: type) -> bool:
    return isinstance(value, type_) and not isinstance(value, bool)


def _event(fields: Fields, skipped: dict[str, int]) -> Event | None:
    kind = fields.text("type") or fields.text("event_type")
    if kind is None:
        raise WireError("an event without a type")
    read = _READERS.get(kind)
    if read is None:
        if kind not in _SILENT:
            _count(skipped, [kind])
        return None
    return read(fields)


def _count(counter: dict[str, int], names: Sequence[str]) -> None:
    for name in names:
        short = name[:_MAX_NAME_CHARS]
        kept = short if short in counter or len(counter) < MAX_NAMES else OTHER_NAMES
        counter[kept] = counter.get(kept, 0) + 1


def _number(value: Any) -> float | None:
    """None for anything else, infinities and NaN among it."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return None
    return float(value) if abs(value) < _END_OF_TIME else None
