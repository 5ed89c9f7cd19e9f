"""What a transfer is expected to cost, in microseconds, and where each part of that comes from."""

from collections.abc import Iterable
from enum import StrEnum
from types import MappingProxyType
from typing import Final, Protocol

from msgspec import Struct

from app.contract.enums import TierKind
from app.contract.limits import MAX_I63

_NODE_SCHEME = "node://"


class Provenance(StrEnum):
    """How far a figure can be trusted: measured here, a profile's prior, a default, or nothing."""

    MEASURED = "measured"
    PROFILE = "profile"
    DEFAULT = "default"
    UNKNOWN = "unknown"


class Locality(StrEnum):
    LOCAL = "local"
    REMOTE = "remote"


class Term(Struct, frozen=True, gc=False):
    """One addend of an estimate."""

    name: str
    value_us: int
    provenance: Provenance


class TransferEstimate(Struct, frozen=True, gc=False):
    """`transfer_us` is the sum of the terms, at most 2^63-1. `payload_bytes` is None when the
    descriptor does not say; `topology_path` is None when the state is local to the target.
    """

    transfer_us: int
    payload_bytes: int | None
    terms: tuple[Term, ...]
    locality: Locality
    topology_path: str | None


class CostModel(Protocol):
    """Predicts; never measures, never decides. `name` says by which figures."""

    @property
    def name(self) -> str: ...

    def estimate(
        self,
        *,
        tier: TierKind,
        locator: str,
        target_residency: str,
        payload_bytes: int | None,
        tokens: int,
    ) -> TransferEstimate:
        """Bringing `tokens` tokens of state from a tier to a device at the target."""

    def recompute_us(self, tokens: int) -> int:
        """Computing the state of `tokens` tokens again instead."""


class CostProfile(Struct, frozen=True, forbid_unknown_fields=True):
    """What the cost of a model on its hardware is made of. `name` says which profile, and which
    version of it: decisions record it, so that they can be priced again.
    """

    name: str
    # What a tier is read at, in bytes a microsecond.
    bytes_per_us: dict[TierKind, int]
    restore_us: int
    scheduling_us: int
    prefill_us_per_token: int
    # Where a descriptor does not say how long a state is.
    default_bytes_per_token: int

    def estimate(
        self,
        *,
        tier: TierKind,
        locator: str,
        target_residency: str,
        payload_bytes: int | None,
        tokens: int,
    ) -> TransferEstimate:
        """Restoring, and the bytes at the source tier's bandwidth, rounded up.

        Unknown bytes are counted as `default_bytes_per_token` a token, and the term says so.
        """
        known = payload_bytes is not None
        moved = (
            payload_bytes if payload_bytes is not None else tokens * self.default_bytes_per_token
        )
        terms = self.bringing(tier, moved, Provenance.PROFILE if known else Provenance.DEFAULT)
        local = node_of(locator) == target_residency
        return TransferEstimate(
            transfer_us=total_us(terms),
            payload_bytes=payload_bytes,
            terms=terms,
            locality=Locality.LOCAL if local else Locality.REMOTE,
            topology_path=None if local else f"{tier}->device@{target_residency}",
        )

    def bringing(self, tier: TierKind, moved_bytes: int, source: Provenance) -> tuple[Term, ...]:
        """The terms of having so many bytes from a tier; `source` says where their number is from.

        Restoring them to the device is one, reading them at the tier's bandwidth the other.
        """
        return (
            Term("restore", self.restore_us, Provenance.PROFILE),
            Term("bytes", min(-(-moved_bytes // self.bytes_per_us[tier]), MAX_I63), source),
        )

    def computing(self, tokens: int) -> tuple[Term, ...]:
        """The terms of computing the state of so many tokens again."""
        return (
            Term("schedule", self.scheduling_us, Provenance.PROFILE),
            Term("recompute", min(self.prefill_us_per_token * tokens, MAX_I63), Provenance.PROFILE),
        )

    def recompute_us(self, tokens: int) -> int:
        """Scheduling a prefill and running it, at most 2^63-1."""
        return total_us(self.computing(tokens))


# The published reference figures: a prior, to be replaced by measurement.
REFERENCE: Final = CostProfile(
    name="reference/1",
    bytes_per_us={
        TierKind.DEVICE: 3_350_000,
        TierKind.HOST_DRAM: 200_000,
        TierKind.LOCAL_SSD: 7_000,
        TierKind.REMOTE_SHARED: 50_000,
        TierKind.OBJECT_STORE: 1_000,
    },
    restore_us=50,
    scheduling_us=100,
    prefill_us_per_token=5,
    # Keys and values of 32 layers with 8 heads of 128 in 16 bits: 2 * 32 * 8 * 128 * 2.
    default_bytes_per_token=131_072,
)
PROFILES: Final = MappingProxyType({REFERENCE.name: REFERENCE})


def total_us(terms: Iterable[Term]) -> int:
    """The sum of terms, at most 2^63-1."""
    return min(sum(term.value_us for term in terms), MAX_I63)


def node_of(locator: str) -> str | None:
    """The node in `node://NODE/...`; None for a locator of any other form."""
    node, slash, _ = locator.removeprefix(_NODE_SCHEME).partition("/")
    return node if slash and node and locator.startswith(_NODE_SCHEME) else None
