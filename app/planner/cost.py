"""What a transfer is expected to cost, in microseconds, and where each part of that comes from."""

from enum import StrEnum
from types import MappingProxyType
from typing import Protocol

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
    """Predicts; never measures, never decides."""

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


class ReferenceProfile:
    """The published reference figures: a prior, to be replaced by measurement."""

    BYTES_PER_US = MappingProxyType(
        {
            TierKind.DEVICE: 3_350_000,
            TierKind.HOST_DRAM: 200_000,
            TierKind.LOCAL_SSD: 7_000,
            TierKind.REMOTE_SHARED: 50_000,
            TierKind.OBJECT_STORE: 1_000,
        }
    )
    RESTORE_US = 50
    SCHEDULING_US = 100
    PREFILL_US_PER_TOKEN = 5
    # Keys and values of 32 layers with 8 heads of 128 in 16 bits: 2 * 32 * 8 * 128 * 2.
    DEFAULT_BYTES_PER_TOKEN = 131_072

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

        Unknown bytes are counted as DEFAULT_BYTES_PER_TOKEN a token, and the term says so.
        """
        known = payload_bytes is not None
        moved = (
            payload_bytes if payload_bytes is not None else tokens * self.DEFAULT_BYTES_PER_TOKEN
        )
        bandwidth = self.BYTES_PER_US[tier]
        terms = (
            Term("restore", self.RESTORE_US, Provenance.PROFILE),
            Term(
                "bytes",
                min(-(-moved // bandwidth), MAX_I63),
                Provenance.PROFILE if known else Provenance.DEFAULT,
            ),
        )
        local = node_of(locator) == target_residency
        return TransferEstimate(
            transfer_us=min(sum(term.value_us for term in terms), MAX_I63),
            payload_bytes=payload_bytes,
            terms=terms,
            locality=Locality.LOCAL if local else Locality.REMOTE,
            topology_path=None if local else f"{tier}->device@{target_residency}",
        )

    def recompute_us(self, tokens: int) -> int:
        """Scheduling a prefill and running it, at most 2^63-1."""
        return min(self.SCHEDULING_US + self.PREFILL_US_PER_TOKEN * tokens, MAX_I63)


def node_of(locator: str) -> str | None:
    """The node in `node://NODE/...`; None for a locator of any other form."""
    node, slash, _ = locator.removeprefix(_NODE_SCHEME).partition("/")
    return node if slash and node and locator.startswith(_NODE_SCHEME) else None
