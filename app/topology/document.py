"""`nexuskv.topology.v1`: the nodes of a fleet, the engines on them, and the links between. Pure.

Bandwidths are bytes a microsecond (1,000 are 1 GB/s), latencies microseconds. A `max_in_flight` of
0 is no limit.
"""

import json
import math
from collections.abc import Iterable, Iterator, Mapping
from functools import cached_property
from hashlib import sha256
from itertools import islice
from typing import Annotated, Any, Final, Literal

import msgspec
from msgspec import Meta, Struct

from app.contract.enums import TierKind
from app.contract.findings import MAX_FINDINGS, Shape, refusal
from app.contract.limits import U63, Name
from app.errors import ErrorCode, FieldError, NexusError
from app.planner.links import MAX_NODES
from app.policy.consistency import with_value
from app.policy.text import MAX_DOCUMENT_BYTES, parse_document

# JSON, as programs write it; YAML, which people write, has the limits of a policy.
MAX_TOPOLOGY_BYTES: Final = 8 * 1024 * 1024
MAX_LINKS: Final = 65_536
MAX_ENGINES: Final = 65_536
MAX_TIERS: Final = MAX_NODES * len(TierKind)
_MAX: Final = 1e15
_MAX_IN_FLIGHT: Final = 1_000_000

Positive = Annotated[float, Meta(gt=0, le=_MAX)]
NotNegative = Annotated[float, Meta(ge=0, le=_MAX)]
InFlight = Annotated[int, Meta(ge=0, le=_MAX_IN_FLIGHT)]


class Node(Struct, frozen=True, forbid_unknown_fields=True):
    """Where state lies or is computed, as locators name it: `node://NAME/...`."""

    name: Name


class Engine(Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """An engine on a node; `hardware` and `model` are those of its cost profile, "" for any."""

    engine_id: Name
    node: Name
    hardware: Annotated[str, Meta(max_length=128)] = ""
    model: Annotated[str, Meta(max_length=512)] = ""


class LinkSpec(Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """From one node to another, or within one."""

    source: Name
    target: Name
    bandwidth_bytes_per_us: Positive
    latency_us: NotNegative
    max_in_flight: InFlight = 0
    both_ways: bool = True

    def directions(self) -> tuple[tuple[str, str], ...]:
        """The one or two (source, target) that it is."""
        one = (self.source, self.target)
        if not self.both_ways or self.source == self.target:
            return (one,)
        return (one, (self.target, self.source))


class Tier(Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """How much a tier of a node holds."""

    node: Name
    tier: TierKind
    capacity_bytes: U63
    max_in_flight: InFlight = 0


class TopologyDocument(
    Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True, dict=True
):
    """One document, whole."""

    schema_version: Literal["nexuskv.topology.v1"]
    nodes: Annotated[tuple[Node, ...], Meta(max_length=MAX_NODES)]
    engines: Annotated[tuple[Engine, ...], Meta(max_length=MAX_ENGINES)] = ()
    links: Annotated[tuple[LinkSpec, ...], Meta(max_length=MAX_LINKS)] = ()
    tiers: Annotated[tuple[Tier, ...], Meta(max_length=MAX_TIERS)] = ()

    @cached_property
    def content_sha256(self) -> str:
        """Hex digest of the canonical bytes; equal content, however written, has equal digests."""
        return sha256(canonical_bytes(self)).hexdigest()


_SHAPE: Final = Shape(TopologyDocument, "topology")
_ENCODER: Final = msgspec.json.Encoder(order="sorted")


def load_topology(text: bytes | str) -> TopologyDocument:
    """The topology in a YAML or JSON document.

    Raises NexusError with every finding, of its form and of what must agree in it, each with the
    value that stands there; REQUEST_TOO_LARGE or INVALID_BODY for what is no document at all.
    """
    document = _parsed(text)
    found: list[FieldError] = []
    accepted: TopologyDocument | None = None
    if isinstance(document, dict):
        try:
            accepted = _SHAPE.accept(document)
        except NexusError as error:
            found += error.errors
    else:
        found += _SHAPE.findings(document)
    found += islice(disagreements(document), MAX_FINDINGS - len(found))
    if found or accepted is None:
        raise refusal(_SHAPE.noun, [with_value(finding, document) for finding in found])
    return accepted


def canonical_bytes(topology: TopologyDocument) -> bytes:
    """Compact JSON with sorted keys and lists; what equals its default is omitted."""
    return _ENCODER.encode(
        TopologyDocument(
            topology.schema_version,
            tuple(sorted(topology.nodes, key=lambda one: one.name)),
            tuple(sorted(topology.engines, key=lambda one: one.engine_id)),
            tuple(sorted(topology.links, key=lambda one: (one.source, one.target))),
            tuple(sorted(topology.tiers, key=lambda one: (one.node, one.tier.value))),
        )
    )


def disagreements(document: object) -> Iterator[FieldError]:
    """Names given twice, names of no node, and figures that no bound stops: NaN passes each.

    Reads the plain document, so that one of the wrong form hears of everything at once; what is
    malformed is passed over here. Lists that are too long are refused for that alone.
    """
    if not isinstance(document, Mapping):
        return
    names = [_text(one, "name") for _, one in _items(document, "nodes", MAX_NODES)]
    nodes = {name for name in names if name is not None}
    yield from _repeated("nodes", "name", enumerate(names))
    engines = list(_items(document, "engines", MAX_ENGINES))
    ids = ((n, _text(one, "engine_id")) for n, one in engines)
    yield from _repeated("engines", "engine_id", ids)
    yield from _unknown("engines", engines, ("node",), nodes)
    links = list(_items(document, "links", MAX_LINKS))
    yield from _unknown("links", links, ("source", "target"), nodes)
    yield from _not_finite(links)
    yield from _linked_twice(links)
    tiers = list(_items(document, "tiers", MAX_TIERS))
    yield from _unknown("tiers", tiers, ("node",), nodes)
    pairs = ((n, _pair(one, "node", "tier")) for n, one in tiers)
    yield from _repeated("tiers", "tier", pairs)


Item = tuple[int, Mapping[str, Any]]


def _items(document: Mapping[str, Any], field: str, most: int) -> Iterator[Item]:
    items = document.get(field)
    if not isinstance(items, list) or len(items) > most:
        return
    for place, item in enumerate(items):
        yield place, item if isinstance(item, Mapping) else {}


def _text(item: Mapping[str, Any], field: str) -> str | None:
    value = item.get(field)
    return value if isinstance(value, str) else None


def _pair(item: Mapping[str, Any], one: str, other: str) -> tuple[str, str] | None:
    first, second = _text(item, one), _text(item, other)
    return None if first is None or second is None else (first, second)


def _repeated(
    where: str, field: str, named: Iterable[tuple[int, object | None]]
) -> Iterator[FieldError]:
    seen: dict[object, int] = {}
    for place, name in named:
        if name is None:
            continue
        if (first := seen.setdefault(name, place)) != place:
            detail = f"is that of /{where}/{first} already"
            yield FieldError(f"/{where}/{place}/{field}", ErrorCode.INVALID_FIELD, detail)


def _unknown(
    where: str, items: list[Item], fields: tuple[str, ...], nodes: set[str]
) -> Iterator[FieldError]:
    for place, item in items:
        for field in fields:
            name = _text(item, field)
            if name is not None and name not in nodes:
                at = f"/{where}/{place}/{field}"
                yield FieldError(at, ErrorCode.INVALID_FIELD, "is not among the nodes")


def _not_finite(links: list[Item]) -> Iterator[FieldError]:
    for place, link in links:
        for field in ("bandwidth_bytes_per_us", "latency_us"):
            value = link.get(field)
            if isinstance(value, float) and math.isnan(value):
                at = f"/links/{place}/{field}"
                yield FieldError(at, ErrorCode.INVALID_FIELD, "must be a finite number")


def _linked_twice(links: list[Item]) -> Iterator[FieldError]:
    seen: dict[tuple[str, str], int] = {}
    for place, link in links:
        pair = _pair(link, "source", "target")
        if pair is None:
            continue
        both = link.get("both_ways", True) is True
        for direction in {pair, pair[::-1]} if both else {pair}:
            if (first := seen.setdefault(direction, place)) != place:
                detail = f"links two nodes that /links/{first} links already"
                yield FieldError(f"/links/{place}", ErrorCode.INVALID_FIELD, detail)
                break


def _parsed(text: bytes | str) -> object:
    raw = text.encode("utf-8", "surrogatepass") if isinstance(text, str) else text
    if len(raw) > MAX_TOPOLOGY_BYTES:
        limit = f"The document must have at most {MAX_TOPOLOGY_BYTES} bytes"
        raise NexusError(ErrorCode.REQUEST_TOO_LARGE, limit)
    if not raw.removeprefix(b"\xef\xbb\xbf").lstrip().startswith(b"{"):
        return parse_document(raw)
    try:
        return json.loads(raw, object_pairs_hook=_once_each, parse_constant=_refuse)
    except (ValueError, RecursionError) as error:
        # It may still be YAML, which begins with a brace as well, or hear exactly what is wrong.
        if len(raw) <= MAX_DOCUMENT_BYTES:
            return parse_document(raw)
        raise NexusError(
            ErrorCode.INVALID_BODY,
            "The document is not JSON with each key once; as YAML it may have "
            f"{MAX_DOCUMENT_BYTES} bytes",
            internal=str(error),
        ) from None


def _once_each(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        raise ValueError("a key is written twice")
    return found


def _refuse(name: str) -> None:
    raise ValueError(f"{name} is not JSON")
