"""Whether a state is understood at all, whatever is asked: a value that is not makes it useless."""

from collections.abc import Callable, Iterator
from typing import NamedTuple

from app.contract.dtypes import QUANTIZATION_SCHEMES, dtype_bits
from app.contract.entry import CacheEntry
from app.contract.enums import ExclusionReason
from app.contract.rules import ReuseRule, reuse_rule
from app.contract.scope import AXES, CheckpointKind, PositionConvention, is_layer_scope
from app.contract.verdict import COMPATIBLE, Mismatch, Verdict, shown

Offences = Iterator[tuple[str, object]]

_UNNAMED = frozenset({"", "unknown"})
_POSITIONS = frozenset(convention.value for convention in PositionConvention)
_KINDS = frozenset(kind.value for kind in CheckpointKind)


class Requirement(NamedTuple):
    """`offences` yields (field, value) of everything in the entry that does not meet `rule`."""

    rule: str
    offences: Callable[[CacheEntry], Offences]
    reason: ExclusionReason = ExclusionReason.UNKNOWN_VALUE


def _not_reusable(entry: CacheEntry) -> Offences:
    if not entry.policy_hint.reusable:
        yield "policy_hint.reusable", False


def _unnamed(entry: CacheEntry) -> Offences:
    named = (
        ("identity.version.lineage", entry.identity.version.lineage),
        ("descriptor.layout.layout", entry.descriptor.layout.layout),
        ("model_revision", entry.model_revision),
        ("adapter_revision", entry.adapter_revision),
    )
    return ((field, value) for field, value in named if value in _UNNAMED)


def _unknown_dtypes(entry: CacheEntry) -> Offences:
    for index, spec in enumerate(entry.descriptor.tensor_specs):
        if dtype_bits(spec.dtype) is None:
            yield f"descriptor.tensor_specs.{index}.dtype", spec.dtype


def _unknown_scheme(entry: CacheEntry) -> Offences:
    scheme = entry.descriptor.quantization.scheme
    if scheme not in QUANTIZATION_SCHEMES:
        yield "descriptor.quantization.scheme", scheme


def _impossible_ranks(entry: CacheEntry) -> Offences:
    for axis in AXES:
        shard = getattr(entry.parallel, axis, None)
        if shard is not None and shard.rank >= shard.size:
            yield f"parallel.{axis}", f"rank {shard.rank} of {shard.size}"


def _unknown_layers(entry: CacheEntry) -> Offences:
    if entry.layer_scope is not None and not is_layer_scope(entry.layer_scope):
        yield "layer_scope", entry.layer_scope


def _unknown_position(entry: CacheEntry) -> Offences:
    if entry.position_convention is not None and entry.position_convention not in _POSITIONS:
        yield "position_convention", entry.position_convention


def _unknown_checkpoint(entry: CacheEntry) -> Offences:
    checkpoint = entry.checkpoint
    if checkpoint is None:
        return
    if reuse_rule(entry.descriptor.semantic_type) is not ReuseRule.CHECKPOINT:
        yield "checkpoint", entry.descriptor.semantic_type
    if checkpoint.kind not in _KINDS:
        yield "checkpoint.kind", checkpoint.kind
    for field, value in (("lineage", checkpoint.lineage), ("parent", checkpoint.parent)):
        if value in _UNNAMED:
            yield f"checkpoint.{field}", value


REQUIREMENTS = (
    Requirement("true", _not_reusable, ExclusionReason.NOT_REUSABLE),
    Requirement("a name", _unnamed),
    Requirement("a known element type", _unknown_dtypes),
    Requirement("a known quantization scheme", _unknown_scheme),
    Requirement("a rank below its size", _impossible_ranks),
    Requirement("all, or ascending layer ranges", _unknown_layers),
    Requirement("a known position convention", _unknown_position),
    Requirement("a known checkpoint lineage, of a recurrent state", _unknown_checkpoint),
)


def standing(entry: CacheEntry) -> Verdict:
    """Whether the entry may be reused by anyone; depends on nothing else, so it may be kept."""
    for requirement in REQUIREMENTS:
        for field, value in requirement.offences(entry):
            return Mismatch(field, requirement.reason, requirement.rule, shown(value))
    return COMPATIBLE
