"""`nexuskv.cost_profile.v1`: what computing and bringing state costs, of a model on hardware. Pure.

Times are microseconds, bandwidths bytes a microsecond (1,000 are 1 GB/s). An `uncertainty` is a
standard deviation as a part of the value.
"""

from functools import cached_property
from hashlib import sha256
from typing import Annotated, Any, Final, Literal

import msgspec
from msgspec import Meta, Struct

from app.contract.enums import TierKind, TransferBackend
from app.contract.findings import Shape, not_finite, refusal
from app.contract.limits import Name
from app.errors import ErrorCode, FieldError

MAX_PATHS: Final = 64
_MAX: Final = 1e15
_VERSION_HEX_DIGITS: Final = 16

Positive = Annotated[float, Meta(gt=0, le=_MAX)]
NotNegative = Annotated[float, Meta(ge=0, le=_MAX)]
Relative = Annotated[float, Meta(ge=0, le=10)]
Text = Annotated[str, Meta(max_length=2_048)]


class Prefill(Struct, frozen=True, forbid_unknown_fields=True):
    """Computing `n` tokens behind `c` that are there takes

        schedule + per_token n + per_pair (n c + n^2 / 2)

    `per_pair_us` is what attention costs for each pair of a new token and one before it.
    """

    schedule_us: NotNegative
    per_token_us: NotNegative
    per_pair_us: NotNegative
    uncertainty: Relative
    # Whether it is of observations here, and no prior any more.
    measured: bool = False

    def recompute_us(self, tokens: float, context: float) -> float:
        """Of so many new tokens in such a context, without being scheduled."""
        return tokens * (self.per_token_us + self.per_pair_us * (context + tokens / 2))


class Path(Struct, frozen=True, forbid_unknown_fields=True):
    """From a tier to where the engine computes: latency, and bytes over bandwidth.

    What is left out holds for any: `remote` says whether another node is in between.
    """

    tier: TierKind
    latency_us: NotNegative
    bytes_per_us: Positive
    uncertainty: Relative
    remote: bool | None = None
    backend: TransferBackend | None = None
    measured: bool = False


class Profile(Struct, frozen=True, forbid_unknown_fields=True, dict=True):
    """One document. `model` and `hardware` say what it is of, "" for any; `source` names where the
    figures are from.

    `decode_slowdown`: by what part a running decode token makes prefill slower. `queued_tokens`: of
    a request that waits, where nobody says how long it is.
    """

    schema_version: Literal["nexuskv.cost_profile.v1"]
    name: Name
    source: Text
    prefill: Prefill
    paths: Annotated[tuple[Path, ...], Meta(max_length=MAX_PATHS)]
    restore_us: NotNegative
    default_bytes_per_token: Positive
    model: Annotated[str, Meta(max_length=512)] = ""
    hardware: Annotated[str, Meta(max_length=128)] = ""
    lookup_us: NotNegative = 0.0
    sync_us: NotNegative = 0.0
    decode_slowdown: Relative = 0.0
    queued_tokens: NotNegative = 2_048.0

    @cached_property
    def version(self) -> str:
        """A short digest of the content; equal content, however written, has equal ones."""
        return f"sha256:{sha256(canonical_bytes(self)).hexdigest()[:_VERSION_HEX_DIGITS]}"

    @cached_property
    def overhead_us(self) -> float:
        """What every reuse takes, whatever it brings."""
        return self.lookup_us + self.restore_us + self.sync_us + self.prefill.schedule_us

    @cached_property
    def path_rows(self) -> tuple[float, ...]:
        """Latency, bandwidth (0 for no path) and uncertainty, by tier and whether it is remote."""
        found = [self.path(tier, remote=remote) for tier in TierKind for remote in (False, True)]
        rows = [(p.latency_us, p.bytes_per_us, p.uncertainty) if p else (0.0,) * 3 for p in found]
        return tuple(value for row in rows for value in row)

    def path(self, tier: TierKind, *, remote: bool) -> Path | None:
        """The first path that fits, those that say `remote` before those that do not."""
        fitting = [one for one in self.paths if one.tier is tier and one.remote in {remote, None}]
        return min(fitting, key=lambda one: one.remote is None, default=None)


_SHAPE: Final = Shape(Profile, "cost profile")
_ENCODER: Final = msgspec.json.Encoder(order="sorted")


def load_profile(document: Any) -> Profile:
    """A profile from a decoded document. Raises NexusError with every finding."""
    found = list(_SHAPE.findings(document)) or list(not_finite(document, ""))
    if found or not isinstance(document, dict):
        raise refusal(_SHAPE.noun, found or [NO_DOCUMENT])
    return _SHAPE.accept(document)


def canonical_bytes(profile: Profile) -> bytes:
    """Compact JSON with sorted keys."""
    return _ENCODER.encode(profile)


NO_DOCUMENT: Final = FieldError("", ErrorCode.INVALID_BODY, "is not a mapping")
