"""The body that registers a state: parsed strictly, checked for consistency, written canonically.

Its form is one element of the bridge fixture's `entries[]`: `{reuse_key, entry, validation}`.
"""

from collections.abc import Iterator, Mapping
from typing import Any

import msgspec
from msgspec import Struct

from app.contract.entry import CacheEntry, KeyIdentity, ReuseKey
from app.contract.enums import EngineFamily, Granularity
from app.contract.evidence import Evidence
from app.contract.findings import Shape, refusal
from app.errors import ErrorCode, FieldError


class Registration(Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True, gc=False):
    """A state and what it was computed under; without `validation` no lookup will reuse it."""

    reuse_key: ReuseKey
    entry: CacheEntry
    validation: Evidence | None = None


_SHAPE = Shape(Registration, "registration")
_ENCODER = msgspec.json.Encoder(order="sorted")
_KEY = "/entry/identity/key"
_DESCRIPTOR = "/entry/descriptor"


def parse_registration(raw: bytes | Mapping[str, Any]) -> Registration:
    """The registration in JSON text or decoded JSON.

    The token list is held once: `reuse_key.identity` and `entry.identity.key` are one object.
    Raises NexusError with every finding of its form; of its consistency, once the form is right.
    """
    parsed = _SHAPE.accept(raw)
    found = tuple(inconsistencies(parsed))
    if found:
        raise refusal(_SHAPE.noun, found)
    key = ReuseKey(identity=parsed.entry.identity.key)
    return Registration(reuse_key=key, entry=parsed.entry, validation=parsed.validation)


def registration_bytes(registration: Registration) -> bytes:
    """Canonical JSON: sorted keys, compact, UTF-8. Equal content gives equal bytes."""
    return _ENCODER.encode(registration)


def inconsistencies(
    registration: Registration, *, without_tokens: bool = False
) -> Iterator[FieldError]:
    """What is wrong with a registration of the right form. `without_tokens`: it must have none."""
    reuse, key = registration.reuse_key.identity, registration.entry.identity.key
    descriptor = registration.entry.descriptor
    if reuse != key:
        yield from _differences(reuse, key)
    if without_tokens and key.tokens:
        yield _invalid(f"{_KEY}/tokens", "must be empty: the engine's blocks say what is there")
    elif not without_tokens and not key.tokens:
        yield _invalid(f"{_KEY}/tokens", "must have at least 1 items, and has 0")
    if key.engine_family is EngineFamily.UNKNOWN:
        yield FieldError(
            f"{_KEY}/engine_family", ErrorCode.UNSUPPORTED_IDENTITY, "must name a known engine"
        )
    for field in ("engine_family", "semantic_type"):
        if getattr(descriptor, field) is not getattr(key, field):
            yield _invalid(f"{_DESCRIPTOR}/{field}", f"must equal {_KEY}/{field}")
    for granularity, field in (
        (Granularity.BLOCK, "block_tokens"),
        (Granularity.PAGE, "page_tokens"),
    ):
        if descriptor.granularity is granularity and not getattr(descriptor.layout, field):
            yield _invalid(
                f"{_DESCRIPTOR}/layout/{field}", f"must be at least 1 at {granularity} granularity"
            )


def _differences(reuse: KeyIdentity, key: KeyIdentity) -> Iterator[FieldError]:
    for field in KeyIdentity.__struct_fields__:
        if getattr(reuse, field) != getattr(key, field):
            yield _invalid(f"{_KEY}/{field}", f"must equal /reuse_key/identity/{field}")


def _invalid(pointer: str, detail: str) -> FieldError:
    return FieldError(pointer, ErrorCode.INVALID_FIELD, detail)
