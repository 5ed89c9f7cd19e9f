"""Whether a tenant may hold or move more. Pure: usage and policy in, verdict out."""

from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from app.policy.document import QuotaAdmissionPolicy, QuotaMode


class ChargeKind(StrEnum):
    """What a charge stands for: a payload that is held, or a transfer that is running."""

    PAYLOAD = "payload"
    TRANSFER = "transfer"


class QuotaLimit(StrEnum):
    """The limits of a policy that are counted; each is also the name of its field."""

    MAX_PAYLOAD_BYTES = "max_payload_bytes"
    MAX_ENTRIES = "max_entries"
    MAX_CONCURRENT_TRANSFERS = "max_concurrent_transfers"


@dataclass(frozen=True, slots=True)
class QuotaUsage:
    """What one tenant holds, or what one charge adds to it."""

    payload_bytes: int = 0
    entries: int = 0
    transfers: int = 0

    def plus(self, other: "QuotaUsage") -> "QuotaUsage":
        return QuotaUsage(
            self.payload_bytes + other.payload_bytes,
            self.entries + other.entries,
            self.transfers + other.transfers,
        )

    def minus(self, other: "QuotaUsage") -> "QuotaUsage":
        return QuotaUsage(
            self.payload_bytes - other.payload_bytes,
            self.entries - other.entries,
            self.transfers - other.transfers,
        )


@dataclass(frozen=True, slots=True)
class Limits:
    """What a tenant may hold and move at a time; 0 is no limit."""

    payload_bytes: int
    entries: int
    transfers: int


def limits_of(quota: QuotaAdmissionPolicy) -> Limits:
    """The limits beyond which a charge is refused or, where they are advisory, recorded."""
    if quota.mode is QuotaMode.DISABLED:
        return Limits(0, 0, 0)
    return Limits(quota.max_payload_bytes, quota.max_entries, quota.max_concurrent_transfers)


@dataclass(frozen=True, slots=True)
class QuotaVerdict:
    """The answer to one charge. `used_*` is what the tenant holds now, this charge included when
    it was allowed. `repeated` is a charge that was made before, and is not made again; it was for
    `charged_bytes` then.

    `exceeded` names the limits that the charge goes beyond, also where that is only advisory.
    A limit of 0 is none.
    """

    allowed: bool
    repeated: bool
    mode: QuotaMode
    exceeded: tuple[QuotaLimit, ...]
    used_payload_bytes: int
    used_entries: int
    used_transfers: int
    limit_payload_bytes: int
    limit_entries: int
    limit_transfers: int
    charged_bytes: int = 0
    # Of a movement.
    seen: "QuotaSeen | None" = None

    @property
    def advisory_exceeded(self) -> bool:
        """Allowed, and to be recorded as beyond a limit."""
        return self.allowed and bool(self.exceeded)


@dataclass(frozen=True, slots=True)
class QuotaSeen:
    """What a movement was judged on: so many bytes, and what the tenant had.

    `charged_bytes` is what the payload was charged for before, None for a new one. Only what it is
    longer now is asked for then.
    """

    payload_bytes: int
    used_payload_bytes: int
    used_entries: int
    used_transfers: int
    charged_bytes: int | None = None
    transfer_charged: bool = False


def seen_by(payload_bytes: int, moving: "QuotaVerdict", charged_bytes: int | None) -> QuotaSeen:
    """From the verdict on the transfer, which is charged first."""
    counted = moving.allowed and not moving.repeated
    return QuotaSeen(
        payload_bytes,
        moving.used_payload_bytes,
        moving.used_entries,
        moving.used_transfers - counted,
        charged_bytes,
        moving.repeated,
    )


def exceeded_by(quota: QuotaAdmissionPolicy, seen: QuotaSeen) -> tuple[QuotaLimit, ...]:
    """The limits of a policy that the movement goes beyond."""
    if quota.mode is QuotaMode.DISABLED:
        return ()
    used = QuotaUsage(seen.used_payload_bytes, seen.used_entries, seen.used_transfers)
    transfers = 0 if seen.transfer_charged else 1
    if seen.charged_bytes is None:
        asked = QuotaUsage(seen.payload_bytes, 1, transfers)
    else:
        asked = QuotaUsage(max(0, seen.payload_bytes - seen.charged_bytes), 0, transfers)
    return _exceeded(quota, used, asked)


_NOTHING: Final = QuotaUsage()


def decide(
    quota: QuotaAdmissionPolicy, used: QuotaUsage, asked: QuotaUsage, *, repeated: bool
) -> QuotaVerdict:
    """The verdict on a charge of `asked` for a tenant that holds `used`.

    Only limits of what is asked for can be exceeded: a tenant over its bytes may still read.
    """
    new = _NOTHING if repeated else asked
    exceeded = () if quota.mode is QuotaMode.DISABLED else _exceeded(quota, used, new)
    allowed = not exceeded or quota.mode is not QuotaMode.ENFORCED
    held = used.plus(new) if allowed else used
    return QuotaVerdict(
        allowed=allowed,
        repeated=repeated,
        mode=quota.mode,
        exceeded=exceeded,
        used_payload_bytes=held.payload_bytes,
        used_entries=held.entries,
        used_transfers=held.transfers,
        limit_payload_bytes=quota.max_payload_bytes,
        limit_entries=quota.max_entries,
        limit_transfers=quota.max_concurrent_transfers,
    )


def _exceeded(
    quota: QuotaAdmissionPolicy, used: QuotaUsage, new: QuotaUsage
) -> tuple[QuotaLimit, ...]:
    dimensions = (
        (QuotaLimit.MAX_PAYLOAD_BYTES, quota.max_payload_bytes, used.payload_bytes,
         new.payload_bytes),
        (QuotaLimit.MAX_ENTRIES, quota.max_entries, used.entries, new.entries),
        (QuotaLimit.MAX_CONCURRENT_TRANSFERS, quota.max_concurrent_transfers, used.transfers,
         new.transfers),
    )  # fmt: skip
    return tuple(
        name for name, limit, held, more in dimensions if limit and more and held + more > limit
    )
