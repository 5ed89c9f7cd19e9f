"""`nexuskv.fleet.v1`: the fleet that is simulated, with where its figures are from."""

from typing import Annotated, Any, Final, Literal

from msgspec import Meta, Struct

from app.contract.findings import Shape, not_finite, refusal
from app.planner.profile import NO_DOCUMENT, Positive, Profile, Relative, Text
from app.planner.profile import NotNegative as Span

MAX_ENGINES: Final = 64
Count = Annotated[int, Meta(ge=1, le=2**40)]


class Fleet(Struct, frozen=True, forbid_unknown_fields=True):
    """`engines` alike, one a node. Capacities are in tokens: of a device's cache, and of the memory
    of its node to which blocks are demoted (0 for none).

    `utilisation` is what recomputing always would make of the prefills: arrivals are scaled to it.
    Noises are deviations of the logarithm of true times.
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


_SHAPE: Final = Shape(Fleet, "fleet")


def load_fleet(document: Any) -> Fleet:
    """A fleet from a decoded document. Raises NexusError with every finding."""
    found = list(_SHAPE.findings(document)) or list(not_finite(document, ""))
    if found or not isinstance(document, dict):
        raise refusal(_SHAPE.noun, found or [NO_DOCUMENT])
    return _SHAPE.accept(document)
