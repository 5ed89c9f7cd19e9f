"""`nexuskv.fleet.v1`: the fleet that is simulated, with where its figures are from."""

from collections.abc import Iterator
from itertools import pairwise
from typing import Annotated, Any, Final, Literal

from msgspec import Meta, Struct

from app.contract.enums import TierKind
from app.contract.findings import Shape, not_finite, refusal
from app.errors import ErrorCode, FieldError
from app.planner.profile import NO_DOCUMENT, Positive, Profile, Relative, Text
from app.planner.profile import NotNegative as Span

MAX_ENGINES: Final = 64
MAX_LINKS: Final = 4_096
Count = Annotated[int, Meta(ge=1, le=2**40)]
Named = Annotated[str, Meta(min_length=1, max_length=2_048)]
_DEEPER: Final = (TierKind.LOCAL_SSD, TierKind.REMOTE_SHARED, TierKind.OBJECT_STORE)


class Deeper(Struct, frozen=True, forbid_unknown_fields=True):
    """A tier below memory: a `local_ssd` is each node's, the others are the fleet's. Blocks that
    leave the tier above go there; `tokens` is what one of them holds.
    """

    tier: Literal["local_ssd", "remote_shared", "object_store"]
    tokens: Count
    source: Named

    @property
    def kind(self) -> TierKind:
        return TierKind(self.tier)


class FleetLink(Struct, frozen=True, forbid_unknown_fields=True):
    """From node `origin` to node `target` (`node-00`, ...): what it takes instead of the profile's
    path, of which the slower counts for tiers below memory. `source`: where the figures are from.
    """

    origin: Named
    target: Named
    latency_us: Span
    bytes_per_us: Positive
    source: Named


class Fleet(Struct, frozen=True, forbid_unknown_fields=True):
    """`engines` alike, `engines_per_node` on each node. Capacities are in tokens: of a device's
    cache, and of the memory of its node to which blocks are demoted (0 for none).

    `utilisation` is what recomputing always would make of the prefills: arrivals are scaled to it.
    Noises are deviations of the logarithm of true times. `tenants`: how many the conversations of a
    trace, which names none, are dealt to.
    """

    schema_version: Literal["nexuskv.fleet.v1"]
    name: Text
    source: Text
    engines: Annotated[int, Meta(ge=1, le=MAX_ENGINES)]
    device_tokens: Count
    host_tokens: Annotated[int, Meta(ge=0, le=2**40)]
    block_tokens: Annotated[int, Meta(ge=1, le=65_536)]
    decode_us_per_token: Span
    utilisation: Annotated[float, Meta(gt=0, lt=2)]
    slo_ttft_us: Positive
    prefill_noise: Relative
    transfer_noise: Relative
    profile: Profile
    engines_per_node: Annotated[int, Meta(ge=1, le=MAX_ENGINES)] = 1
    tiers: Annotated[tuple[Deeper, ...], Meta(max_length=len(_DEEPER))] = ()
    links: Annotated[tuple[FleetLink, ...], Meta(max_length=MAX_LINKS)] = ()
    tenants: Annotated[int, Meta(ge=1, le=1_024)] = 8

    def node(self, engine: int) -> str:
        """The name of the node that the engine is on."""
        return f"node-{engine // self.engines_per_node:02}"

    def nodes(self) -> list[str]:
        """Each node once, in order."""
        return list(dict.fromkeys(self.node(engine) for engine in range(self.engines)))


_SHAPE: Final = Shape(Fleet, "fleet")


def load_fleet(document: Any) -> Fleet:
    """A fleet from a decoded document. Raises NexusError with every finding."""
    found = list(_SHAPE.findings(document)) or list(not_finite(document, ""))
    if found or not isinstance(document, dict):
        raise refusal(_SHAPE.noun, found or [NO_DOCUMENT])
    fleet = _SHAPE.accept(document)
    found = list(_contradictions(fleet))
    if found:
        raise refusal(_SHAPE.noun, found)
    return fleet


def _contradictions(fleet: Fleet) -> Iterator[FieldError]:
    """What is well-formed alone, but not together."""
    if fleet.engines % fleet.engines_per_node:
        yield _invalid("/engines_per_node", "does not divide the number of engines")
    for place, (above, below) in enumerate(pairwise(fleet.tiers)):
        if _DEEPER.index(below.kind) <= _DEEPER.index(above.kind):
            yield _invalid(f"/tiers/{place + 1}", "is not below the tier before it")
    for place, deeper in enumerate(fleet.tiers):
        if any(fleet.profile.path(deeper.kind, remote=remote) is None for remote in (False, True)):
            yield _invalid(f"/tiers/{place}", "has no path in the profile, local and remote")
    nodes, seen = set(fleet.nodes()), set[tuple[str, str]]()
    for place, link in enumerate(fleet.links):
        if not {link.origin, link.target} <= nodes or link.origin == link.target:
            yield _invalid(f"/links/{place}", "is not between two nodes of the fleet")
        if (link.origin, link.target) in seen:
            yield _invalid(f"/links/{place}", "is there twice")
        seen.add((link.origin, link.target))


def _invalid(pointer: str, detail: str) -> FieldError:
    return FieldError(pointer, ErrorCode.INVALID_FIELD, detail)
