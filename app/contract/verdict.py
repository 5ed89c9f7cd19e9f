"""What a compatibility check says."""

from msgspec import Struct

from app.contract.enums import ExclusionReason

_MAX_SHOWN = 512


class Compatible(Struct, frozen=True):
    """The state may be reused, as far as metadata can say."""


class Mismatch(Struct, frozen=True):
    """Why not. `field` is relative to the entry or to the evidence; `expected` is the query's
    value, or a rule in words where the state alone decides; `found` is the state's value.
    """

    field: str
    reason: ExclusionReason
    expected: str | None
    found: str | None


Verdict = Compatible | Mismatch
COMPATIBLE = Compatible()


def shown(value: object) -> str | None:
    """A value as a record keeps it: bounded text, None for an absent one."""
    if value is None:
        return None
    if isinstance(value, bool):
        return "true" if value else "false"
    return str(value)[:_MAX_SHOWN]
